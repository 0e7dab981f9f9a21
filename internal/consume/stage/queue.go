package stage

import "sync"

// Queue hands items to goroutines in the order of their arrival, until close.
type Queue[T any] struct {
	items   chan T
	working sync.WaitGroup
}

// NewQueue returns a queue with a number of places.
func NewQueue[T any](places int) *Queue[T] { return &Queue[T]{items: make(chan T, places)} }

// Start has n goroutines handle the items.
func (q *Queue[T]) Start(n int, handle func(T)) {
	for range n {
		q.working.Go(func() {
			for item := range q.items {
				handle(item)
			}
		})
	}
}

// Add waits for a place in the queue.
func (q *Queue[T]) Add(item T) { q.items <- item }

// Offer adds an item unless the queue is full, and reports whether it did.
func (q *Queue[T]) Offer(item T) bool {
	select {
	case q.items <- item:
		return true
	default:
		return false
	}
}

// Close waits until all items are handled. No item is added afterwards.
func (q *Queue[T]) Close() {
	close(q.items)
	q.working.Wait()
}
