package consume

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/replicas"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// letterCase is a body that ends as a dead letter.
type letterCase struct {
	subject, body string
	headers       []string
	reason        event.Reason
	first         string // the first level in its subject; "" for payments
	has           map[string]string
	hasNot        []string
	kept          int  // bytes of a cut body; 0: all
	bare          bool // no header is left
	most          int  // largest body in bytes; 0: 1000
}

const maxPayload = 1 << 20 // default of the server

var (
	largeValue  = strings.Repeat("v", 1500)
	largeHeader = len("NATS/1.0\r\nce-subject: \r\n\r\n") + len(largeValue)
)

func thousandHeaders() (headers []string) {
	for i := range 1000 {
		headers = append(headers, fmt.Sprintf("X-%d", i), fmt.Sprint(i))
	}
	return headers
}

func brokenBody(size int) string { return "{" + strings.Repeat("x", size-1) }

var letterCases = map[string]letterCase{
	"small": {body: "{broken", headers: []string{"ce-subject", "7", "X-Trace", "7", "Nats-Msg-Id", "id", "Nats-Expected-Stream", testNames.Stream},
		reason: event.ReasonBadJSON, has: map[string]string{"ce-subject": "7", room.HeaderMessageID: "id", room.HeaderID: "id"},
		hasNot: []string{"X-Trace", "Nats-Expected-Stream", room.HeaderDerived, room.HeaderPart, room.HeaderSince, deadletters.HeaderBodyLength, deadletters.HeaderPushedOut}},
	"of a producer who forges headers": {body: "{broken", headers: []string{
		deadletters.HeaderReason, "forged", "notifier-error", "forged", room.HeaderSubject, "notify.security", room.HeaderOrigin, "1 1 EVENTS", room.HeaderPart, "2",
		room.HeaderSince, "1", "Notifier-Deadline", "1", deadletters.HeaderPushedOut, "9", deadletters.HeaderBodyLength, "9", "Notifier-Trace", "1", "Nats-Rollup-Not", "all",
	}, reason: event.ReasonBadJSON, has: map[string]string{room.HeaderDerived: "true"},
		hasNot: []string{room.HeaderPart, room.HeaderSince, "Notifier-Deadline", deadletters.HeaderPushedOut, deadletters.HeaderBodyLength, "Notifier-Trace", "Nats-Rollup-Not", "notifier-error"}},
	"empty":                            {body: "", reason: event.ReasonEmpty},
	"no UTF-8":                         {body: "\xff\x00\r\n", reason: event.ReasonBadUTF8},
	"bad category":                     {subject: "notify.ä😀.B", body: "text", reason: event.ReasonBadCategory, first: event.NoLevel},
	"bad category below a first level": {subject: "notify.Payments.ä", body: "text", reason: event.ReasonBadCategory},
	"no category at all":               {subject: "notify", body: "{broken", reason: event.ReasonBadJSON, first: event.NoLevel},
	"a category in the body":           {subject: "notify", body: `{"category": "infra.disk"}`, reason: event.ReasonEmpty, first: "infra"},
	"an ID in another letter case": {body: "{broken", headers: []string{"nats-msg-id", "id"}, reason: event.ReasonBadJSON,
		has: map[string]string{room.HeaderMessageID: "id", room.HeaderID: "id"}, hasNot: []string{room.HeaderDerived}},
	"a thousand headers": {body: "{broken", headers: append(thousandHeaders(), "nats-msg-id", "id"), reason: event.ReasonBadJSON,
		has: map[string]string{room.HeaderMessageID: "id", room.HeaderID: "id"}, hasNot: []string{room.HeaderDerived, "X-0", "X-999"}},
	"no room for the producer's headers": {body: brokenBody(maxPayload - largeHeader), headers: []string{"ce-subject", largeValue}, reason: event.ReasonBadJSON, has: map[string]string{room.HeaderID: "EVENTS:1"}, hasNot: []string{"ce-subject"}},
	"room for the mark alone":            {body: brokenBody(maxPayload - 100), reason: event.ReasonBadJSON, bare: true},
	"no room for any header":             {body: brokenBody(maxPayload), reason: event.ReasonBadJSON, kept: maxPayload / 2},
	"too large":                          {body: brokenBody(5000), headers: []string{"ce-subject", largeValue}, reason: event.ReasonTooLarge, kept: 1000, has: map[string]string{"ce-subject": largeValue}},
	"cut, with no room for any header":   {body: brokenBody(maxPayload), reason: event.ReasonTooLarge, most: maxPayload - 1, kept: (maxPayload - 1) / 2},
	"too large, as large as can be":      {body: brokenBody(maxPayload), reason: event.ReasonTooLarge, kept: 1000},
}

