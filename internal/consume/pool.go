package consume

import (
	"context"
	"time"
)

// acquire takes free elements of the pool, up to the number wanted. It waits until there are enough for a batch that is worth a request. It
// takes none if the context ends first.
func (w *Worker) acquire(ctx context.Context, wanted int) int {
	enough := min(wanted, poolSize/4)
	for n := range wanted {
		if n < enough {
			select {
			case w.pool <- struct{}{}:
				continue
			case <-ctx.Done():
				for range n {
					w.release()
				}
				return 0
			}
		}
		select {
		case w.pool <- struct{}{}:
		default:
			return n
		}
	}
	return wanted
}

// release puts an element back into the pool.
func (w *Worker) release() { <-w.pool }

// work runs a task.
func (w *Worker) work(task func()) {
	w.working.Add(1)
	select {
	case w.tasks <- task:
	default:
		go w.runTasks(task)
	}
}

// runTasks runs a task, and then further tasks from the channel. Reusing goroutines avoids growing a new stack for every post.
func (w *Worker) runTasks(task func()) {
	for open := true; open; task, open = <-w.tasks {
		task()
		w.working.Done()
	}
}

// undecidedDelay is the redelivery delay of a message for which no decision could be made.
const undecidedDelay = time.Second

// notDecided handles a failed decision: it sends a nak for each candidate. If the context has ended, it sends none and returns false.
func (w *Worker) notDecided(ctx context.Context, candidates []candidate) bool {
	for range candidates {
		w.release()
	}
	if ctx.Err() != nil {
		return false
	}
	for _, c := range candidates {
		w.nak(c.message, jitter(undecidedDelay))
	}
	return true
}
