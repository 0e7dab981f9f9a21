package consume

import (
	"context"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/failpoint"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// refusedFor is how long a category's events are dropped without asking after one of them was not to wait.
const refusedFor = time.Second

// refusals are the categories of which no more events may wait now.
type refusals struct {
	mu  sync.Mutex
	all map[string]refusal
}

type refusal struct {
	until   time.Time
	crowded bool // because too many others wait
}

// mostRefusals bounds the categories that are remembered.
const mostRefusals = 10_000

func (r *refusals) note(category string, crowded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil || len(r.all) >= mostRefusals {
		r.all = make(map[string]refusal)
	}
	r.all[category] = refusal{time.Now().Add(refusedFor), crowded}
}

// find returns what holds for a category, if anything does.
func (r *refusals) find(category string) (found refusal, holds bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, known := r.all[category]
	return found, known && time.Now().Before(found.until)
}

func (r *refusals) hold(category string) bool {
	_, holds := r.find(category)
	return holds
}

// crowded tells whether events of a category are dropped because too many others wait.
func (r *refusals) crowded(category string) bool {
	found, holds := r.find(category)
	return holds && found.crowded
}

// line has delays planned one after the other, in the order in which their events were judged: so they come back in it.
type line struct{ last <-chan struct{} }

// join is for the goroutine that decides. Whoever is in line waits for the one before, if any, and then has to leave.
func (l *line) join() (before <-chan struct{}, leave func()) {
	left := make(chan struct{})
	before, l.last = l.last, left
	return before, func() { close(left) }
}

// delayOf is what is to be done about a denied event that may wait for a slot; nil: nothing.
func (w *Worker) delayOf(c candidate, decision *throttle.Decision) func(context.Context) {
	if decision.Wait == 0 || w.o.Delay == nil || !c.waited() && !w.mayWait(c.event.Category) {
		return nil
	}
	return w.delayInOrder(c, decision)
}

// delayInOrder joins the line and returns what is to be done then.
func (w *Worker) delayInOrder(c candidate, decision *throttle.Decision) func(context.Context) {
	before, leave := w.planning.join()
	return func(ctx context.Context) {
		if before != nil {
			<-before
		}
		w.delay(ctx, c, decision, leave)
	}
}

// waits tells whether the settings let denied events of a category wait for a slot.
func (w *Worker) waits(category string) bool { return w.o.Delay != nil && w.o.Delay(category) > 0 }

// mayWait tells whether denied events of a category wait for a slot now.
func (w *Worker) mayWait(category string) bool {
	return w.waits(category) && !w.refusals.hold(category)
}

// delay stores a denied event in the room so that it comes back when its slot opens, or drops it if that is too late or too many
// wait. It calls planned as soon as that is decided and, in its turn, handed on.
func (w *Worker) delay(ctx context.Context, c candidate, decision *throttle.Decision, planned func()) {
	deadline := c.entry.Since.Add(w.o.Delay(c.event.Category))
	verdict, in, err := w.throttle.Delay(ctx, throttle.Postponement{
		Request: c.request(), Wait: decision.Wait, Longest: deadline.Sub(w.clock.now()), Path: decision.Node.Path, Limit: decision.Limit,
	})
	switch {
	case err != nil:
		planned()
		w.giveBack(c.message, jitter(unjudged))
	case verdict == throttle.ComesBack:
		failpoint.Reach(failpoint.AfterPlan)
		w.comeBack(c, in, decision.Node.Level, planned)
	case verdict == throttle.AlreadyWaiting:
		planned()
		w.settle(settlement{message: c.message, outcome: Duplicate})
	default:
		planned()
		if verdict == throttle.TooMany || !c.waited() { // that one's time is over says nothing about younger ones
			w.refusals.note(c.event.Category, verdict == throttle.TooMany)
		}
		w.settle(w.dropped(c.message, decision.Node.Level))
	}
}

// comeBack stores an event in the room until its slot opens, and calls handedOn as soon as its place among the others is
// certain. What is too large for the room is dropped.
func (w *Worker) comeBack(c candidate, in time.Duration, level string, handedOn func()) {
	done := make(chan struct{})
	w.mover.moves <- &move{
		candidate: c, reason: room.Slot, in: in, counted: true, done: func() { close(done) },
		refused: func() { w.settle(w.dropped(c.message, level)) },
	}
	handedOn()
	<-done
}

// recall deals with a redelivered message whose event was to wait for a slot: the message may not have been settled after
// that was stored. It tells whether there is nothing more to do.
func (w *Worker) recall(ctx context.Context, c candidate) bool {
	if c.source.inRoom || c.lookUp || !w.waits(c.event.Category) {
		return false
	}
	in, planned, err := w.throttle.Planned(ctx, c.request())
	switch {
	case err != nil:
		w.giveBack(c.message, jitter(unjudged))
	case planned:
		w.comeBack(c, in, throttle.LevelRoom, func() {})
	default:
		return false
	}
	return true
}
