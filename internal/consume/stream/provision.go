package stream

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

// Names are the stream and consumer that a worker uses, and the streams that it writes.
type Names struct {
	Stream   string
	Subject  string // producers publish events on it and on all subjects below it
	Consumer string
	MaxBytes int64         // of the stream; 0 for no bound
	MaxAge   time.Duration // of an event in the stream; 0 for no bound

	RoomStream  string
	LongestWait time.Duration // longest wait of a message in the room, for a slot or for the end of flapping; 0: none waits so

	DeadLetterStream  string
	DeadLetterSubject string // dead letters go to <subject>.<reason>.<first level of the category>
	DeadLetters       DeadLetterBounds

	Journal journal.Names // where the journal is; an Age of 0 means that there is none

	Replicas int // replicas of every stream and consumer: 1, 3 or 5; 0: three in a cluster of at least three servers, otherwise one
}

// DeadLetterBounds are the bounds of the dead-letter stream. Newer dead letters push out older ones.
type DeadLetterBounds struct {
	PerSubject int
	Bytes      int64         // bytes of the stream; 0 for no bound
	Age        time.Duration // 0 for no bound
}

// Room returns the subjects of the room.
func (n Names) Room() room.Subjects { return room.Under(n.Subject) }

// roomConsumer returns the name of the consumer that takes due schedules, the parts of split bodies, and replays.
func (n Names) roomConsumer() string { return n.Consumer + "-room" }

// ChannelConsumer returns the name of the consumer that takes the events in one channel's queue.
func (n Names) ChannelConsumer(token string) string { return n.Consumer + "-channel-" + token }

// waitingConsumer returns the name of the consumer that counts the schedules of a reason.
func (n Names) waitingConsumer(reason room.Reason) string {
	return n.Consumer + "-waiting-" + string(reason)
}

// MaxAckPending bounds the unacknowledged messages of all instances together, including messages that wait after a nak with a delay.
const MaxAckPending = 20_000

// duplicateWindow is how long the room and the dead-letter stream recognise a message that is stored again.
const duplicateWindow = time.Hour

// StreamConfig returns the provisioned configuration of the producers' stream. Publishers are not trusted: they may neither schedule
// messages nor roll up other messages. A full stream refuses their messages.
func (n Names) StreamConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:      n.Stream,
		Subjects:  n.Subjects(),
		Retention: jetstream.WorkQueuePolicy,
		Storage:   jetstream.FileStorage,
		Discard:   jetstream.DiscardNew,
		MaxBytes:  n.MaxBytes,
		MaxAge:    n.MaxAge,
		DenyPurge: true,
	}
}

// Subjects returns the subjects on which producers publish events.
func (n Names) Subjects() []string { return []string{n.Subject, n.Subject + ".>"} }

// DeadLetterConfig returns the provisioned configuration of the dead-letter stream. If a subject or the stream is full, the server refuses
// letters; otherwise it would push out anybody's oldest letter uncounted. The workers make room (package deadletters).
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
	config.DiscardNewPerSubject = config.MaxMsgsPerSubject > 0
	if n.DeadLetters.Age > 0 {
		config.Duplicates = min(duplicateWindow, n.DeadLetters.Age)
	}
	return config
}

// ConsumerConfig returns the provisioned configuration of the consumer. A filter slows delivery by a third, so it has one only if it needs one.
func (n Names) ConsumerConfig(ackWait time.Duration, streamSubjects []string) jetstream.ConsumerConfig {
	config := jetstream.ConsumerConfig{
		Durable:       n.Consumer,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       ackWait,
		MaxDeliver:    -1,
		MaxAckPending: MaxAckPending,
	}
	own := n.Subjects()
	for _, subject := range streamSubjects {
		if !slices.Contains(own, subject) {
			config.FilterSubjects = own
		}
	}
	return config
}

// Layout holds the streams and consumers as a search found or created them.
type Layout struct {
	Stream   jetstream.Stream
	Consumer jetstream.Consumer
	Created  time.Time // when the consumer was created, by the server's clock
	Room     *Room
}

// AckWait returns how long a message belongs to the worker that received it, whichever consumer delivered it: until the earliest redelivery.
func (l Layout) AckWait() time.Duration { return l.Room.ackWait }

// outlasts returns an error if a consumer may deliver an event again during a post of this duration.
func outlasts(config jetstream.ConsumerConfig, post time.Duration) error {
	if wait := leaseOf(config); wait <= post {
		return fmt.Errorf("%w: consumer %q has an acknowledgement wait of %v, and one post may take %v; notifier provision sets NOTIFIER_NATS_ACK_WAIT", ErrUnfit, config.Durable, wait, post)
	}
	return nil
}

// MaxAge returns how long the producers' stream keeps a message; 0 means that it keeps all.
func (l Layout) MaxAge() time.Duration { return l.Stream.CachedInfo().Config.MaxAge }

// APITimeout bounds one request to the JetStream API. A denied request takes that long.
const APITimeout = 5 * time.Second