// TestDeadLetter compares letters with the body, the producer's headers, the origin and the reason. A letter that exceeds the server's
// largest message loses headers, or a part of its body.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	each(t, letterCases, func(t *testing.T, f *fixture, test letterCase) {
		f.provision(usualAckWait)
		subject, first := cmp.Or(test.subject, "notify.payments"), cmp.Or(test.first, "payments")
		sequence := f.publish(subject, test.body, test.headers...)
		f.start(func(o *setup) {
			if test.reason == event.ReasonTooLarge {
				o.Decoder.MaxBytes = cmp.Or(test.most, 1000)
			}
		})
		f.awaitSettled(1)
		f.requireSaid(sequence, "+TERM "+string(test.reason)+": …")
		testkit.Equal(t, f.metrics.Get("letter "+string(test.reason)), 1, "dead letters by reason")
		letters := f.deadLetters()
		testkit.Require(t, len(letters) == 1, "dead letters: got %d, want 1", len(letters))
		letter := letters[0]
		want := map[string]string{
			deadletters.HeaderReason: string(test.reason), room.HeaderSubject: subject, deadletters.HeaderSequence: "1",
			deadletters.HeaderDeliveries: fmt.Sprint(1 + f.metrics.Get("redelivered")), // a starved client may lose the first delivery
		}
		maps.Copy(want, test.has)
		kept := test.body
		if test.kept > 0 {
			kept = kept[:test.kept]
			want[deadletters.HeaderBodyLength] = fmt.Sprint(len(test.body))
			want[deadletters.HeaderBodySHA256] = fmt.Sprintf("%x", sha256.Sum256([]byte(test.body)))
		}
		if on := fmt.Sprintf("notify-dlq.%s.%s", test.reason, first); string(letter.Data) != kept || letter.Subject != on {
			t.Errorf("letter: got %d bytes on %s, want %d bytes of the body on %s", len(letter.Data), letter.Subject, len(kept), on)
		}
		if !test.bare {
			f.requireLetterHeaders(letter, want, test.hasNot)
		} else if len(letter.Header) != 1 || !trusted.IsMarked(letter.Header) {
			t.Errorf("headers: got %v, want the mark alone", letter.Header)
		}
	})
}

// requireLetterHeaders checks the headers of the letter of the producers' first message.
func (f *fixture) requireLetterHeaders(letter *jetstream.RawStreamMsg, want map[string]string, hasNot []string) {
	f.Helper()
	id := letter.Header.Get(nats.MsgIdHdr)
	testkit.Check(f, strings.HasPrefix(id, "dlq-EVENTS-1-"), "message ID: got %q, want dlq-EVENTS-1- and the time", id)
	for name, value := range want {
		testkit.EqualSlices(f, letter.Header.Values(name), []string{value}, "header %s", name)
	}
	testkit.Check(f, letter.Header.Get(deadletters.HeaderError) != "", "header %s: got none, want the error", deadletters.HeaderError)
	for _, name := range hasNot {
		testkit.EqualSlices(f, letter.Header.Values(name), nil, "header %s", name)
	}
	entry, err := room.Read(letter.Header, letter.Time)
	testkit.Check(f, err == nil && entry.Origin.Stream == testNames.Stream && entry.Origin.Sequence == 1 && !entry.Replayed(),
		"entry: got %+v, %v, want message 1 of %s", entry, err, testNames.Stream)
}

