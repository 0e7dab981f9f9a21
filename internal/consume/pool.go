package consume

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// poolSize is how many decided messages a worker holds at most, beside its concurrent deliveries: one full batch.
const poolSize = store.MaxBatch

// pool bounds the messages between decision and settlement: each of them holds an element. It also runs tasks in reused goroutines.
type pool struct {
	elements chan struct{} // has an element for each message that holds one
	tasks    chan func()   // feeds idle goroutines
	working  sync.WaitGroup
}

func newPool(concurrency int) *pool {
	return &pool{elements: make(chan struct{}, poolSize+concurrency), tasks: make(chan func())}
}

// acquire takes free elements, up to the number wanted, when there are enough to be worth a request. If the context ends first, it takes none.
func (p *pool) acquire(ctx context.Context, wanted int) int {
	enough := min(wanted, poolSize/4)
	for n := range wanted {
		if n < enough {
			select {
			case p.elements <- struct{}{}:
				continue
			case <-ctx.Done():
				p.release(n)
				return 0
			}
		}
		select {
		case p.elements <- struct{}{}:
		default:
			return n
		}
	}
	return wanted
}

func (p *pool) release(n int) {
	for range n {
		<-p.elements
	}
}

// held is acquired elements that are released once. Its methods may be called again and concurrently. A nil held has no elements.
type held struct {
	pool     *pool
	n        int
	released atomic.Bool
}

func (p *pool) hold(n int) *held { return &held{pool: p, n: n} }

func (h *held) release() {
	if h != nil && !h.released.Swap(true) {
		h.pool.release(h.n)
	}
}

// whileRoomAnswers releases the elements when the returned function is called, or when the room does not answer: other events need them then.
func (h *held) whileRoomAnswers() (end func()) {
	patience := time.AfterFunc(roomPatience, h.release)
	return func() {
		patience.Stop()
		h.release()
	}
}

// queue hands items to goroutines in the order of their arrival, until close.
type queue[T any] struct {
	items   chan T
	working sync.WaitGroup
}

func newQueue[T any](places int) *queue[T] { return &queue[T]{items: make(chan T, places)} }

// start has n goroutines handle the items.
func (q *queue[T]) start(n int, handle func(T)) {
	for range n {
		q.working.Go(func() {
			for item := range q.items {
				handle(item)
			}
		})
	}
}

// close waits until all items are handled. No item is added afterwards.
func (q *queue[T]) close() {
	close(q.items)
	q.working.Wait()
}

// run runs a task in a goroutine of its own.
func (p *pool) run(task func()) {
	p.working.Add(1)
	select {
	case p.tasks <- task:
	default:
		go p.runTasks(task)
	}
}

// runTasks runs a task, and then further tasks from the channel. Reusing goroutines avoids growing a new stack for every post.
func (p *pool) runTasks(task func()) {
	for open := true; open; task, open = <-p.tasks {
		task()
		p.working.Done()
	}
}

// close waits for all tasks, and ends the goroutines. No task is added afterwards.
func (p *pool) close() {
	p.working.Wait()
	close(p.tasks)
}

// roomPatience is how long events keep their elements of the pool while the room does not answer. An answer takes milliseconds.
const roomPatience = time.Second
