package consume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/room"
)

// Finding is one thing that [Check] looked at.
type Finding struct {
	Subject string
	Note    string // if there is nothing wrong
	Err     error  // what is wrong and what to do about it
	Warning bool   // it may work all the same
}

// Check finds out whether a worker could work: whether streams and consumers are there or can be made and are fit for use, how
// they are bounded, and whether each subject that the worker publishes to is permitted. It takes no event, stores nothing and
// creates nothing.
func Check(ctx context.Context, connection *Connection, names Names, provision bool, ackWait time.Duration) []Finding {
	js, err := jetstream.New(connection.Conn, jetstream.WithDefaultTimeout(apiTimeout))
	if err != nil {
		return []Finding{{Subject: "jetstream", Err: err}}
	}
	c := &check{connection: connection, js: js, names: names, provision: provision, ackWait: ackWait}
	findings := []Finding{
		c.consumer(ctx, names.Stream, names.Consumer, fit),
		c.stream(ctx, names.StreamConfig(), names.trusted),
		c.consumer(ctx, names.RoomStream, names.roomConsumer(), names.fitRoomConsumer),
		c.stream(ctx, names.RoomConfig(), func(config jetstream.StreamConfig) error {
			if err := names.canSchedule(connection.Conn.ConnectedServerVersion()); err != nil {
				return err
			}
			return names.fitRoom(config)
		}),
		c.stream(ctx, names.DeadLetterConfig(), func(jetstream.StreamConfig) error { return nil }),
		c.stored(ctx, "events that wait", names.RoomStream, names.room().Queue(room.Part, "check")),
		c.stored(ctx, "dead letters", names.DeadLetterStream, names.DeadLetterSubject+".check.check"),
	}
	return append(append(findings, c.replicas()...), c.permissions(ctx)...)
}

type check struct {
	connection *Connection
	js         jetstream.JetStream
	names      Names
	provision  bool
	ackWait    time.Duration
	creates    []string // the API's subjects on which the worker will ask for what is absent
	single     []string // the streams that have one replica
}

func (c *check) consumer(ctx context.Context, stream, name string, fit func(jetstream.ConsumerConfig) error) Finding {
	subject := fmt.Sprintf("nats consumer %q of stream %q", name, stream)
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	consumer, err := c.js.Consumer(ctx, stream, name)
	switch {
	case absent(err) && c.provision:
		c.creates = append(c.creates, fmt.Sprintf("$JS.API.CONSUMER.CREATE.%s.%s", stream, name))
		return Finding{Subject: subject, Note: "absent; the worker creates it"}
	case absent(err):
		return Finding{Subject: subject, Err: fmt.Errorf("%w (create it, or set NOTIFIER_NATS_PROVISION=true)", err)}
	case err != nil:
		return Finding{Subject: subject, Err: c.explain(err)}
	}
	config := consumer.CachedInfo().Config
	if err := fit(config); err != nil {
		return Finding{Subject: subject, Err: err}
	}
	if err := c.looksAt(ctx, stream); err != nil {
		return Finding{Subject: subject, Err: fmt.Errorf("looking at stored events: %w", c.explain(err))}
	}
	if remarks := remarks(config, c.ackWait); len(remarks) > 0 {
		return Finding{Subject: subject, Err: errors.New(strings.Join(remarks, "; ")), Warning: true}
	}
	return Finding{Subject: subject, Note: fmt.Sprintf("%d events are waiting", consumer.CachedInfo().NumPending)}
}

// looksAt tries what a worker does to see whether events are settled: it gets stored ones.
func (c *check) looksAt(ctx context.Context, name string) error {
	stream, err := c.js.Stream(ctx, name)
	if err == nil {
		_, err = stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(c.names.Subject))
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	return err
}

