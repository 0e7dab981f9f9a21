// Package hostile is a producer that does harm, for tests. It shows what a NATS user with the right to publish below one subject can do to
// producers on other subjects.
//
// A [Producer] owns its connection's publishes and nothing else. Its methods may be called at once. A refusal by the server is not an
// error: tests hope for it. The methods return errors of the connection only.
package hostile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Producer publishes below one subject.
type Producer struct {
	JetStream jetstream.JetStream
	Subject   string   // such as notify.payments.alerts
	Victim    string   // a subject of somebody else, such as notify.security.alerts
	IDs       []string // that the victim is going to use

	Patience time.Duration // how long the answers to some publishes may take; 0: patience

	stored, refused, unanswered atomic.Int64
}

// Attack is one way to do harm, n times.
type Attack struct {
	Name string
	Seen int                                                 // the number of messages that first showed the harm
	Do   func(p *Producer, ctx context.Context, n int) error // a method of Producer
}

// Attacks lists them all.
var Attacks = []Attack{
	{"rolls the stream up", 200, (*Producer).RollUp},
	{"schedules messages on others' subjects", 200, (*Producer).Schedule},
	{"forges the headers of the room", 12_000, (*Producer).Forge},
	{"claims others' IDs", 12_000, (*Producer).ClaimIDs},
	{"resolves what nobody opened", 25_000, (*Producer).Resolve},
	{"opens pairs without end", 25_000, (*Producer).Open},
	{"sends what cannot be understood", 68, (*Producer).Garble},
	{"sends groups of empty alerts", 50, (*Producer).EmptyAlerts},
	{"sends groups of a thousand alerts", 800, (*Producer).Groups},
	{"sends tiny groups", 25_000, (*Producer).TinyGroups},
	{"sends large events", 800, (*Producer).LargeEvents},
	{"sends large events behind small ones", 800, (*Producer).LargeBehindSmall},
	{"invents subcategories", 5000, (*Producer).Subcategories},
	{"sends titles of 250 kB", 200, (*Producer).LongTitles},
	{"floods", 25_000, (*Producer).Flood},
	{"forges through reply subjects", 3000, (*Producer).ForgeReplies},
	{"answers requests for messages", 300, (*Producer).Answer},
	{"sends many headers behind small events", 60, (*Producer).ManyHeaders},
}

// Stored is how many messages the server took so far, and Refused how many it did not.
func (p *Producer) Stored() int64 { return p.stored.Load() }

// Refused is how many messages the server did not take.
func (p *Producer) Refused() int64 { return p.refused.Load() }

// Unanswered is how many messages got no answer in time: the server may have taken them.
func (p *Producer) Unanswered() int64 { return p.unanswered.Load() }

// A producer publishes atOnce messages, then waits for their answers. Tests have as much patience with everything.
const (
	atOnce   = 500
	patience = 2 * time.Minute
)

// permitted reports whether the producer may publish on a subject. A forbidden publish gets no answer, so the producer does not wait for an
// answer, and neither Stored nor Refused counts the publish.
func (p *Producer) permitted(subject string) bool {
	own := strings.SplitAfterN(p.Subject, ".", 3)
	return strings.HasPrefix(subject, own[0]+own[1])
}

// publish publishes n messages and waits for the server's answers to all permitted messages.
func (p *Producer) publish(ctx context.Context, n int, message func(i int) *nats.Msg) error {
	futures := make([]jetstream.PubAckFuture, 0, atOnce)
	for i := range n {
		m := message(i)
		if !p.permitted(m.Subject) {
			if err := p.JetStream.Conn().PublishMsg(m); err != nil {
				return fmt.Errorf("publishing on %s: %w", m.Subject, err)
			}
			continue
		}
		future, err := p.JetStream.PublishMsgAsync(m, jetstream.WithRetryAttempts(0))
		switch {
		case errors.Is(err, jetstream.ErrTooManyStalledMsgs), errors.Is(err, nats.ErrMaxPayload):
			p.refused.Add(1)
		case err != nil:
			return fmt.Errorf("publishing: %w", err)
		default:
			futures = append(futures, future)
		}
		if len(futures) == atOnce {
			if err := p.settle(ctx, futures); err != nil {
				return err
			}
			futures = futures[:0]
		}
	}
	return p.settle(ctx, futures)
}

// settle waits for the server's answers to some publishes, and counts them.
func (p *Producer) settle(ctx context.Context, futures []jetstream.PubAckFuture) error {
	late := time.After(cmp.Or(p.Patience, patience))
	for i, future := range futures {
		select {
		case <-future.Ok():
			p.stored.Add(1)
		case refusal := <-future.Err():
			p.refuse(refusal)
		case <-late:
			p.countAnswered(futures[i:])
			return nil
		case <-ctx.Done():
			return fmt.Errorf("waiting for a publish to be answered: %w", context.Cause(ctx))
		}
	}
	return nil
}

