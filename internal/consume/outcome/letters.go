package outcome

import (
	"context"
	"sync/atomic"

	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/event"
)

const (
	// LetterBytes bounds the messages in the queue and under way: they leave half of the worker's hand to other messages.
	LetterBytes = received.MostInHand / 2
	// lettersAtOnce is how many letters are stored at once.
	lettersAtOnce = 32
)

// Letters stores dead letters. While their stream does not answer, the queue fills, and further messages are returned to their streams:
// nobody waits for the queue. Its methods may be called concurrently.
type Letters struct {
	settler *Settler
	queue   *stage.Queue[Letter]
	bytes   atomic.Int64 // of the messages in the queue and under way
}

// Letter is a message that is to become a dead letter.
type Letter struct {
	Message *received.Message
	Event   event.Event
	Fault   *event.Fault
}

// NewLetters returns a queue that has a place for every letter that its bytes admit.
func NewLetters(s *Settler) *Letters {
	return &Letters{settler: s, queue: stage.NewQueue[Letter](LetterBytes/received.MessageBytes + 1)}
}

// Start begins to store letters. The context ends requests.
func (q *Letters) Start(ctx context.Context) {
	q.queue.Start(lettersAtOnce, func(l Letter) { q.store(ctx, l) })
}

// Close waits until all letters are stored or returned to their streams. No letter is added afterwards.
func (q *Letters) Close() { q.queue.Close() }

// Add queues a letter or returns its message to its stream if the queue is full. A message larger than the bound is queued alone.
func (q *Letters) Add(l Letter) {
	size := int64(l.Message.Size())
	if bytes := q.bytes.Add(size); bytes > LetterBytes && bytes > size {
		q.bytes.Add(-size)
		q.settler.Nak(l.Message, stage.Jitter(stage.MisconfiguredBackoff))
		return
	}
	q.queue.Add(l)
}

func (q *Letters) store(ctx context.Context, l Letter) {
	defer q.bytes.Add(-int64(l.Message.Size()))
	switch {
	case l.Message.Lease.Left() <= 0: // JetStream delivers it again
		l.Message.LeaveHand()
	case q.settler.StoreLetter(ctx, l.Message, l.Event, l.Fault):
		q.settler.Terminate(l.Message, l.Fault, nil)
	default:
		q.settler.Nak(l.Message, stage.Jitter(stage.MisconfiguredBackoff))
	}
}