// stream looks at a stream: whether it can be used, what bounds it, and how it differs from one that would be created.
func (c *check) stream(ctx context.Context, wanted jetstream.StreamConfig, fit func(jetstream.StreamConfig) error) Finding {
	finding := Finding{Subject: fmt.Sprintf("nats stream %q", wanted.Name)}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stream, err := c.js.Stream(ctx, wanted.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && c.provision:
		c.creates = append(c.creates, "$JS.API.STREAM.CREATE."+wanted.Name)
		finding.Note = "absent; the worker creates it: " + bounds(wanted)
		return finding
	case errors.Is(err, jetstream.ErrStreamNotFound):
		finding.Err = fmt.Errorf("%w (create it, or set NOTIFIER_NATS_PROVISION=true)", err)
		return finding
	case err != nil:
		finding.Err = c.explain(err)
		return finding
	}
	config := stream.CachedInfo().Config
	if config.Replicas == 1 {
		c.single = append(c.single, config.Name)
	}
	if finding.Err = fit(config); finding.Err != nil {
		return finding
	}
	finding.Note = bounds(config)
	if differences := differences(wanted, config); len(differences) > 0 {
		finding.Err, finding.Warning = errors.New(finding.Note+"; "+strings.Join(differences, "; ")), true
	}
	return finding
}

// bounds says in words what a stream keeps.
func bounds(c jetstream.StreamConfig) string {
	text := "no bound in bytes"
	if c.MaxBytes > 0 {
		text = "at most " + bytesText(c.MaxBytes)
	}
	if c.MaxMsgsPerSubject > 0 {
		text += fmt.Sprintf(", %d messages on each subject", c.MaxMsgsPerSubject)
	}
	if c.MaxAge > 0 {
		text += ", for " + ageText(c.MaxAge)
	} else {
		text += ", for ever"
	}
	if c.Replicas > 0 {
		text += fmt.Sprintf("; replicas: %d", c.Replicas)
	}
	return text
}

// differences lists what an operator should know of a stream that exists.
func differences(wanted, found jetstream.StreamConfig) []string {
	var texts []string
	note := func(differs bool, text string) {
		if differs {
			texts = append(texts, text)
		}
	}
	note(wanted.MaxBytes > 0 && found.MaxBytes <= 0, fmt.Sprintf("one that is created has at most %s", bytesText(wanted.MaxBytes)))
	note(found.Discard == jetstream.DiscardOld && (found.MaxBytes > 0 || found.MaxMsgs > 0),
		"when it is full it loses its oldest messages, whoever they belong to (discard old); expected discard new")
	note(wanted.MaxMsgsPerSubject > 0 && found.MaxMsgsPerSubject <= 0,
		fmt.Sprintf("no bound for each subject, so one producer takes the room of all; expected %d (max_msgs_per_subject)", wanted.MaxMsgsPerSubject))
	note(wanted.DiscardNewPerSubject && found.MaxMsgsPerSubject > 0 && !found.DiscardNewPerSubject,
		"on a full subject it loses the oldest event; expected discard_new_per_subject")
	return texts
}

// bytesText is a number of bytes as the settings take it.
func bytesText(n int64) string {
	unit := 0
	names := []string{"", "KiB", "MiB", "GiB", "TiB"}
	for n >= 1024 && n%1024 == 0 && unit < len(names)-1 {
		n, unit = n/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d%s", n, names[unit])
}

// ageText is a duration as the settings take it.
func ageText(d time.Duration) string {
	const day = 24 * time.Hour
	if d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}

// replicas warns of streams that one server alone keeps.
func (c *check) replicas() []Finding {
	if len(c.single) == 0 {
		return nil
	}
	finding := Finding{Subject: "nats replicas", Warning: true}
	streams := strings.Join(c.single, ", ")
	if cluster := c.connection.Conn.ConnectedClusterName(); cluster != "" {
		finding.Err = fmt.Errorf("in the cluster %q one server alone keeps %s: when it stops everything does, and its disk is all there is; "+
			"set NOTIFIER_NATS_REPLICAS=3 before they are created, or num_replicas of those that exist", cluster, streams)
	} else {
		finding.Err = fmt.Errorf("one server keeps %s: a power failure takes what it has acknowledged since it last wrote to the disk, up to two minutes, "+
			"unless its sync_interval is always (a client cannot see that; configs/nats/notifier.conf says what it costs)", streams)
	}
	return []Finding{finding}
}

// explain adds what the server did not permit, since whoever asked sees only a timeout.
func (c *check) explain(err error) error {
	if denied := c.connection.Denied(); len(denied) > 0 {
		return fmt.Errorf("%w (%s)", err, strings.Join(denied, "; "))
	}
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w (is JetStream enabled for this account?)", err)
	}
	return err
}

