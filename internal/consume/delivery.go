package consume

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// delivery is one admitted event on its way out.
type delivery struct {
	message     *message
	event       event.Event
	admission   admission
	denial      *store.Denial // the denial of an event in shadow mode; it is only measured
	opened      string        // the receipt of the first message that the event resolves; "" for none
	alone       bool          // it is a message of its own, because the thread of the first message is lost
	unshown     unshown
	prepared    *preparation
	destination string
	attempts    int         // of this worker at the post
	began       time.Time   // when the first of them began
	place       *lane.Place // in its channel's lane; nil: it has none
	element     *held       // of the pool

	lost     atomic.Bool        // another worker may be delivering the event by now
	stopWait context.CancelFunc // ends its waiting; set when the delivery begins
}

// admission is the grant of an admitted event. The zero admission belongs to an event that is not admitted: it has nothing to end.
type admission struct {
	grant store.Grant // nil: the event is not admitted
	doubt doubt
	anew  bool // Redis knew of no earlier admission
}

// inDoubt reports whether an attempt, perhaps of another worker, may have delivered the event.
func (a admission) inDoubt() bool { return a.doubt.open || a.doubt.unsearchable }

// lose records that another worker may be delivering the event by now.
func (d *delivery) lose() {
	d.lost.Store(true)
	d.stopWait()
}

// fromQueue reports whether the event comes from its channel's queue in the room.
func (d *delivery) fromQueue() bool { return d.message.from.isQueueOf(d.destination) }

// ownDestination returns where the event goes as a message of its own.
func (d *delivery) ownDestination(by Sink) string {
	return by.Destination(sink.Delivery{Event: d.event, Opened: sink.WithoutMessage(d.opened)})
}

// shortWait is how long a delivery waits for its post before Redis learns of it. Deliveries that are posted at once cost no call.
const shortWait = 100 * time.Millisecond

// awaitPost waits for the post of a place, as [lane.Place.AwaitPost] does. Redis knows of a longer wait: if the worker dies meanwhile, nobody has
// to look for the post. If Redis cannot learn that the wait is over, ok is false. If lost is true, another worker may be delivering the event.
func (a *admission) awaitPost(l life, place *lane.Place) (wait time.Duration, ok, lost bool) {
	if a.inDoubt() {
		wait, ok = place.AwaitPost(l.waiting)
		return wait, ok, false
	}
	recorded := make(chan struct{})
	recording := time.AfterFunc(shortWait, func() {
		defer close(recorded)
		_, _ = a.grant.SetWaiting(l.ending(), true) // if it fails, the end of the wait is recorded all the same
	})
	wait, ok = place.AwaitPost(l.waiting)
	if recording.Stop() {
		return wait, ok, false
	}
	<-recorded
	if !ok {
		return wait, false, false
	}
	held, err := a.grant.SetWaiting(l.working, false)
	return 0, held, err == nil && !held
}

// release ends the lease of an event that another worker may deliver. The event keeps its slot.
func (a admission) release(ctx context.Context) {
	if a.grant != nil {
		a.grant.Release(ctx, a.inDoubt())
	}
}

// endUndelivered ends the grant of an event that is not retried. The slot is returned unless an attempt may have delivered the event. Such
// an event counts as delivered, so a replay does not post it again. The event's message is settled after owed.
func (a admission) endUndelivered(ctx context.Context) (owed <-chan struct{}) {
	switch {
	case a.grant == nil:
		return nil
	case a.inDoubt():
		_, owed = a.grant.Finish(ctx, "")
		return owed
	}
	return a.grant.Refund(ctx)
}

// endAfterOther ends the grant of an event whose message another worker has ended. An event that was admitted here anew was dropped, or goes on
// in the room undecided: Redis knew of no attempt of others. So its slot is returned unless an attempt of this worker may have delivered it. An
// event that was admitted before may go on in its channel's queue, with its slot.
func (a admission) endAfterOther(ctx context.Context) {
	switch {
	case !a.anew:
		a.release(ctx)
	case a.doubt.own:
		a.grant.Finish(ctx, "")
	default:
		a.grant.Refund(ctx)
	}
}

// Back-off between attempts: 0.5 s doubling to 30 s, and at least 5 s while the setup is at fault.
const (
	firstBackoff         = 500 * time.Millisecond
	longestBackoff       = 30 * time.Second
	misconfiguredBackoff = 5 * time.Second
)

// attemptsPerDelivery is roughly how many attempts a worker makes. The next worker continues the back-off from there.
const attemptsPerDelivery = 3

// retryDelay returns the delay before the next attempt: first, doubled for each further attempt, up to the longest back-off. It is spread
// by a quarter to either side, so deliveries that failed together are not retried together.
func retryDelay(first time.Duration, attemptsSince int) time.Duration {
	growing := backoff.ExponentialBackOff{InitialInterval: first, RandomizationFactor: 0.25, Multiplier: 2, MaxInterval: longestBackoff}
	for range min(attemptsSince, enoughDoublings) {
		growing.NextBackOff()
	}
	return growing.NextBackOff()
}

// enoughDoublings raises the first back-off to the longest back-off.
const enoughDoublings = 6

// jitter spreads a delay that does not grow.
func jitter(d time.Duration) time.Duration { return retryDelay(d, 0) }
