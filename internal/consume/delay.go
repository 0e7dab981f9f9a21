package consume

import (
	"cmp"
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/failpoint"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// refusedFor is how long a category's events are dropped without asking after one of them was not to wait.
const refusedFor = time.Second

// timeToDeliver is how long an event may take from the end of its longest wait for a slot until its post. The slot may open in the last
// moment of the wait.
const timeToDeliver = time.Minute

// LongestLife returns the age at which the last event expires, where maxAge is [Options.MaxAge] and longestDelay the longest wait for a slot
// in any category. 0 means that no event expires.
func LongestLife(maxAge, longestDelay time.Duration) time.Duration {
	if maxAge == 0 || longestDelay == 0 {
		return maxAge
	}
	return max(maxAge, longestDelay+timeToDeliver)
}

// refusal says of a category that no more of its events may wait for slots now.
type refusal struct {
	until   time.Time
	crowded bool // because too many others wait
}

// mostRefusals bounds the categories of which a refusal is remembered.
const mostRefusals = 10_000

// refused tells whether no more events of a category may wait, and whether that is because too many others do.
func (w *Worker) refused(category string) (refused, crowded bool) {
	found, _ := w.refusedCache.Peek(category)
	refused = time.Now().Before(found.until)
	return refused, refused && found.crowded
}

// crowd names the events of a first level that wait in the room for a reason. No category has such a name.
func crowd(reason room.Reason, first string) string { return string(reason) + " " + first }

// crowded tells whether the room has just refused an event of a first level that was to wait for a reason.
func (w *Worker) crowded(reason room.Reason, first string) bool {
	refused, _ := w.refused(crowd(reason, first))
	return refused
}

// dropCrowded is the settlement of a message whose event may not wait in the room because too many others do.
func (w *Worker) dropCrowded(m *message, reason room.Reason) settlement {
	w.metrics.RoomRefused(string(reason), 1)
	return w.dropped(m, throttle.DeniedByRoom)
}

// waits tells whether the settings let denied events of a category wait for a slot.
func (w *Worker) waits(category string) bool { return w.o.Delay != nil && w.o.Delay(category) > 0 }

// mayWait tells whether denied events of a category wait for a slot now.
func (w *Worker) mayWait(category string) bool {
	if !w.waits(category) {
		return false
	}
	refused, _ := w.refused(category)
	return !refused
}

// delayOf returns what to do about a denied event that may wait for a slot; nil: nothing. Delays are planned in the order of the
// decisions, so the events come back in that order.
func (w *Worker) delayOf(c candidate, decision *throttle.Decision, denial *throttle.Denial) func(context.Context) {
	if decision.Wait == 0 || w.o.Delay == nil || !c.waited() && !w.mayWait(c.event.Category) {
		return nil
	}
	mine := w.planning.join()
	return func(ctx context.Context) {
		if mine.before != nil {
			<-mine.before
		}
		w.delay(ctx, c, decision, denial, mine.done)
	}
}

// delay stores a denied event in the room until its slot opens, or drops it if that is too late or too many wait. It calls planned
// once the order of the event among the others is certain. The event holds an element of the pool.
func (w *Worker) delay(ctx context.Context, c candidate, decision *throttle.Decision, denial *throttle.Denial, planned func()) {
	defer planned()
	deadline := c.entry.Since.Add(w.o.Delay(c.event.Category))
	verdict, in, err := w.throttle.Delay(ctx, throttle.Postponement{
		Request: c.request(), Wait: decision.Wait, Longest: deadline.Sub(w.clock.now()), Path: decision.Node.Path, Limit: decision.Limit,
	})
	if err == nil && verdict == throttle.ComesBack {
		failpoint.Reach(failpoint.AfterPlan)
		w.comeBack(c, in, denial)
		return
	}
	defer w.release()
	switch {
	case err != nil:
		w.nak(c.message, jitter(undecidedDelay))
	case verdict == throttle.AlreadyWaiting:
		w.settle(settlement{message: c.message, outcome: Duplicate})
	default:
		if verdict == throttle.TooMany || !c.waited() { // that one's time is over says nothing about younger ones
			w.refusedCache.Add(c.event.Category, refusal{until: time.Now().Add(refusedFor), crowded: verdict == throttle.TooMany})
		}
		w.settle(w.dropped(c.message, denial))
	}
}

// comeBack hands an event over to be stored in the room until its slot opens, and releases its element of the pool in the end. If the event is too
// large for the room, it is dropped. The denial is nil if it is not known any more.
func (w *Worker) comeBack(c candidate, in time.Duration, denial *throttle.Denial) {
	m := w.newMove(c, goal{reason: room.Slot, in: in})
	m.counted, m.stored, m.denial = true, w.metrics.Delayed, denial
	m.refused = func() { w.settle(w.dropped(c.message, cmp.Or(denial, throttle.DeniedByRoom))) }
	w.move(m, w.release)
}