// refuse counts a publish that failed. The client of JetStream has its own patience with answers.
func (p *Producer) refuse(refusal error) {
	if errors.Is(refusal, jetstream.ErrAsyncPublishTimeout) {
		p.unanswered.Add(1)
	} else {
		p.refused.Add(1)
	}
}

// countAnswered counts the answers that have arrived, and waits for no other one.
func (p *Producer) countAnswered(futures []jetstream.PubAckFuture) {
	for _, future := range futures {
		select {
		case <-future.Ok():
			p.stored.Add(1)
		case refusal := <-future.Err():
			p.refuse(refusal)
		default:
			p.unanswered.Add(1)
		}
	}
}

// on makes a message on a subject; headers are name, value, …
func on(subject, body string, headers ...string) *nats.Msg {
	m := &nats.Msg{Subject: subject, Header: nats.Header{}, Data: []byte(body)}
	for pair := range slices.Chunk(headers, 2) {
		m.Header.Set(pair[0], pair[1])
	}
	return m
}

func titled(i int) string { return fmt.Sprintf(`{"title": "hostile %d"}`, i) }

// RollUp asks the server to discard the messages of other producers.
func (p *Producer) RollUp(ctx context.Context, n int) error {
	return p.publish(ctx, n, func(i int) *nats.Msg {
		return on(p.Subject, titled(i), "Nats-Rollup", []string{"all", "sub"}[i%2])
	})
}

// Schedule asks the server to publish on other producers' subjects, to use their stored messages as the source, and to purge their
// schedules.
func (p *Producer) Schedule(ctx context.Context, n int) error {
	return p.publish(ctx, n, func(i int) *nats.Msg {
		at := "@at " + time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano)
		switch i % 4 {
		case 0:
			return on(p.Subject, titled(i), "Nats-Schedule", at, "Nats-Schedule-Target", p.Victim)
		case 1:
			return on(p.Subject, titled(i), "Nats-Schedule", at, "Nats-Schedule-Target", p.Subject, "Nats-Schedule-Source", p.Victim)
		case 2:
			return on(p.Subject, titled(i), "Nats-Schedule", "@every 1s", "Nats-Schedule-Target", p.Victim)
		default:
			return on(p.Subject, titled(i), "Nats-Schedule-Next", "purge", "Nats-Scheduler", p.Victim)
		}
	})
}

// Forge writes the headers that mark waiting events for workers. It also publishes into the room itself.
func (p *Producer) Forge(ctx context.Context, n int) error {
	prefix, _, _ := strings.Cut(p.Subject, ".")
	return p.publish(ctx, n, func(i int) *nats.Msg {
		subject := p.Subject
		if i%3 == 2 {
			subject = prefix + "-room." + []string{"part.security", "replay.security", "due.slot.security.x"}[i/3%3]
		}
		return on(subject, titled(i),
			"Notifier-Written-By", "notifier", "Notifier-Subject", p.Victim, "Notifier-Id", p.id(i), "Notifier-Part", "f1", "Notifier-Waits-For", []string{"slot", "replay", "pair"}[i%3],
			"Notifier-Origin", fmt.Sprintf("%d %d NOTIFICATIONS", time.Now().UnixNano(), i+1), "Notifier-Since", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()),
			"Notifier-Deadline", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "Notifier-Behind", "1")
	})
}

func (p *Producer) id(i int) string {
	if len(p.IDs) == 0 {
		return fmt.Sprintf("NOTIFICATIONS:%d", i+1)
	}
	return p.IDs[i%len(p.IDs)]
}

// ClaimIDs uses the IDs that the victim is going to use.
func (p *Producer) ClaimIDs(ctx context.Context, n int) error {
	return p.publish(ctx, n, func(i int) *nats.Msg {
		id := p.id(i)
		switch i % 4 {
		case 0:
			return on(p.Subject, fmt.Sprintf(`{"id": %q, "title": "claim"}`, id))
		case 1:
			return on(p.Subject, "claim", "ce-specversion", "1.0", "ce-type", "t", "ce-source", "x", "ce-id", id)
		case 2:
			return on(p.Subject, "claim", "Notifier-Id", id)
		default:
			return on(p.Subject, fmt.Sprintf(`{"id": "NOTIFICATIONS:%d/f1", "title": "claim"}`, rand.IntN(100_000)))
		}
	})
}