// errUnexpected is how a stream answers a message that expects another stream: whoever sees it may publish, and a
// stream takes the subject.
const errUnexpected = jetstream.ErrorCode(10060)

// wouldStore publishes a message that no stream accepts, to see that one would be stored. The error is nil if so.
func (c *check) wouldStore(ctx context.Context, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err := c.js.PublishMsg(ctx, nats.NewMsg(subject), jetstream.WithExpectStream("notifier-check-no-such-stream"), jetstream.WithRetryAttempts(0))
	var refusal *jetstream.APIError
	if errors.As(err, &refusal) && refusal.ErrorCode == errUnexpected {
		return nil
	}
	return err
}

// stored finds out whether a message would be stored.
func (c *check) stored(ctx context.Context, what, stream, subject string) Finding {
	finding := Finding{Subject: fmt.Sprintf("nats %s on %q", what, subject[:strings.Index(subject, ".")+1]+">")}
	err := c.wouldStore(ctx, subject)
	switch {
	case err == nil:
		finding.Note = "would be stored"
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		if c.provision {
			finding.Note = "no stream yet; the worker creates it"
			return finding
		}
		finding.Err = fmt.Errorf("no stream takes them (create %q, or set NOTIFIER_NATS_PROVISION=true)", stream)
	default:
		finding.Err = c.explain(err)
	}
	return finding
}

// permissions touches the other subjects that a worker uses, without effect, and lists those that are not permitted.
func (c *check) permissions(ctx context.Context) []Finding {
	conn := c.connection.Conn
	before := len(c.connection.Denied())
	const channel = "check"
	requests := []string{
		"$SRV.PING.notifier",
		fmt.Sprintf("$JS.API.CONSUMER.CREATE.%s.%s.%s", c.names.RoomStream, c.names.channelConsumer(channel), c.names.room().ChannelFilter(channel)),
	}
	for stream, consumers := range map[string][]string{
		c.names.Stream: {c.names.Consumer}, c.names.RoomStream: {c.names.roomConsumer(), c.names.channelConsumer(channel)},
	} {
		for _, consumer := range consumers {
			requests = append(requests, fmt.Sprintf("$JS.ACK.%s.%s.check", stream, consumer), fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", stream, consumer))
		}
	}
	for _, subject := range append(requests, c.creates...) {
		// The requests are malformed, so that nothing is delivered or created.
		_ = conn.Publish(subject, []byte("check"))
	}
	// No letter has this subject, so that none is purged.
	if nothing, err := json.Marshal(map[string]string{"filter": c.names.DeadLetterSubject + ".check.check"}); err == nil {
		_ = conn.Publish("$JS.API.STREAM.PURGE."+c.names.DeadLetterStream, nothing)
	}
	services, err := conn.SubscribeSync("$SRV.PING.notifier.check")
	if err == nil {
		defer func() { _ = services.Unsubscribe() }()
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if err := conn.FlushWithContext(ctx); err != nil {
		return []Finding{{Subject: "nats permissions", Err: err}}
	}
	time.Sleep(50 * time.Millisecond) // what is denied is reported beside the replies
	denied := c.connection.Denied()
	var findings []Finding
	for _, denial := range denied[min(before, len(denied)):] {
		findings = append(findings, Finding{Subject: "nats permissions", Err: errors.New(denial)})
	}
	if len(findings) == 0 {
		findings = append(findings, Finding{Subject: "nats permissions", Note: "what a worker publishes and subscribes to is allowed"})
	}
	return findings
}
