package stage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// PoolSize is how many decided messages a worker holds at most, beside its concurrent deliveries: one full batch.
const PoolSize = store.MaxBatch

// Pool bounds the messages between decision and settlement: each of them holds an element. It also runs tasks in reused goroutines.
type Pool struct {
	elements chan struct{} // has an element for each message that holds one
	tasks    chan func()   // feeds idle goroutines
	working  sync.WaitGroup
}

// NewPool returns a pool for a number of concurrent deliveries to each channel.
func NewPool(concurrency int) *Pool {
	return &Pool{elements: make(chan struct{}, PoolSize+concurrency), tasks: make(chan func())}
}

// Size returns how many elements there are.
func (p *Pool) Size() int { return cap(p.elements) }

// Taken returns how many elements are acquired.
func (p *Pool) Taken() int { return len(p.elements) }

// Acquire takes free elements, up to the number wanted, when there are enough to be worth a request. If the context ends first, it takes none.
func (p *Pool) Acquire(ctx context.Context, wanted int) int {
	enough := min(wanted, PoolSize/4)
	for n := range wanted {
		if n < enough {
			select {
			case p.elements <- struct{}{}:
				continue
			case <-ctx.Done():
				p.Release(n)
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

// Release gives back elements that are not held.
func (p *Pool) Release(n int) {
	for range n {
		<-p.elements
	}
}

// Held is acquired elements that are released once. Its methods may be called again and concurrently. A nil held has no elements.
type Held struct {
	pool     *Pool
	n        int
	released atomic.Bool
}

// Hold returns acquired elements as held ones.
func (p *Pool) Hold(n int) *Held { return &Held{pool: p, n: n} }

// Release gives back the elements.
func (h *Held) Release() {
	if h != nil && !h.released.Swap(true) {
		h.pool.Release(h.n)
	}
}

// WhileRoomAnswers releases the elements when the returned function is called, or when the room does not answer: other events need them then.
func (h *Held) WhileRoomAnswers() (end func()) {
	patience := time.AfterFunc(RoomPatience, h.Release)
	return func() {
		patience.Stop()
		h.Release()
	}
}

// Run runs a task in a goroutine of its own.
func (p *Pool) Run(task func()) {
	p.working.Add(1)
	select {
	case p.tasks <- task:
	default:
		go p.runTasks(task)
	}
}

// runTasks runs a task, and then further tasks from the channel. Reusing goroutines avoids growing a new stack for every post.
func (p *Pool) runTasks(task func()) {
	for open := true; open; task, open = <-p.tasks {
		task()
		p.working.Done()
	}
}

// Close waits for all tasks, and ends the goroutines. No task is added afterwards.
func (p *Pool) Close() {
	p.working.Wait()
	close(p.tasks)
}

// RoomPatience is how long events keep their elements of the pool while the room does not answer. An answer takes milliseconds.
const RoomPatience = time.Second
