package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/replicas"
	"github.com/seed-4578ace9/notifier/internal/requirements"
	"github.com/seed-4578ace9/notifier/internal/room"
)

// Names say which stream and consumer a worker uses, and where its dead letters go.
type Names struct {
	Stream   string
	Subject  string // events come on it and on everything below it
	Consumer string
	MaxBytes int64         // of the stream; 0 for no bound
	MaxAge   time.Duration // of an event in the stream; 0 for no bound

	RoomStream   string
	LongestDelay time.Duration // that events may wait for their slots; 0: none does

	DeadLetterStream  string
	DeadLetterSubject string // dead letters go to <subject>.<reason>.<first level of the category>
	DeadLetters       DeadLetterBounds

	Journal journal.Names // where the journal is; an Age of 0 means that there is none

	Replicas int // of every stream and consumer: 1, 3 or 5; 0: three in a cluster of three servers or more, else one
}

// DeadLetterBounds are those of the dead-letter stream. Newer dead letters push out older ones.
type DeadLetterBounds struct {
	PerSubject int
	Bytes      int64         // of all together; 0 for no bound
	Age        time.Duration // 0 for no bound
}

// roomConsumer is the name of the consumer that takes what is due, the parts of split bodies, and replays.
func (n Names) roomConsumer() string { return n.Consumer + "-room" }

// channelConsumer is the name of the consumer that takes what waits for one channel.
func (n Names) channelConsumer(token string) string { return n.Consumer + "-channel-" + token }

// waitingConsumer is the name of the consumer by which the schedules of a reason are counted.
func (n Names) waitingConsumer(reason room.Reason) string {
	return n.Consumer + "-waiting-" + string(reason)
}

// maxAckPending bounds the messages that all instances together have unacknowledged, with those that got a nak with a delay.
const maxAckPending = 20_000

// duplicateWindow is how long the room and the dead-letter stream know a message again that is stored a second time.
const duplicateWindow = time.Hour

// StreamConfig is the producers' stream as it is provisioned. Its publishers are not trusted: they may neither schedule
// messages nor roll others up. A full stream refuses them.
func (n Names) StreamConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:      n.Stream,
		Subjects:  n.subjects(),
		Retention: jetstream.WorkQueuePolicy,
		Storage:   jetstream.FileStorage,
		Discard:   jetstream.DiscardNew,
		MaxBytes:  n.MaxBytes,
		MaxAge:    n.MaxAge,
		DenyPurge: true,
	}
}

// subjects are those on which events come.
func (n Names) subjects() []string { return []string{n.Subject, n.Subject + ".>"} }

// DeadLetterConfig is the dead-letter stream as it is provisioned. On a subject, newer letters push out the oldest. Where the
// bytes run out the server refuses, since it would push out the oldest letter of anybody; the workers make room then.
func (n Names) DeadLetterConfig() jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name:              n.DeadLetterStream,
		Subjects:          []string{n.DeadLetterSubject + ".>"},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Discard:           jetstream.DiscardNew,
		MaxMsgsPerSubject: int64(n.DeadLetters.PerSubject),
		MaxBytes:          n.DeadLetters.Bytes,
		MaxAge:            n.DeadLetters.Age,
		Duplicates:        duplicateWindow,
	}
	if n.DeadLetters.Age > 0 {
		config.Duplicates = min(duplicateWindow, n.DeadLetters.Age)
	}
	return config
}

// consumerConfig is the consumer as it is provisioned. It filters only in a stream with other subjects, since a filter makes delivery
// slower by a third.
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

// topology is the streams and consumers as they were found or made.
type topology struct {
	stream   jetstream.Stream
	consumer jetstream.Consumer
	created  time.Time // when the consumer was, by the server's clock
	room     *roomTopology
}

// apiTimeout bounds one request to the JetStream API. A denied request takes that long.
const apiTimeout = 5 * time.Second

// ErrUnfit means that a stream exists and cannot be used as it is, or that the server is too old.
var ErrUnfit = errors.New("nats is not fit for use")

