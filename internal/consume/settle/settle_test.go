package settle_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/settle"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// delivered is a message.
type delivered struct {
	consumer string
	sequence uint64
	size     int
}

func (m delivered) Size() int        { return m.size }
func (m delivered) Consumer() string { return m.consumer }
func (m delivered) Sequence() uint64 { return m.sequence }
func (m delivered) Reply() string    { return fmt.Sprintf("%s.%d", m.consumer, m.sequence) }

func messages(consumer string, n int) (all []delivered) {
	for i := range n {
		all = append(all, delivered{consumer: consumer, sequence: uint64(i + 1)})
	}
	return all
}

// server is a connection to consumers. Those in leaderless do not answer: a request fails at once.
type server struct {
	mu           sync.Mutex
	leaderless   map[string]bool
	disconnected bool
	closed       bool
	reconnects   uint64
	onRequest    func()         // called in each request
	published    map[string]int // words, by consumer
	requests     map[string]int // by subject
}

func newServer(leaderless ...string) *server {
	s := &server{leaderless: make(map[string]bool), published: make(map[string]int), requests: make(map[string]int)}
	for _, consumer := range leaderless {
		s.leaderless[consumer] = true
	}
	return s
}

// set changes the server.
func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// elect gives a consumer a leader.
func (s *server) elect(consumer string) { s.set(func() { delete(s.leaderless, consumer) }) }

func (s *server) words(consumer string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.published[consumer]
}

func consumerOf(subject string) string {
	var consumer string
	for i := range subject {
		if subject[i] == '.' {
			consumer = subject[:i]
		}
	}
	return consumer
}

func (s *server) Publish(subject string, _ []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published[consumerOf(subject)]++
	return nil
}

func (s *server) RequestWithContext(ctx context.Context, subject string, _ []byte) (*nats.Msg, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	consumer := consumerOf(subject)
	s.published[consumer]++
	s.requests[subject]++
	if s.onRequest != nil {
		s.onRequest()
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case s.leaderless[consumer]:
		return nil, nats.ErrNoResponders
	}
	return &nats.Msg{}, nil
}

func (s *server) IsConnected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.disconnected && !s.closed
}

func (s *server) IsClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *server) Stats() nats.Statistics {
	s.mu.Lock()
	defer s.mu.Unlock()
	return nats.Statistics{Reconnects: s.reconnects}
}

// results counts the messages by consumer.
type results struct {
	mu                   sync.Mutex
	confirmed, abandoned map[string]int
	latest               []delivered // the latest batch
	failed               time.Time   // of the latest confirmation
}

func (r *results) add(counts *map[string]int, settled []delivered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *counts == nil {
		*counts = make(map[string]int)
	}
	r.latest = settled
	for _, m := range settled {
		(*counts)[m.consumer]++
	}
}

func (r *results) want(t *testing.T, confirmed, abandoned map[string]int) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	testkit.Check(t, maps.Equal(r.confirmed, confirmed) && maps.Equal(r.abandoned, abandoned),
		"got %v confirmed and %v abandoned, want %v and %v", r.confirmed, r.abandoned, confirmed, abandoned)
}

const patience = 2 * time.Minute

func start(s *server) (*settle.Settlers[delivered], *results) {
	r := &results{}
	return settle.New(settle.Options[delivered]{
		Conn: s, Patience: patience, Abandoned: func(m []delivered) { r.add(&r.abandoned, m) },
		Confirmed: func(m []delivered, failed time.Time) {
			r.add(&r.confirmed, m)
			r.set(failed)
		},
	}), r
}

func (r *results) set(failed time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = failed
}

func (r *results) failure() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// TestConsumerWithoutALeader settles messages of two consumers, one of which has no leader for a while. Its settler asks seldom and with one
// message, and repeats the batch when the consumer answers. The other consumer's messages are settled at once.
func TestConsumerWithoutALeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const batch, seconds = 1000, 100
		server := newServer("gone")
		settlers, results := start(server)
		began := time.Now()
		settlers.Acknowledge(messages("gone", batch)...)
		for i := range seconds {
			settlers.Acknowledge(messages("good", 3)...)
			results.want(t, map[string]int{"good": 3 * (i + 1)}, nil)
			time.Sleep(time.Second)
		}
		if words := server.words("gone"); words > batch+2*seconds {
			t.Errorf("words to the consumer without a leader in %d seconds: got %d, want at most %d", seconds, words, batch+2*seconds)
		}
		testkit.Equal(t, results.failure(), time.Time{}, "failures of the other consumer")

		before := server.words("gone")
		server.elect("gone")
		time.Sleep(2 * time.Second)
		results.want(t, map[string]int{"good": 3 * seconds, "gone": batch}, nil)
		testkit.Equal(t, server.words("gone"), before+1+batch, "words: a question and the batch")
		testkit.Check(t, !results.failure().Before(began), "time of the last failure: got none, want one")
		settlers.Close(t.Context())
	})
}