// TestDeadLetterOfAnEventThatMoved stores the letter of an event again after its moves. The stream knows the letter again. A part of a
// group and a replay have letters of their own.
func TestDeadLetterOfAnEventThatMoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.publish("notify.payments", `{"id": "order-1", "title": "an event"}`)
	m := f.taken(w, usualAckWait)
	e := testkit.Must(testDecoder.Decode(m.Published()))(t)
	fault := event.NewFault(event.ReasonRejected, "invalid_blocks")
	inRoom := func(sequence uint64, change func(*room.Entry)) *received.Message {
		moved := &received.Message{Content: m.Content, Meta: &nats.MsgMetadata{Stream: testNames.RoomStream, Sequence: nats.SequencePair{Stream: sequence}}, Entry: new(m.EntryFor(e, room.Channel))}
		change(moved.Entry)
		return moved
	}
	part := func(name string) func(*room.Entry) { return func(entry *room.Entry) { entry.Part = name } }
	for i, step := range []struct {
		m    *received.Message
		want int // letters by then
	}{
		{m, 1},
		{m, 1},
		{inRoom(1, func(*room.Entry) {}), 1},
		{inRoom(2, part("a")), 2},
		{inRoom(3, part("b")), 3},
		{inRoom(4, part("b")), 3},
		{inRoom(5, func(entry *room.Entry) { entry.Since = entry.Since.Add(time.Second) }), 4},
	} {
		e := testkit.Must(testDecoder.Decode(step.m.Published()))(t)
		testkit.Equal(t, w.settler.StoreLetter(t.Context(), step.m, e, fault), true, "the letter is stored")
		testkit.Equal(t, len(f.deadLetters()), step.want, "dead letters after step %d", i+1)
	}
}

func TestDeadLetterStreamIsMadeAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start(nil)
	removed := time.Now()
	testkit.NoError(t, f.js.DeleteStream(t.Context(), testNames.DeadLetterStream))
	sequence := f.publish("notify.payments", "{broken")
	f.awaitSettled(1)
	made := f.streamInfo(testNames.DeadLetterStream).Created
	testkit.Between(t, made.Sub(removed), replicas.DeletionTime, time.Minute, "time after which the stream is recreated")
	f.requireSaid(sequence, "+TERM bad_json: …")
	testkit.Equal(t, len(f.deadLetters()), 1, "dead letters")
}

// silentLetters is a JetStream whose dead-letter stream does not answer before the gate opens.
type silentLetters struct {
	jetstream.JetStream
	*gate
}

func (s silentLetters) PublishMsg(ctx context.Context, m *nats.Msg, o ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if strings.HasPrefix(m.Subject, testNames.DeadLetterSubject) {
		<-s.opened
	}
	return s.JetStream.PublishMsg(ctx, m, o...)
}

// TestLettersDelayNoOther delivers more faulty bodies than a worker holds while the dead-letter stream does not answer. Other events are posted,
// also events with heavy bodies and the valid alerts of a group with a faulty one. The worker returns the last bodies to their stream.
func TestLettersDelayNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.throttle.answers(func(c store.Request) store.Decision { return f.throttle.admit(c) })
	w := f.newWorker(nil)
	gate := newGate(t)
	w.streams.JetStream = silentLetters{w.streams.JetStream, gate}
	const size = heavyBytes - 1000 // a heavy body would go another way
	var last uint64
	for range outcome.LetterBytes/size + stage.PoolSize {
		last = f.publish("notify.payments", brokenBody(size))
	}
	f.publish("notify.payments", `{"alerts": [{"labels": {}}, {"status": "firing", "labels": {"alertname": "Valid"}, "fingerprint": "f1"}]}`)
	f.event("orders", "order-1")
	f.publish("notify.orders", `{"id": "order-2", "title": "heavy", "text": "`+strings.Repeat("x", heavyBytes)+`"}`)
	f.run(w)
	t.Cleanup(gate.open) // before the worker's own cleanup
	f.eventually("all other events end", func() bool { return f.metrics.ended() == 3 })
	f.requireOutcomes(map[string]int{"sent orders": 2, "sent payments": 1})
	f.requirePutOff(last)
}
