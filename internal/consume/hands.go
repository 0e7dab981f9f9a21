package consume

import (
	"context"
	"time"
)

// reserve takes places in hand: those that are free, up to the number wanted. It waits until they are enough for a batch that is worth
// a call. It takes none if the context ends first.
func (w *Worker) reserve(ctx context.Context, wanted int) int {
	enough := min(wanted, handSize/4)
	for n := range wanted {
		if n < enough {
			select {
			case w.hand <- struct{}{}:
				continue
			case <-ctx.Done():
				for range n {
					w.vacate()
				}
				return 0
			}
		}
		select {
		case w.hand <- struct{}{}:
		default:
			return n
		}
	}
	return wanted
}

// vacate gives up a place in hand.
func (w *Worker) vacate() { <-w.hand }

// work runs a task.
func (w *Worker) work(task func()) {
	w.working.Add(1)
	select {
	case w.tasks <- task:
	default:
		go w.hands(task)
	}
}

// hands runs a task, and then others as they come. A goroutine that has posted before has the stack for another post.
func (w *Worker) hands(task func()) {
	for open := true; open; task, open = <-w.tasks {
		task()
		w.working.Done()
	}
}

// unjudged is how long an event rests that could not be judged now.
const unjudged = time.Second

// notDecided gives back candidates after a failed decision. It is false, and gives nothing back, if the context has ended.
func (w *Worker) notDecided(ctx context.Context, candidates []candidate) bool {
	for range candidates {
		w.vacate()
	}
	if ctx.Err() != nil {
		return false
	}
	for _, c := range candidates {
		w.giveBack(c.message, jitter(unjudged))
	}
	return true
}