// provision finds streams and consumers. Create says whether those that are absent are made; what exists is never altered.
func (n Names) provision(ctx context.Context, js jetstream.JetStream, ackWait time.Duration, create bool, logger *slog.Logger) (topology, error) {
	if err := fitServer(js.Conn()); err != nil {
		return topology{}, err
	}
	at, err := n.provisionEvents(ctx, js, ackWait, create, logger)
	if err != nil {
		return topology{}, err
	}
	if at.room, err = n.provisionRoom(ctx, js, ackWait, create, logger); err != nil {
		return topology{}, err
	}
	if create {
		_, err := n.ensureStream(ctx, js, n.DeadLetterConfig(), true, logger)
		if errors.Is(err, errNoSpace) {
			return topology{}, err
		}
		if err != nil {
			logger.Warn("dead-letter stream cannot be made sure of", "error", err)
		}
	}
	warnOf(at.consumer.CachedInfo().Config, ackWait, logger) // here, since the search for what is absent is repeated
	warnOf(at.room.consumer.CachedInfo().Config, ackWait, logger)
	return at, nil
}

// provisionEvents finds the producers' stream and its consumer.
func (n Names) provisionEvents(ctx context.Context, js jetstream.JetStream, ackWait time.Duration, create bool, logger *slog.Logger) (topology, error) {
	var consumer jetstream.Consumer
	created := false
	stream, err := n.ensureStream(ctx, js, n.StreamConfig(), create, logger)
	if err == nil {
		consumer, created, err = ensureConsumer(ctx, js, n.Stream, n.consumerConfig(ackWait, stream.CachedInfo().Config.Subjects), create)
	}
	if err != nil {
		return topology{}, fmt.Errorf("looking for consumer %q of stream %q: %w", n.Consumer, n.Stream, err)
	}
	if created {
		logger.Info("consumer is created", "stream", n.Stream, "consumer", n.Consumer)
	}
	if err := fit(consumer.CachedInfo().Config); err != nil {
		return topology{}, err
	}
	if err := n.trusted(stream.CachedInfo().Config); err != nil {
		return topology{}, err
	}
	return topology{stream: stream, consumer: consumer, created: consumer.CachedInfo().Created}, nil
}

// trusted tells why the producers' stream must not be worked on.
func (n Names) trusted(c jetstream.StreamConfig) error {
	const harm = "so each of its publishers can delete and forge the events of others"
	switch {
	case c.AllowMsgSchedules:
		return fmt.Errorf("%w: stream %q allows message schedules (allow_msg_schedules), %s; that cannot be undone: make the stream anew", ErrUnfit, n.Stream, harm)
	case c.AllowRollup:
		return fmt.Errorf("%w: stream %q allows roll-ups (allow_rollup_hdrs), %s; turn them off", ErrUnfit, n.Stream, harm)
	}
	return nil
}

