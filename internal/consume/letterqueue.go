package consume

import (
	"context"
	"sync/atomic"

	"github.com/seed-4578ace9/notifier/internal/event"
)

const (
	// letterBytes bounds the messages in the queue and under way: they leave half of the worker's hand to other messages.
	letterBytes = mostInHand / 2
	// lettersAtOnce is how many letters are stored at once.
	lettersAtOnce = 32
)

// letterQueue stores dead letters. While their stream does not answer, the queue fills, and further messages are returned to their streams:
// nobody waits for the queue. Its methods may be called concurrently.
type letterQueue struct {
	settler *settler
	queue   *queue[letter]
	bytes   atomic.Int64 // of the messages in the queue and under way
}

type letter struct {
	*message
	event event.Event
	fault *event.Fault
}

// newLetterQueue returns a queue that has a place for every letter that its bytes admit.
func newLetterQueue(s *settler) *letterQueue {
	return &letterQueue{settler: s, queue: newQueue[letter](letterBytes/messageBytes + 1)}
}

// start begins to store letters. The context ends requests.
func (q *letterQueue) start(ctx context.Context) {
	q.queue.start(lettersAtOnce, func(l letter) { q.store(ctx, l) })
}

// close waits until all letters are stored or returned to their streams. No letter is added afterwards.
func (q *letterQueue) close() { q.queue.close() }

// add queues a letter or returns its message to its stream if the queue is full. A message larger than the bound is queued alone.
func (q *letterQueue) add(l letter) {
	size := int64(l.Size())
	if bytes := q.bytes.Add(size); bytes > letterBytes && bytes > size {
		q.bytes.Add(-size)
		q.settler.nak(l.message, jitter(misconfiguredBackoff))
		return
	}
	q.queue.items <- l
}

func (q *letterQueue) store(ctx context.Context, l letter) {
	defer q.bytes.Add(-int64(l.Size()))
	switch {
	case l.lease.left() <= 0: // JetStream delivers it again
		l.leaveHand()
	case q.settler.storeLetter(ctx, l.message, l.event, l.fault):
		q.settler.terminate(l.message, l.fault, nil)
	default:
		q.settler.nak(l.message, jitter(misconfiguredBackoff))
	}
}