// ErrUnfit means that an existing stream cannot be used as it is configured or that the server is too old.
var ErrUnfit = errors.New("nats is not fit for use")

// withHint adds a likely cause to an error that names none.
func withHint(err error) error {
	if LacksJetStream(err) {
		return fmt.Errorf("%w (is JetStream enabled for this account? a server turns it off when its disk is full)", err)
	}
	return err
}

// LacksJetStream reports whether the server or the account has no JetStream. A cluster without a leader answers in the same way.
func LacksJetStream(err error) bool {
	return errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) || errors.Is(err, nats.ErrNoResponders)
}

// search finds the streams and consumers of a worker, and never changes an existing one. Without Options.Provision it creates only consumers of an
// existing room.
func (c *Client) search(ctx context.Context) (Layout, error) {
	conn := c.JetStream.Conn()
	if err := requirements.NATS().Check(conn.ConnectedServerVersion(), conn.ConnectedAddr()); err != nil {
		return Layout{}, fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	at, err := c.events(ctx)
	if err != nil {
		return Layout{}, err
	}
	if at.Room, err = c.room(ctx, leaseOf(at.Consumer.CachedInfo().Config)); err != nil {
		return Layout{}, err
	}
	if c.options.Provision {
		_, err := c.stream(ctx, c.Names.DeadLetterConfig())
		if errors.Is(err, errNoSpace) {
			return Layout{}, err
		}
		if err != nil {
			c.options.Logger.Warn("cannot verify the dead-letter stream", "error", err)
		}
	}
	return at, nil
}

func (c *Client) events(ctx context.Context) (Layout, error) {
	n := c.Names
	var consumer jetstream.Consumer
	stream, err := c.stream(ctx, n.StreamConfig())
	if err == nil {
		consumer, err = c.ensure(ctx, n.Stream, n.ConsumerConfig(c.options.AckWait, stream.CachedInfo().Config.Subjects))
	}
	if err != nil {
		return Layout{}, fmt.Errorf("looking for consumer %q of stream %q: %w", n.Consumer, n.Stream, err)
	}
	if err := cmp.Or(n.fitStream(stream.CachedInfo().Config), n.fitConsumer(consumer.CachedInfo().Config)); err != nil {
		return Layout{}, err
	}
	return Layout{Stream: stream, Consumer: consumer, Created: consumer.CachedInfo().Created}, nil
}

func (n Names) fitStream(c jetstream.StreamConfig) error {
	const harm = "so each of its publishers can delete and forge the events of others"
	switch {
	case c.Retention != jetstream.WorkQueuePolicy:
		return fmt.Errorf("%w: stream %q has retention %s, expected workqueue; that cannot be changed: make the stream anew", ErrUnfit, n.Stream, c.Retention)
	case c.AllowMsgSchedules:
		return fmt.Errorf("%w: stream %q allows message schedules (allow_msg_schedules), %s; that cannot be undone: make the stream anew", ErrUnfit, n.Stream, harm)
	case c.AllowRollup:
		return fmt.Errorf("%w: stream %q allows roll-ups (allow_rollup_hdrs), %s; turn them off", ErrUnfit, n.Stream, harm)
	}
	return nil
}

func (n Names) fitRoom(c jetstream.StreamConfig) error {
	switch {
	case c.Retention != jetstream.WorkQueuePolicy:
		return fmt.Errorf("%w: stream %q has retention %s, expected workqueue", ErrUnfit, n.RoomStream, c.Retention)
	case !c.AllowMsgSchedules:
		return fmt.Errorf("%w: stream %q does not allow message schedules (allow_msg_schedules)", ErrUnfit, n.RoomStream)
	case c.MaxAge > 0 && c.MaxAge < n.LongestWait:
		return fmt.Errorf("%w: stream %q keeps messages for %v, and a message may wait for %v", ErrUnfit, n.RoomStream, c.MaxAge, n.LongestWait)
	case !slices.Contains(c.Subjects, n.Room().All()):
		return fmt.Errorf("%w: stream %q lacks the subject %s", ErrUnfit, n.RoomStream, n.Room().All())
	}
	return nil
}

// fitConsumer rejects a consumer that leaves out events: workers remove messages below its position as acknowledged.
func (n Names) fitConsumer(c jetstream.ConsumerConfig) error {
	if !Takes(c, n.Subjects()) {
		return otherFilter(c, n.Subjects())
	}
	return fitRequests(c, correctable)
}

func (n Names) fitRoomConsumer(c jetstream.ConsumerConfig) error {
	if ready := slices.Sorted(slices.Values(n.Room().Ready())); !slices.Equal(filtersOf(c), ready) {
		return otherFilter(c, ready)
	}
	return fitRequests(c, correctable)
}

// fitQueue rejects the consumer of a channel's queue that refuses requests of workers, and warns of other settings. Workers create this consumer,
// and provision does not know it.
func (n Names) fitQueue(info *jetstream.ConsumerInfo, lease time.Duration) error {
	remedy := fmt.Sprintf("nats consumer rm %s %s: a worker recreates it", n.RoomStream, info.Name)
	return cmp.Or(fitRequests(info.Config, remedy), remarks(info, n.ChannelConsumerConfig("", lease)))
}

const correctable = "notifier provision corrects it"

// fitRequests rejects a consumer that refuses requests of workers, or leaves out the bodies of messages.
func fitRequests(c jetstream.ConsumerConfig, remedy string) error {
	var harm string
	switch {
	case c.HeadersOnly:
		harm = "delivers messages without their bodies (headers_only)"
	case c.MaxRequestBatch > 0, c.MaxRequestMaxBytes > 0, c.MaxRequestExpires > 0:
		harm = "refuses requests of workers that exceed its max_batch, max_bytes or max_expires"
	case len(c.PriorityGroups) > 0:
		harm = "refuses requests without a priority group (priority_groups)"
	default:
		return nil
	}
	return fmt.Errorf("%w: consumer %q %s; %s", ErrUnfit, c.Durable, harm, remedy)
}

func otherFilter(c jetstream.ConsumerConfig, expected []string) error {
	return fmt.Errorf("%w: consumer %q takes %s, expected the filter %s; %s",
		ErrUnfit, c.Durable, cmp.Or(strings.Join(filtersOf(c), ", "), "everything"), strings.Join(expected, ", "), correctable)
}

// Takes reports whether a consumer's filter includes the messages on all these subjects. No subjects mean all messages.
func Takes(c jetstream.ConsumerConfig, subjects []string) bool {
	filters := filtersOf(c)
	isLeftOut := func(subject string) bool { return !slices.Contains(filters, subject) }
	return len(filters) == 0 || len(subjects) > 0 && !slices.ContainsFunc(subjects, isLeftOut)
}

// stream finds a stream. If it is absent, stream creates it if the options allow that. A stream that existed before was deleted.
func (c *Client) stream(ctx context.Context, config jetstream.StreamConfig) (jetstream.Stream, error) {
	if !c.options.Provision {
		return c.JetStream.Stream(ctx, config.Name)
	}
	if c.Layout() != nil {
		if err := replicas.AwaitDeletion(ctx, c.JetStream, config.Name); err != nil {
			return nil, err
		}
	}
	return c.Names.ensureStream(ctx, c.JetStream, config, c.options.Logger)
}

func (n Names) ensureStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, logger *slog.Logger) (jetstream.Stream, error) {
	stream, created, err := replicas.EnsureStream(ctx, js, config, n.Replicas)
	switch {
	case noSpace(err):
		return nil, fmt.Errorf("stream %q with %d bytes: %w: %w", config.Name, config.MaxBytes, errNoSpace, err)
	case created > 0:
		logger.Info("created the stream", "stream", config.Name, "replicas", created)
	}
	return stream, err
}