// fitServer tells whether the server is too old.
func fitServer(conn *nats.Conn) error {
	if err := requirements.NATS().Check(conn.ConnectedServerVersion(), conn.ConnectedAddr()); err != nil {
		return fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	return nil
}

// fitRoom tells why the room cannot be used.
func (n Names) fitRoom(c jetstream.StreamConfig) error {
	switch {
	case c.Retention != jetstream.WorkQueuePolicy:
		return fmt.Errorf("%w: stream %q has retention %s, expected workqueue", ErrUnfit, n.RoomStream, c.Retention)
	case !c.AllowMsgSchedules:
		return fmt.Errorf("%w: stream %q does not allow message schedules (allow_msg_schedules)", ErrUnfit, n.RoomStream)
	case c.MaxAge > 0 && c.MaxAge < n.LongestDelay:
		return fmt.Errorf("%w: stream %q keeps messages for %v, and events may wait for %v", ErrUnfit, n.RoomStream, c.MaxAge, n.LongestDelay)
	case !slices.Contains(c.Subjects, n.room().All()):
		return fmt.Errorf("%w: stream %q lacks the subject %s", ErrUnfit, n.RoomStream, n.room().All())
	}
	return nil
}

// fitRoomConsumer tells why the room's consumer cannot be used.
func (n Names) fitRoomConsumer(c jetstream.ConsumerConfig) error {
	filters := filtersOf(c)
	if ready := slices.Sorted(slices.Values(n.room().Ready())); !slices.Equal(filters, ready) {
		return fmt.Errorf("%w: consumer %q takes %s, expected the filter %s",
			ErrUnfit, c.Durable, cmp.Or(strings.Join(filters, ", "), "everything"), strings.Join(ready, ", "))
	}
	return fit(c)
}

// ensureStream finds a stream, or makes it where create is set.
func (n Names) ensureStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, create bool, logger *slog.Logger) (jetstream.Stream, error) {
	stream, err := js.Stream(ctx, config.Name)
	if !create || !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, err
	}
	err = replicas.Create(ctx, n.Replicas, func(count int) (err error) {
		config.Replicas = count
		stream, err = js.CreateStream(ctx, config)
		return err
	})
	switch {
	case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse): // another instance was faster
		return js.Stream(ctx, config.Name)
	case noSpace(err):
		return nil, fmt.Errorf("creating stream %q with %d bytes: %w: %w", config.Name, config.MaxBytes, errNoSpace, err)
	case err != nil:
		return nil, fmt.Errorf("creating stream %q: %w", config.Name, err)
	}
	logger.Info("stream is created", "stream", config.Name, "replicas", config.Replicas)
	return stream, nil
}

// ensureConsumer finds a consumer, or makes it where create is set, and tells whether it made it.
func ensureConsumer(
	ctx context.Context, js jetstream.JetStream, stream string, config jetstream.ConsumerConfig, create bool,
) (consumer jetstream.Consumer, created bool, err error) {
	consumer, err = js.Consumer(ctx, stream, config.Durable)
	if create && errors.Is(err, jetstream.ErrConsumerNotFound) {
		consumer, err = js.CreateConsumer(ctx, stream, config)
		created = err == nil
	}
	if errors.Is(err, jetstream.ErrConsumerExists) { // another instance was faster
		consumer, err = js.Consumer(ctx, stream, config.Durable)
	}
	return consumer, created, err
}

// errNoSpace says that the store has less left than a stream reserves.
var errNoSpace = errors.New("the server's store has not left what NOTIFIER_STREAM_MAX_BYTES and NOTIFIER_DLQ_MAX_BYTES " +
	"reserve together: lower them, or raise max_file_store and the account's max_store")

// Error codes of the server for a store that is too small.
const (
	errNoPeers          = jetstream.ErrorCode(10005) // for one of several reasons, in words
	errStorageExceeded  = jetstream.ErrorCode(10047)
	errAccountExceeded  = jetstream.ErrorCode(10002)
	insufficientStorage = "insufficient storage"
)

func noSpace(err error) bool {
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return refused && (refusal.ErrorCode == errStorageExceeded || refusal.ErrorCode == errAccountExceeded ||
		refusal.ErrorCode == errNoPeers && strings.Contains(refusal.Description, insufficientStorage))
}

// fit tells why a pull consumer cannot be used.
func fit(c jetstream.ConsumerConfig) error {
	if c.AckPolicy != jetstream.AckExplicitPolicy {
		return fmt.Errorf("consumer %q has acknowledgement policy %s, expected explicit", c.Durable, c.AckPolicy)
	}
	return nil
}

// warnOf says how a consumer differs from the settings.
func warnOf(c jetstream.ConsumerConfig, ackWait time.Duration, logger *slog.Logger) {
	for _, note := range remarks(c, ackWait) {
		logger.Warn("consumer differs from the settings", "consumer", c.Durable, "detail", note)
	}
}

// remarks lists what an operator should know of a consumer that exists.
func remarks(c jetstream.ConsumerConfig, ackWait time.Duration) []string {
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

// leaseOf is how long a message is a worker's: until the earliest redelivery.
func leaseOf(c jetstream.ConsumerConfig) time.Duration {
	lease := c.AckWait
	for _, wait := range c.BackOff {
		lease = min(lease, wait)
	}
	return lease
}
