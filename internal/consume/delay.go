package consume

import (
	"cmp"
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// refusedFor is how long a category's denied events are dropped without a request, once an event of that category was refused its wait.
const refusedFor = time.Second

// timeToDeliver is how long an event may take from the end of its longest wait for a slot until its post. The slot may open at the very end
// of the wait.
const timeToDeliver = time.Minute

// LongestLife returns the age at which the last event expires, where maxAge is [Options.MaxAge] and longestDelay the longest wait for a slot
// in any category. 0 means that no event expires.
func LongestLife(maxAge, longestDelay time.Duration) time.Duration {
	if maxAge == 0 || longestDelay == 0 {
		return maxAge
	}
	return max(maxAge, longestDelay+timeToDeliver)
}

// refusal records that no more events of a category may wait for slots at present.
type refusal struct {
	until   time.Time
	crowded bool // because too many events wait already
}

// mostRefusals bounds the number of categories with a remembered refusal.
const mostRefusals = 10_000

// refused reports whether no more events of a category may wait, and whether the reason is that too many events wait already.
func (w *Worker) refused(category string) (refused, crowded bool) {
	found, _ := w.refusedCache.Peek(category)
	refused = time.Now().Before(found.until)
	return refused, refused && found.crowded
}

// crowd returns the cache key of a first level's events that wait in the room for a reason. No category has such a name.
func crowd(reason room.Reason, first string) string { return string(reason) + " " + first }

// crowded reports whether the room has just refused an event of a first level that was to wait for a reason.
func (w *Worker) crowded(reason room.Reason, first string) bool {
	refused, _ := w.refused(crowd(reason, first))
	return refused
}

// dropCrowded returns the settlement of a message whose event may not wait because the room holds too many events.
func (w *Worker) dropCrowded(m *message, reason room.Reason) settlement {
	w.metrics.RoomRefused(string(reason), 1)
	return w.dropped(m, store.DeniedByRoom)
}

// waits reports whether the settings let denied events of a category wait for a slot.
func (w *Worker) waits(category string) bool { return w.o.Delay != nil && w.o.Delay(category) > 0 }

// mayWait reports whether denied events of a category may wait for a slot now.
func (w *Worker) mayWait(category string) bool {
	if !w.waits(category) {
		return false
	}
	refused, _ := w.refused(category)
	return !refused
}

// delayOf returns a function that delays a denied event, or nil if the event may not wait for a slot. Delays are planned in the order of
// the decisions, so the events come back in that order.
func (w *Worker) delayOf(c candidate, decision *store.Decision, denial *store.Denial) func(context.Context) {
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

// delay stores a denied event in the room until its slot opens. It drops the event if the slot opens too late or too many events wait. It
// calls planned once the event's place in the order is certain. The event holds an element of the pool.
func (w *Worker) delay(ctx context.Context, c candidate, decision *store.Decision, denial *store.Denial, planned func()) {
	defer planned()
	deadline := c.entry.Since.Add(w.o.Delay(c.event.Category))
	verdict, in, err := w.throttle.Delay(ctx, store.Postponement{
		Request: c.request(), Wait: decision.Wait, Longest: deadline.Sub(w.streams.Clock.Now()), Path: decision.Node.Path, Limit: decision.Limit,
	})
	if err == nil && verdict == store.ComesBack {
		failpoint.Reach(failpoint.AfterPlan)
		w.comeBack(c, in, denial)
		return
	}
	defer w.release()
	switch {
	case err != nil:
		w.nak(c.message, jitter(undecidedDelay))
	case verdict == store.AlreadyWaiting:
		w.settle(settlement{message: c.message, outcome: Duplicate})
	default:
		if verdict == store.TooMany || !c.waited() { // an event that ran out of time tells nothing about younger events
			w.refusedCache.Add(c.event.Category, refusal{until: time.Now().Add(refusedFor), crowded: verdict == store.TooMany})
		}
		w.settle(w.dropped(c.message, denial))
	}
}

// comeBack stores an event in the room until its slot opens, and releases its element of the pool at the end. If the event is too large for
// the room, it is dropped. The denial is nil if it is no longer known.
func (w *Worker) comeBack(c candidate, in time.Duration, denial *store.Denial) {
	m := w.newMove(c, goal{reason: room.Slot, in: in})
	m.counted, m.stored, m.denial = true, w.metrics.Delayed, denial
	m.refused = func() { w.settle(w.dropped(c.message, cmp.Or(denial, store.DeniedByRoom))) }
	w.move(m, w.release)
}
