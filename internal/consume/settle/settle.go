// Package settle tells JetStream what became of messages: it sends every acknowledgement, nak, termination and extension of a lease. The
// package speaks the protocol itself, since nats.go acknowledges a message once, and an acknowledgement whose confirmation was lost has to be
// repeated.
//
// Each consumer has a settler of its own, because each has a queue of its own in the server and, in a cluster, a leader of its own. A settler
// acknowledges a batch of messages, and the consumer's confirmation of the last message confirms the whole batch. While a consumer confirms nothing,
// because it was deleted or has no leader, its settler asks with one message, after growing pauses, and settlers of other consumers go on.
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

// Conn is what the package needs of a connection to NATS: of a *nats.Conn.
type Conn interface {
	Publish(subject string, data []byte) error
	RequestWithContext(ctx context.Context, subject string, data []byte) (*nats.Msg, error)
	IsConnected() bool
	IsClosed() bool
	Stats() nats.Statistics
}

// Message is a message that a consumer has delivered.
type Message interface {
	Consumer() string // the consumer's name, which no other consumer of the worker has
	Reply() string    // the subject of acknowledgements of the message
	Sequence() uint64 // in the stream
	Size() int        // bytes that the message takes in memory, about
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

// request sends a word about a message and waits for the consumer's confirmation.
func request(ctx context.Context, conn Conn, m Message, word []byte) error {
	if _, err := conn.RequestWithContext(ctx, m.Reply(), word); err != nil {
		return fmt.Errorf("settling message %d of consumer %q: %w", m.Sequence(), m.Consumer(), err)
	}
	return nil
}

// Options are what [New] needs.
type Options[M Message] struct {
	Conn     Conn
	Patience time.Duration // how long a consumer has to confirm the acknowledgement of a message before the message is abandoned

	// Confirmed is called with messages whose acknowledgements the consumer has confirmed, and with the time of the consumer's latest failure to
	// confirm something, zero if there was none. Messages that were handed over before may have been delivered again meanwhile: the consumer may
	// have been deleted and made anew.
	Confirmed func(messages []M, failed time.Time)

	// Abandoned is called with messages that are left to the server's redelivery.
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

// New makes the settlers. Close ends them.
func New[M Message](o Options[M]) *Settlers[M] {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:gosec // Close cancels it
	return &Settlers[M]{o: o, ctx: ctx, cancel: cancel, closing: make(chan struct{}), byConsumer: make(map[string]*settler[M])}
}

// Acknowledge hands over messages to be acknowledged, and with them their slice. It never waits for a consumer.
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
		own.add(messages[:n])
		messages = messages[n:]
	}
}

// AwaitSpace waits while too many messages of a consumer, or too many bytes, wait for their acknowledgement, so that nobody asks the consumer for more. The error is the
// cause of the end of the context.
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