// TestBatchOfTwoConsumers hands over messages of two consumers at once. The confirmation of one consumer confirms no message of the other.
func TestBatchOfTwoConsumers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newServer("a")
		settlers, results := start(server)
		settlers.Acknowledge(delivered{"a", 1, 0}, delivered{"b", 2, 0}, delivered{"a", 3, 0}, delivered{"b", 4, 0})
		results.want(t, map[string]int{"b": 2}, nil)
		server.elect("a")
		settlers.Close(t.Context())
		results.want(t, map[string]int{"a": 2, "b": 2}, nil)
	})
}

// TestNoAnswerForLong abandons messages that a consumer does not confirm in time. It asks for later messages as seldom as before.
func TestNoAnswerForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newServer("a")
		settlers, results := start(server)
		settlers.Acknowledge(messages("a", 10)...)
		time.Sleep(patience + 2*time.Second)
		results.want(t, nil, map[string]int{"a": 10})
		before := server.words("a")
		settlers.Acknowledge(messages("a", 10)...)
		time.Sleep(10 * time.Second)
		words := server.words("a") - before
		testkit.Check(t, words <= 20, "words in 10 seconds: got %d, want at most 20", words)
		ended, end := context.WithCancel(t.Context())
		end()
		settlers.Close(ended)
		results.want(t, nil, map[string]int{"a": 20})
		settlers.Acknowledge(delivered{"a", 11, 0})
		results.want(t, nil, map[string]int{"a": 21})
	})
}

// TestHighestSequenceConfirms asks for the confirmation of the message with the highest sequence, wherever it stands in the batch. The messages
// keep the order of their deliveries, which their sizes show.
func TestHighestSequenceConfirms(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		settlers, results := start(server)
		settlers.Acknowledge(delivered{"a", 2, 1}, delivered{"a", 9, 1}, delivered{"a", 9, 2}, delivered{"a", 5, 1}, delivered{"a", 5, 2})
		settlers.Close(t.Context())
		results.want(t, map[string]int{"a": 5}, nil)
		testkit.EqualSlices(t, results.latest, []delivered{{"a", 2, 1}, {"a", 9, 1}, {"a", 5, 1}, {"a", 5, 2}, {"a", 9, 2}}, "settled messages")
		testkit.EqualSlices(t, slices.Collect(maps.Keys(server.requests)), []string{"a.9"}, "messages that were to be confirmed")
	})
}

// TestReconnectInABatch loses the connection in a batch, so that some acknowledgements may not have arrived. The batch is repeated.
func TestReconnectInABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		server.onRequest = func() {
			if server.reconnects++; server.reconnects == 1 {
				server.onRequest = nil
			}
		}
		settlers, results := start(server)
		settlers.Acknowledge(messages("a", 10)...)
		settlers.Close(t.Context())
		results.want(t, map[string]int{"a": 10}, nil)
		testkit.Equal(t, server.words("a"), 10+1+10, "words: the batch, a question, and the batch again")
	})
}

// TestConnectionLost asks nothing without a connection, and ends with it.
func TestConnectionLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newServer("a")
		settlers, results := start(server)
		settlers.Acknowledge(messages("a", 10)...)
		synctest.Wait()
		server.set(func() { server.disconnected = true })
		time.Sleep(time.Second)
		before := server.words("a")
		time.Sleep(10 * time.Second)
		testkit.Equal(t, server.words("a"), before, "words without a connection")
		server.set(func() { server.closed = true })
		settlers.Close(t.Context())
		results.want(t, nil, map[string]int{"a": 10})
	})
}

// TestAwaitSpace holds back whoever asks for more messages of a consumer that confirms nothing, while its messages are many or take many bytes.
// It holds back nobody else.
func TestAwaitSpace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ below, last []delivered }{
		"many messages": {messages("a", 8191), messages("a", 1)},
		"many bytes":    {[]delivered{{"a", 1, 12<<20 - 1}}, []delivered{{"a", 2, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := newServer("a")
				settlers, results := start(server)
				settlers.Acknowledge(messages("b", 1)...)
				settlers.Acknowledge(test.below...)
				testkit.NoError(t, settlers.AwaitSpace(t.Context(), "a"))
				settlers.Acknowledge(test.last...)
				for _, other := range []string{"b", "unknown"} {
					testkit.NoError(t, settlers.AwaitSpace(t.Context(), other))
				}
				waiting, stop := context.WithTimeout(t.Context(), time.Minute)
				testkit.Equal(t, settlers.AwaitSpace(waiting, "a"), context.DeadlineExceeded, "error while no message is settled")
				stop()
				server.elect("a")
				testkit.NoError(t, settlers.AwaitSpace(t.Context(), "a"))
				settlers.Close(t.Context())
				results.want(t, map[string]int{"a": len(test.below) + len(test.last), "b": 1}, nil)
			})
		})
	}
}