// Resolve resolves keys that nobody opened, its own and the victim's.
func (p *Producer) Resolve(ctx context.Context, n int) error {
	return p.publish(ctx, n, func(i int) *nats.Msg {
		return on(p.Subject, fmt.Sprintf(`{"title": "x", "status": "resolved", "key": "unknown-%d", "category": "security"}`, i))
	})
}

// Open opens pairs that nobody resolves.
func (p *Producer) Open(ctx context.Context, n int) error {
	return p.publish(ctx, n, func(i int) *nats.Msg {
		return on(p.Subject, fmt.Sprintf(`{"title": "x", "status": "firing", "key": "open-%d-%d"}`, time.Now().UnixNano(), i))
	})
}

// garbledBytes is the size of a body that cannot be understood.
const garbledBytes = 1_000_000

// Garble publishes large bodies that become dead letters.
func (p *Producer) Garble(ctx context.Context, n int) error {
	body := "{" + strings.Repeat("x", garbledBytes)
	return p.publish(ctx, n, func(int) *nats.Msg { return on(p.Subject, body) })
}

// EmptyAlerts publishes small bodies of a thousand alerts that yield no event.
func (p *Producer) EmptyAlerts(ctx context.Context, n int) error {
	body := `{"alerts": [{}` + strings.Repeat(",{}", 999) + `]}`
	return p.publish(ctx, n, func(int) *nats.Msg { return on(p.Subject, body) })
}

// TinyGroups publishes events that look like groups of alerts until they are decoded.
func (p *Producer) TinyGroups(ctx context.Context, n int) error {
	return p.publish(ctx, n, func(int) *nats.Msg { return on(p.Subject, `{"title":"x","alerts":0}`) })
}

// headersBytes are nearly as many bytes of headers as the server accepts.
const headersBytes = 65_400

// Answer publishes messages with the headers of the server's answers to requests for messages, and messages whose headers leave no place for
// another header.
func (p *Producer) Answer(ctx context.Context, n int) error {
	return p.publish(ctx, n, func(i int) *nats.Msg {
		switch status := []string{"100", "404", "408", "409", "503", "pin", "large"}[i%7]; status {
		case "pin":
			return on(p.Subject, titled(i), "Nats-Pin-Id", "hostile")
		case "large":
			return on(p.Subject, `{"title": 1}`, "ce-subject", strings.Repeat("x", headersBytes))
		default:
			return on(p.Subject, "", "Status", status, "Description", "Consumer Deleted")
		}
	})
}

// ManyHeaders publishes small events, and then events whose headers are as many as the server accepts: each takes much more memory than its
// bytes.
func (p *Producer) ManyHeaders(ctx context.Context, n int) error {
	const names = headersBytes / len("aaaa: \r\n")
	header := make(nats.Header, names)
	for i := range names {
		header[fmt.Sprintf("%04x", i)] = []string{""}
	}
	if err := p.Flood(ctx, SmallBefore); err != nil {
		return err
	}
	return p.publish(ctx, n, func(i int) *nats.Msg {
		return &nats.Msg{Subject: p.Subject, Header: header, Data: []byte(titled(i))}
	})
}

// AlertsOfGroup is how many alerts a body may hold.
const AlertsOfGroup = 1000

// Groups publishes bodies of a thousand new alerts each.
func (p *Producer) Groups(ctx context.Context, n int) error {
	begun := time.Now().UnixNano()
	return p.publish(ctx, n, func(i int) *nats.Msg {
		body := []byte(`{"receiver":"hostile","status":"firing","alerts":[`)
		for a := range AlertsOfGroup {
			body = fmt.Appendf(body, `{"status":"firing","labels":{"alertname":"Hostile","severity":"critical","instance":"host-%d:9100"},`+
				`"annotations":{"summary":"hostile %d"},"startsAt":"2026-03-01T10:00:00Z","fingerprint":"%x-%x-%x"},`, a, a, begun, i, a)
		}
		return on(p.Subject, string(append(body[:len(body)-1], "]}"...)))
	})
}

// largeFields is the number of fields of a large event: the maximum of a body.
const largeFields = 10_000

// LargeEvents publishes bodies of one event each, as large as a body may be, with thousands of fields. Each may resolve another event, so no
// worker drops it without decoding it.
func (p *Producer) LargeEvents(ctx context.Context, n int) error {
	fields := []byte(`"resolved":"hostile"`)
	for i := range largeFields {
		fields = fmt.Appendf(fields, `,"field-%d":"hostile"`, i)
	}
	return p.publish(ctx, n, func(i int) *nats.Msg {
		return on(p.Subject, fmt.Sprintf(`{"title":"hostile %d","status":"firing","key":"%d","text":"\"resolved\"","fields":{%s}}`, i, i, fields))
	})
}

