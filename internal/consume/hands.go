package consume

import (
	"context"
	"time"
)

// reserve takes places in hand: as many as are wanted or are free, but enough for a batch that is worth a call, for
// which it waits. It takes none when the context ends first.
func (w *Worker) reserve(ctx context.Context, wanted int) int {
	enough := min(wanted, handSize/4)
	for n := range wanted {
		if n < enough {
			select {
			case w.hand <- struct{}{}:
				continue
			case <-ctx.Done():
				w.vacate(n)
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

func (w *Worker) vacate(places int) {
	for range places {
		<-w.hand
	}
}

// work runs a task.
func (w *Worker) work(task func()) {
	w.working.Add(1)
	select {
	case w.tasks <- task:
	default:
		go w.hands(task)
	}
}

// hands runs a task, and then others as they come, until no more will: a goroutine that has posted before has the stack
// that posting needs.
func (w *Worker) hands(task func()) {
	for open := true; open; task, open = <-w.tasks {
		task()
		w.working.Done()
	}
}

// unjudged is how long an event rests that could not be judged now.
const unjudged = time.Second

// notDecided gives candidates back about which nothing is known to be decided. It tells whether that is all that is to be done with
// them: not if the context has ended.
func (w *Worker) notDecided(ctx context.Context, candidates []candidate) bool {
	w.vacate(len(candidates))
	if ctx.Err() != nil {
		return false
	}
	for _, c := range candidates {
		w.giveBack(c.message, jitter(unjudged))
	}
	return true
}
