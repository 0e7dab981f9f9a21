// Package settle sends JetStream every acknowledgement, nak, termination and lease extension. It speaks the protocol itself: nats.go
// acknowledges a message only once, but an acknowledgement with a lost confirmation has to be repeated.
//
// Each consumer has its own settler, because it has its own queue in the server and, in a cluster, its own leader. A settler acknowledges a
// batch of messages, and the consumer's confirmation of the last message confirms the whole batch. A consumer that was deleted or has no
// leader confirms nothing. Its settler then probes with one message after growing pauses, and the settlers of other consumers continue.
package settle

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Conn is the part of a NATS connection that the package uses: of a *nats.Conn.
type Conn interface {
	Publish(subject string, data []byte) error
	RequestWithContext(ctx context.Context, subject string, data []byte) (*nats.Msg, error)
	IsConnected() bool
	IsClosed() bool
	Stats() nats.Statistics
}

// Message is a message that a consumer has delivered.
type Message interface {
	Consumer() string // the consumer's name, unique within the worker
	Reply() string    // the subject for acknowledgements of the message
	Sequence() uint64 // the message's sequence in the stream
	Size() int        // approximate bytes of the message in memory
}

// ConfirmTimeout bounds the wait for one confirmation.
const ConfirmTimeout = 2 * time.Second

// Replies to the delivery of a message in JetStream's protocol.
var (
	acknowledged = []byte("+ACK")
	inProgress   = []byte("+WPI")
)

// Nak returns a message to JetStream, which delivers it again after the delay.
func Nak(conn Conn, m Message, delay time.Duration) error {
	word := "-NAK"
	if delay > 0 {
		word += ` {"delay": ` + strconv.FormatInt(delay.Nanoseconds(), 10) + `}`
	}
	return conn.Publish(m.Reply(), []byte(word))
}

// Terminate ends a message for a reason, and waits for the consumer's confirmation for at most ConfirmTimeout.
func Terminate(conn Conn, m Message, reason string) error {
	ctx, cancel := context.WithTimeout(context.Background(), ConfirmTimeout)
	defer cancel()
	return request(ctx, conn, m, []byte("+TERM "+reason))
}

// Extend renews the lease on a message, and waits for the consumer's confirmation.
func Extend(ctx context.Context, conn Conn, m Message) error {
	return request(ctx, conn, m, inProgress)
}

// request sends a reply to a message's delivery and waits for the consumer's confirmation.
func request(ctx context.Context, conn Conn, m Message, word []byte) error {
	if _, err := conn.RequestWithContext(ctx, m.Reply(), word); err != nil {
		return fmt.Errorf("settling message %d of consumer %q: %w", m.Sequence(), m.Consumer(), err)
	}
	return nil
}

// Options configure [New].
type Options[M Message] struct {
	Conn     Conn
	Patience time.Duration // how long a consumer may take to confirm an acknowledgement before the message is abandoned

	// Confirmed is called with messages whose acknowledgements the consumer has confirmed, and with the time of its latest failure to
	// confirm; zero: none. Messages handed over before may have been redelivered: the consumer may have been recreated.
	Confirmed func(messages []M, failed time.Time)

	// Abandoned is called with messages that are left for the server to redeliver.
	Abandoned func(messages []M)
}

// Settlers are the settlers of all consumers.
type Settlers[M Message] struct {
	o       Options[M]
	ctx     context.Context
	cancel  context.CancelFunc
	closing chan struct{}
	running sync.WaitGroup

	mu         sync.Mutex
	byConsumer map[string]*settler[M]
	closed     bool
}

// New creates the settlers. Close ends them.
func New[M Message](o Options[M]) *Settlers[M] {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:gosec // Close cancels it
	return &Settlers[M]{o: o, ctx: ctx, cancel: cancel, closing: make(chan struct{}), byConsumer: make(map[string]*settler[M])}
}

// Acknowledge queues messages for acknowledgement, and takes over their slice. It never waits for a consumer.
func (s *Settlers[M]) Acknowledge(messages ...M) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.o.Abandoned(messages)
		return
	}
	for len(messages) > 0 {
		consumer, n := messages[0].Consumer(), len(messages)
		if other := slices.IndexFunc(messages, func(m M) bool { return m.Consumer() != consumer }); other > 0 {
			n = other
		}
		own := s.byConsumer[consumer]
		if own == nil {
			own = newSettler(s.o)
			s.byConsumer[consumer] = own
			s.running.Go(func() { own.run(s.ctx, s.closing) })
		}
		own.add(messages[:n:n]) // the settler may append to it
		messages = messages[n:]
	}
}

// AwaitSpace waits while too many messages or bytes of a consumer wait for acknowledgement, so that the caller requests no more messages.
// The error is the cause of the end of the context.
func (s *Settlers[M]) AwaitSpace(ctx context.Context, consumer string) error {
	s.mu.Lock()
	own := s.byConsumer[consumer]
	s.mu.Unlock()
	if own == nil {
		return nil
	}
	return own.awaitSpace(ctx)
}

// Close waits until all messages are acknowledged or abandoned. It abandons the rest when the context ends.
func (s *Settlers[M]) Close(ctx context.Context) {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	defer s.cancel()
	defer context.AfterFunc(ctx, s.cancel)()
	s.running.Wait()
}
