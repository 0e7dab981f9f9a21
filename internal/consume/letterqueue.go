package consume

import (
	"context"
	"sync"

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
	queue   *handQueue[letter] // with the letters under way
	storing sync.WaitGroup
}

// letter is a message that is to be stored as a dead letter.
type letter struct {
	*message
	event event.Event
	fault *event.Fault
}

func newLetterQueue(s *settler) *letterQueue {
	return &letterQueue{settler: s, queue: newHandQueue[letter](letterBytes)}
}

// start begins to store letters, until close. The context ends requests.
func (q *letterQueue) start(ctx context.Context) {
	for range lettersAtOnce {
		q.storing.Go(func() {
			for l := range q.queue.items {
				q.store(ctx, l)
			}
		})
	}
}

// close waits until every letter is stored, or its message is returned to its stream.
func (q *letterQueue) close() {
	close(q.queue.items)
	q.storing.Wait()
}

// add queues a letter, or returns its message to its stream if the queue is full.
func (q *letterQueue) add(l letter) {
	if !q.queue.take(l.message) {
		q.settler.nak(l.message, jitter(misconfiguredBackoff))
		return
	}
	q.queue.items <- l
}

func (q *letterQueue) store(ctx context.Context, l letter) {
	defer q.queue.free(l.message)
	if l.lease.left() <= 0 { // JetStream delivers it again
		l.leaveHand()
		return
	}
	q.settler.deadLetter(ctx, l.message, l.event, l.fault)
}
