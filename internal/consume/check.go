package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Finding is one thing that [Check] looked at.
type Finding struct {
	Subject string
	Note    string // if there is nothing wrong
	Err     error  // what is wrong and what to do about it
	Warning bool   // it may work all the same
}

// Check finds out whether a worker could work: whether stream, consumer and dead-letter stream are there or can be made,
// and whether each subject that it publishes to is permitted. It takes no event, stores nothing and creates nothing.
func Check(ctx context.Context, connection *Connection, names Names, provision bool, ackWait time.Duration) []Finding {
	js, err := jetstream.New(connection.Conn, jetstream.WithDefaultTimeout(apiTimeout))
	if err != nil {
		return []Finding{{Subject: "jetstream", Err: err}}
	}
	c := &check{connection: connection, js: js, names: names, provision: provision, ackWait: ackWait}
	findings := []Finding{c.consumer(ctx), c.deadLetters(ctx)}
	if names.LongestDelay > 0 {
		findings = append(findings, c.schedules(ctx))
	}
	return append(findings, c.permissions(ctx)...)
}

type check struct {
	connection *Connection
	js         jetstream.JetStream
	names      Names
	provision  bool
	ackWait    time.Duration
	creates    []string // the API's subjects on which the worker will ask for what is absent
}

func (c *check) consumer(ctx context.Context) Finding {
	subject := fmt.Sprintf("nats consumer %q of stream %q", c.names.Consumer, c.names.Stream)
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	consumer, err := c.js.Consumer(ctx, c.names.Stream, c.names.Consumer)
	absent := errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound)
	switch {
	case absent && c.provision:
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			c.creates = append(c.creates, "$JS.API.STREAM.CREATE."+c.names.Stream)
		}
		c.creates = append(c.creates, fmt.Sprintf("$JS.API.CONSUMER.CREATE.%s.%s", c.names.Stream, c.names.Consumer))
		return Finding{Subject: subject, Note: "absent; the worker creates it"}
	case absent:
		return Finding{Subject: subject, Err: fmt.Errorf("%w (create it, or set NOTIFIER_NATS_PROVISION=true)", err)}
	case err != nil:
		return Finding{Subject: subject, Err: c.explain(err)}
	}
	config := consumer.CachedInfo().Config
	if err := c.names.fit(config); err != nil {
		return Finding{Subject: subject, Err: err}
	}
	if err := c.looksAtEvents(ctx); err != nil {
		return Finding{Subject: subject, Err: fmt.Errorf("looking at stored events: %w", c.explain(err))}
	}
	if remarks := c.names.remarks(config, c.ackWait); len(remarks) > 0 {
		return Finding{Subject: subject, Err: errors.New(strings.Join(remarks, "; ")), Warning: true}
	}
	return Finding{Subject: subject, Note: fmt.Sprintf("%d events are waiting", consumer.CachedInfo().NumPending)}
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

// schedules finds out whether events could wait for their slots. Where the stream is absent, it is created so that they can.
func (c *check) schedules(ctx context.Context) Finding {
	delayed := c.names.delayedSubject()
	finding := Finding{Subject: fmt.Sprintf("nats events that wait on %q", delayed+".>")}
	asking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stream, err := c.js.Stream(asking, c.names.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) && c.provision {
		finding.Note = "no stream yet; the worker creates it"
		return finding
	}
	if err != nil {
		finding.Err = c.explain(err)
		return finding
	}
	consumer := c.names.consumerConfig(c.ackWait, stream.CachedInfo().Config.Subjects)
	if found, err := c.js.Consumer(asking, c.names.Stream, c.names.Consumer); err == nil {
		consumer = found.CachedInfo().Config
	}
	err = c.names.canSchedule(c.connection.Conn.ConnectedServerVersion(), stream.CachedInfo(), consumer)
	if err == nil {
		if err = c.wouldStore(ctx, delayed+".check"); err != nil {
			err = c.explain(err)
		}
	}
	finding.Note, finding.Err = "would be stored", err
	return finding
}

// looksAtEvents tries what the worker does before it drops a resolved event whose firing one it does not know: it looks for
// events that are not settled.
func (c *check) looksAtEvents(ctx context.Context) error {
	stream, err := c.js.Stream(ctx, c.names.Stream)
	if err == nil {
		_, err = stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(c.names.Subject))
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	return err
}

// deadLetters finds out whether a dead letter would be stored.
func (c *check) deadLetters(ctx context.Context) Finding {
	subject := fmt.Sprintf("nats dead letters on %q", c.names.DeadLetterSubject+".>")
	err := c.wouldStore(ctx, c.names.DeadLetterSubject+".check")
	switch {
	case err == nil:
		return Finding{Subject: subject, Note: "would be stored"}
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		if c.provision {
			c.creates = append(c.creates, "$JS.API.STREAM.CREATE."+c.names.DeadLetterStream)
			return Finding{Subject: subject, Note: "no stream yet; the worker creates it"}
		}
		return Finding{Subject: subject, Err: fmt.Errorf("no stream takes them (create %q, or set NOTIFIER_NATS_PROVISION=true)", c.names.DeadLetterStream)}
	}
	return Finding{Subject: subject, Err: c.explain(err)}
}

// permissions touches the other subjects that a worker uses, without effect, and lists those that are not permitted.
func (c *check) permissions(ctx context.Context) []Finding {
	conn := c.connection.Conn
	before := len(c.connection.Denied())
	for _, subject := range append([]string{
		fmt.Sprintf("$JS.ACK.%s.%s.check", c.names.Stream, c.names.Consumer),
		fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", c.names.Stream, c.names.Consumer),
		"$SRV.PING.notifier",
	}, c.creates...) {
		// The requests are malformed, so that nothing is delivered or created.
		_ = conn.Publish(subject, []byte("check"))
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