// ensure finds a consumer. If it is absent, ensure creates it if the options allow that.
func (c *Client) ensure(ctx context.Context, stream string, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if !c.options.Provision {
		return c.JetStream.Consumer(ctx, stream, config.Durable)
	}
	consumer, created, err := ensureConsumer(ctx, c.JetStream, stream, config)
	if created {
		c.options.Logger.Info("created the consumer", "stream", stream, "consumer", config.Durable)
	}
	return consumer, err
}

// ensureConsumer finds a consumer or creates it, and reports whether it created it.
func ensureConsumer(
	ctx context.Context, js jetstream.JetStream, stream string, config jetstream.ConsumerConfig,
) (consumer jetstream.Consumer, created bool, err error) {
	consumer, err = js.Consumer(ctx, stream, config.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		consumer, err = js.CreateConsumer(ctx, stream, config)
		created = err == nil
	}
	if errors.Is(err, jetstream.ErrConsumerExists) { // another instance was faster
		consumer, err = js.Consumer(ctx, stream, config.Durable)
	}
	return consumer, created, err
}

// errNoSpace means that the store has less free space than a stream reserves.
var errNoSpace = errors.New("the server's store has not left what NOTIFIER_STREAM_MAX_BYTES, NOTIFIER_DLQ_MAX_BYTES and " +
	"NOTIFIER_JOURNAL_MAX_BYTES reserve together: lower them, or raise max_file_store and the account's max_store")

// Error codes of the server for a store that is too small.
const (
	errNoPeers          = jetstream.ErrorCode(10005) // for several reasons, given in the description
	errStorageExceeded  = jetstream.ErrorCode(10047)
	errAccountExceeded  = jetstream.ErrorCode(10002)
	insufficientStorage = "insufficient storage"
)

func noSpace(err error) bool {
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return refused && (refusal.ErrorCode == errStorageExceeded || refusal.ErrorCode == errAccountExceeded ||
		refusal.ErrorCode == errNoPeers && strings.Contains(refusal.Description, insufficientStorage))
}

// leaseOf returns how long a message belongs to a worker: until the earliest redelivery.
func leaseOf(c jetstream.ConsumerConfig) time.Duration {
	lease := c.AckWait
	for _, wait := range c.BackOff {
		lease = min(lease, wait)
	}
	return lease
}
