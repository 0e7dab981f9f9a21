package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Names say which stream and consumer a worker uses, and where its dead letters go.
type Names struct {
	Stream   string
	Subject  string // events come on it and on everything below it
	Consumer string

	DeadLetterStream  string
	DeadLetterSubject string // dead letters go to <subject>.<reason>

	LongestDelay time.Duration // that events may wait for their slots, in the stream; 0: none does
}

// maxAckPending bounds the messages that all instances together have in hand or have given back with a delay.
const maxAckPending = 20_000

// deadLetterWindow is how long the dead-letter stream knows a message again that is stored a second time.
const deadLetterWindow = time.Hour

// StreamConfig is the stream as it is provisioned. Messages leave it when they are acknowledged, never by age: each
// is to end in an outcome.
func (n Names) StreamConfig() jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name:      n.Stream,
		Subjects:  n.subjects(),
		Retention: jetstream.WorkQueuePolicy,
		Storage:   jetstream.FileStorage,
	}
	if n.LongestDelay > 0 {
		config.Subjects = append(config.Subjects, n.delayedSubject()+".>")
		config.AllowMsgSchedules = true
	}
	return config
}

// subjects are those on which events come.
func (n Names) subjects() []string { return []string{n.Subject, n.Subject + ".>"} }

// DeadLetterConfig is the dead-letter stream as it is provisioned.
func (n Names) DeadLetterConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:       n.DeadLetterStream,
		Subjects:   []string{n.DeadLetterSubject + ".>"},
		Retention:  jetstream.WorkQueuePolicy,
		Storage:    jetstream.FileStorage,
		Duplicates: deadLetterWindow,
	}
}

// consumerConfig is the consumer as it is provisioned. In a stream that holds other subjects too it filters; where there
// is nothing to filter it does not, since the server delivers a third slower then.
func (n Names) consumerConfig(ackWait time.Duration, streamSubjects []string) jetstream.ConsumerConfig {
	config := jetstream.ConsumerConfig{
		Durable:       n.Consumer,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       ackWait,
		MaxDeliver:    -1,
		MaxAckPending: maxAckPending,
	}
	own := n.subjects()
	for _, subject := range streamSubjects {
		if !slices.Contains(own, subject) {
			config.FilterSubjects = own
		}
	}
	return config
}

// place is the consumer as it was found or made.
type place struct {
	stream    jetstream.Stream // nil if its user may not ask about it
	consumer  jetstream.Consumer
	ackWait   time.Duration
	streamAge time.Duration // how long the stream keeps messages; 0 for ever or not known
	created   time.Time     // when the consumer was, by the server's clock
}

// apiTimeout bounds one request to the JetStream API. One that is not permitted takes that long.
const apiTimeout = 5 * time.Second

// provision finds the consumer. Where it, its stream or the dead-letter stream is absent, create says whether they are
// made; what exists is never altered.
func (n Names) provision(ctx context.Context, js jetstream.JetStream, ackWait time.Duration, create bool, logger *slog.Logger) (place, error) {
	consumer, err := js.Consumer(ctx, n.Stream, n.Consumer)
	if create && (errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound)) {
		consumer, err = n.create(ctx, js, ackWait, logger)
	}
	if err != nil {
		return place{}, fmt.Errorf("looking for consumer %q of stream %q: %w", n.Consumer, n.Stream, err)
	}
	found := consumer.CachedInfo().Config
	if err := n.fit(found); err != nil {
		return place{}, err
	}
	for _, note := range n.remarks(found, ackWait) {
		logger.Warn("consumer differs from the settings", "consumer", n.Consumer, "detail", note)
	}
	if create {
		if err := ensureStream(ctx, js, n.DeadLetterConfig(), logger); err != nil {
			logger.Warn("dead-letter stream cannot be made sure of", "error", err)
		}
	}
	at := place{consumer: consumer, created: consumer.CachedInfo().Created, ackWait: leaseOf(found)}
	var stream *jetstream.StreamInfo
	if at.stream = lookUp(ctx, js, n.Stream); at.stream != nil {
		stream = at.stream.CachedInfo()
		at.streamAge = stream.Config.MaxAge
	}
	if n.LongestDelay > 0 {
		return at, n.canSchedule(js.Conn().ConnectedServerVersion(), stream, found)
	}
	return at, nil
}

func (n Names) create(ctx context.Context, js jetstream.JetStream, ackWait time.Duration, logger *slog.Logger) (jetstream.Consumer, error) {
	if err := ensureStream(ctx, js, n.StreamConfig(), logger); err != nil {
		return nil, err
	}
	stream, err := js.Stream(ctx, n.Stream)
	if err != nil {
		return nil, err
	}
	consumer, err := js.CreateConsumer(ctx, n.Stream, n.consumerConfig(ackWait, stream.CachedInfo().Config.Subjects))
	if errors.Is(err, jetstream.ErrConsumerExists) { // another instance was faster
		return js.Consumer(ctx, n.Stream, n.Consumer)
	}
	if err == nil {
		logger.Info("consumer is created", "stream", n.Stream, "consumer", n.Consumer)
	}
	return consumer, err
}

// ensureStream creates a stream unless one of its name exists.
func ensureStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, logger *slog.Logger) error {
	_, err := js.Stream(ctx, config.Name)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	_, err = js.CreateStream(ctx, config)
	switch {
	case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse): // another instance was faster
		return nil
	case err != nil:
		return fmt.Errorf("creating stream %q: %w", config.Name, err)
	}
	logger.Info("stream is created", "stream", config.Name)
	return nil
}

// fit tells why a pull consumer cannot be used.
func (n Names) fit(c jetstream.ConsumerConfig) error {
	if c.AckPolicy != jetstream.AckExplicitPolicy {
		return fmt.Errorf("consumer %q has acknowledgement policy %s, expected explicit", n.Consumer, c.AckPolicy)
	}
	return nil
}

// remarks lists what an operator should know of a consumer that exists.
func (n Names) remarks(c jetstream.ConsumerConfig, ackWait time.Duration) []string {
	var notes []string
	if c.MaxDeliver > 0 {
		notes = append(notes, fmt.Sprintf("it delivers a message at most %d times, after that it is lost; expected no bound", c.MaxDeliver))
	}
	if lease := leaseOf(c); lease != ackWait {
		notes = append(notes, fmt.Sprintf("its acknowledgement wait is %s, not %s; its own is used", lease, ackWait))
	}
	if len(c.BackOff) > 0 {
		notes = append(notes, "it has a back-off, which adds to the delays that a worker asks for")
	}
	return notes
}

// leaseOf is how long a message is a worker's: the shortest of the times after which the server delivers it again.
func leaseOf(c jetstream.ConsumerConfig) time.Duration {
	lease := c.AckWait
	for _, wait := range c.BackOff {
		lease = min(lease, wait)
	}
	return lease
}

// lookUp asks about a stream; a user who may not ask goes without.
func lookUp(ctx context.Context, js jetstream.JetStream, name string) jetstream.Stream {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil
	}
	return stream
}