// SmallBefore is how many small events have a worker expect small ones.
const SmallBefore = 3000

// LargeBehindSmall publishes small events, and then large ones: a worker that goes by the sizes of the last messages asks for too many.
func (p *Producer) LargeBehindSmall(ctx context.Context, n int) error {
	if err := p.Flood(ctx, SmallBefore); err != nil {
		return err
	}
	return p.LargeEvents(ctx, n)
}

// Subcategories publishes one event of each of many categories.
func (p *Producer) Subcategories(ctx context.Context, n int) error {
	return p.publish(ctx, n, func(i int) *nats.Msg { return on(fmt.Sprintf("%s.c%d", p.Subject, i), titled(i)) })
}

// longTitleBytes is the size of a title that is as long as an event may be.
const longTitleBytes = 250_000

// LongTitles publishes events of one category with long titles, each with another one.
func (p *Producer) LongTitles(ctx context.Context, n int) error {
	return p.publish(ctx, n, func(i int) *nats.Msg {
		return on(p.Subject, fmt.Sprintf(`{"title": "%d %s"}`, i, strings.Repeat("long", longTitleBytes/len("long"))))
	})
}

// Flood publishes events of one category.
func (p *Producer) Flood(ctx context.Context, n int) error {
	return p.publish(ctx, n, func(i int) *nats.Msg { return on(p.Subject, titled(i)) })
}

// Replies returns reply subjects with which a producer makes the server publish acknowledgements, to harm whoever publishes on the victim's
// subject: live limits, dead letters, the room, the journal, events, JetStream's requests, and the answers to other clients.
func Replies(victim string) []string {
	prefix, rest, _ := strings.Cut(victim, ".")
	first, _, _ := strings.Cut(rest, ".")
	const key = "0123456789abcdef0123456789abcdef"
	return []string{
		"$KV.notifier-limits." + first, "$KV.notifier-limits.global", "$KV.notifier-limits.state/adopted", "$KV.notifier-limits.mute/" + first,
		prefix + "-dlq.bad_field." + first, prefix + "-dlq.rejected." + first,
		prefix + "-room.slot." + first, prefix + "-room.slot." + first + "." + key, prefix + "-room.pair." + first + "." + key,
		prefix + "-room.redis." + first + "." + key, prefix + "-room.due.slot." + first + "." + key,
		prefix + "-room.part." + first, prefix + "-room.replay." + first, prefix + "-room.channel.0123456789abcdef." + first,
		prefix + "-journal." + first, prefix + "-journal._",
		victim, prefix + "." + first,
		"$JS.API.STREAM.PURGE.NOTIFICATIONS_DLQ", "$JS.API.STREAM.PURGE.NOTIFICATIONS_ROOM", "$JS.API.STREAM.PURGE.KV_notifier-limits",
		"$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS_DLQ", "$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS_ROOM", "$JS.API.STREAM.MSG.DELETE.KV_notifier-limits",
		"$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS", "$JS.API.STREAM.DELETE.NOTIFICATIONS_DLQ", "$JS.API.CONSUMER.DELETE.NOTIFICATIONS.notifier",
		"$JS.API.CONSUMER.CREATE.NOTIFICATIONS", "$JS.API.STREAM.UPDATE.NOTIFICATIONS",
		"$JS.ACK.NOTIFICATIONS.notifier.1.1.1.1.0", "$JS.ACK.NOTIFICATIONS_ROOM.notifier-room.1.1.1.1.0",
		"$SRV.PING.notifier", "$SRV.STATUS.notifier", "_INBOX_notifier.forged",
	}
}

// ForgeReplies publishes its own events with the subjects of [Replies] as reply subjects. The last event has a normal reply subject. The
// acknowledgements of the earlier events do not reach the producer, so neither Stored nor Refused counts these events. ForgeReplies returns
// when the server has acknowledged the last event, which it stores after all earlier events.
func (p *Producer) ForgeReplies(ctx context.Context, n int) error {
	replies := Replies(p.Victim)
	for i := range n - 1 {
		m := on(p.Subject, titled(i))
		m.Reply = replies[i%len(replies)]
		if err := p.JetStream.Conn().PublishMsg(m); err != nil {
			return fmt.Errorf("publishing with the reply subject %s: %w", m.Reply, err)
		}
	}
	return p.publish(ctx, 1, func(int) *nats.Msg { return on(p.Subject, titled(n)) })
}
