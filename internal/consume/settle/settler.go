package settle

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/seed-4578ace9/notifier/internal/await"
)

// Bounds of one consumer's messages: the largest batch of acknowledgements, and the backlog at which pullers wait.
const (
	mostAtOnce  = 4096
	mostWaiting = 2 * mostAtOnce
	mostBytes   = 12 << 20 // bytes of the backlog: what a busy server takes to confirm must not slow the pulling of large bodies
)

// Pauses between two probes of a consumer that confirms nothing.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

// connectedPoll is how often a settler without a connection checks whether the connection is there again.
const connectedPoll = 20 * time.Millisecond

type settler[M Message] struct {
	o       Options[M]
	pauses  *backoff.ExponentialBackOff
	failing bool          // the consumer did not confirm the latest attempt
	failed  time.Time     // when an attempt last failed
	wake    chan struct{} // has an element when messages were added

	mu      sync.Mutex
	waiting []handed[M]
	backlog int           // messages that are queued or being acknowledged
	bytes   int           // of the backlog
	freed   chan struct{} // closed and replaced when the backlog shrinks
}

type handed[M Message] struct {
	messages []M
	bytes    int
	at       time.Time
}

func newSettler[M Message](o Options[M]) *settler[M] {
	return &settler[M]{
		o: o, wake: make(chan struct{}, 1), freed: make(chan struct{}),
		pauses: &backoff.ExponentialBackOff{
			InitialInterval: firstPause, RandomizationFactor: 0.25, Multiplier: 2, MaxInterval: longestPause,
		},
	}
}

func (s *settler[M]) add(messages []M) {
	bytes := 0
	for _, m := range messages {
		bytes += m.Size()
	}
	s.mu.Lock()
	s.waiting = append(s.waiting, handed[M]{messages, bytes, time.Now()})
	s.backlog += len(messages)
	s.bytes += bytes
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *settler[M]) awaitSpace(ctx context.Context) error {
	for {
		s.mu.Lock()
		full, freed := s.backlog >= mostWaiting || s.bytes >= mostBytes, s.freed
		s.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// run acknowledges queued messages until closing is closed and the queue is empty. If the context ends, run abandons the queued messages.
func (s *settler[M]) run(ctx context.Context, closing <-chan struct{}) {
	for {
		batch, bytes, since := s.next()
		n := len(batch) // the receiver owns the batch
		switch {
		case len(batch) == 0:
			if !s.awaitMore(closing) {
				return
			}
			continue
		case s.acknowledge(ctx, batch, since.Add(s.o.Patience)):
			s.o.Confirmed(batch, s.failed)
		default:
			s.o.Abandoned(batch)
		}
		s.mu.Lock()
		s.backlog -= n
		s.bytes -= bytes
		close(s.freed)
		s.freed = make(chan struct{})
		s.mu.Unlock()
	}
}

// awaitMore waits for more messages. It returns false if there will be none.
func (s *settler[M]) awaitMore(closing <-chan struct{}) bool {
	select {
	case <-s.wake:
		return true
	case <-closing:
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.waiting) > 0
	}
}

// next takes a batch from the queue, and returns its bytes, and when its first message was handed over.
func (s *settler[M]) next() (batch []M, bytes int, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return nil, 0, time.Time{}
	}
	taken, n := 0, 0
	for ; taken < len(s.waiting) && n < mostAtOnce; taken++ {
		n += len(s.waiting[taken].messages)
		bytes += s.waiting[taken].bytes
	}
	batch, since = s.waiting[0].messages, s.waiting[0].at
	if taken > 1 {
		batch = make([]M, 0, n)
		for _, more := range s.waiting[:taken] {
			batch = append(batch, more.messages...)
		}
	}
	s.waiting = slices.Delete(s.waiting, 0, taken)
	return batch, bytes, since
}

// acknowledge acknowledges a batch, and repeats that until the consumer confirms it or the time is over. Acknowledgements sent on a lost
// connection may not have arrived, so a batch has to be confirmed on the connection that sent it.
func (s *settler[M]) acknowledge(ctx context.Context, batch []M, until time.Time) bool {
	last := putHighestLast(batch)
	for first := true; first || time.Now().Before(until); first = false {
		if s.failing && !s.rest(ctx, until) {
			return false
		}
		// While the consumer confirms nothing, one message is enough to ask.
		if (!s.failing || s.confirms(ctx, last)) && s.send(ctx, batch) {
			s.failing = false
			s.pauses.Reset()
			return true
		}
		s.failing, s.failed = true, time.Now()
	}
	return false
}

// putHighestLast moves the message with the highest sequence to the end of a batch and returns it. The others keep their order, so that a message
// that was delivered twice is settled in the order of its deliveries. A recreated consumer ignores the acknowledgement of a message that it has
// not delivered yet. If it confirms the highest sequence, it has not ignored any other message.
func putHighestLast[M Message](batch []M) M {
	highest := 0
	for i := range batch {
		if batch[i].Sequence() >= batch[highest].Sequence() {
			highest = i
		}
	}
	last := batch[highest]
	copy(batch[highest:], batch[highest+1:])
	batch[len(batch)-1] = last
	return last
}

func (s *settler[M]) send(ctx context.Context, batch []M) bool {
	connection := s.o.Conn.Stats().Reconnects
	end := len(batch) - 1
	for _, m := range batch[:end] {
		_ = s.o.Conn.Publish(m.Reply(), acknowledged) // a failure shows in the confirmation
	}
	return s.confirms(ctx, batch[end]) && s.o.Conn.Stats().Reconnects == connection
}

func (s *settler[M]) confirms(ctx context.Context, m M) bool {
	ctx, cancel := context.WithTimeout(ctx, ConfirmTimeout)
	defer cancel()
	return request(ctx, s.o.Conn, m, acknowledged) == nil
}

// rest waits until the connection is there, and then for a pause. It returns false if the settler has to give up.
func (s *settler[M]) rest(ctx context.Context, until time.Time) bool {
	for !s.o.Conn.IsConnected() {
		s.pauses.Reset()
		if s.o.Conn.IsClosed() || time.Now().After(until) || !await.For(ctx, connectedPoll) {
			return false
		}
	}
	return await.For(ctx, s.pauses.NextBackOff())
}
