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

// deadLetters publishes a dead letter that no stream accepts, to see that one would be stored.
func (c *check) deadLetters(ctx context.Context) Finding {
	reason := c.names.DeadLetterSubject + ".check"
	subject := fmt.Sprintf("nats dead letters on %q", c.names.DeadLetterSubject+".>")
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err := c.js.PublishMsg(ctx, nats.NewMsg(reason), jetstream.WithExpectStream("notifier-check-no-such-stream"), jetstream.WithRetryAttempts(0))
	var refusal *jetstream.APIError
	switch {
	case errors.As(err, &refusal) && refusal.ErrorCode == errUnexpected:
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
