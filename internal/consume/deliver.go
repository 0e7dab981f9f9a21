package consume

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// Back-off between attempts: 0.5 s doubling to 30 s, and at least 5 s while the setup is at fault.
const (
	firstBackoff         = 500 * time.Millisecond
	longestBackoff       = 30 * time.Second
	misconfiguredBackoff = 5 * time.Second
)

// delivery is one admitted event on its way out.
type delivery struct {
	candidate
	grant       store.Grant
	denial      *store.Denial // the denial of an event in shadow mode; it is only measured
	opened      string        // the receipt of the first message that the event resolves; "" for none
	others      []string      // receipts of further messages that the event resolves and that are not updated yet
	prepared    func() sink.Delivery
	destination string
	started     time.Time // when it was first tried
	attempts    int
	uncertain   bool // an attempt, perhaps of another worker, may have delivered the event

	reserving  turn          // its turn to reserve its post among the deliveries for its destination
	posting    turn          // its turn to begin its post
	lanes      chan struct{} // the lanes of its destination
	hasLane    bool          // it holds a lane and may post
	leaveQueue func()        // gives up its place in the queue and its lane; may be called again

	lost atomic.Bool // another worker may be delivering the event by now
}

func (w *Worker) newDelivery(c candidate, decision *store.Decision, denial *store.Denial, prepared func() sink.Delivery) *delivery {
	d := &delivery{
		candidate: c, grant: decision.Grant, denial: denial, opened: decision.Opened, uncertain: decision.InDoubt, prepared: prepared,
	}
	out := sink.Delivery{Event: c.event, Opened: decision.Opened, Others: decision.Others}
	if len(out.Others) > 0 {
		d.others = w.sink.Updatable(out)
	}
	d.destination = w.sink.Destination(out)
	return d
}

// fromQueue reports whether the event comes from its channel's queue in the room.
func (d *delivery) fromQueue() bool {
	token := d.source.token()
	return token != "" && token == room.Token(d.destination)
}

// beginDelivery keeps the leases of a delivery renewed until endDelivery.
func (w *Worker) beginDelivery(d *delivery) {
	w.metrics.InFlight(1)
	w.leases.add(d)
}

func (w *Worker) endDelivery(d *delivery) {
	w.metrics.InFlight(-1)
	w.leases.remove(d)
	w.health.leave(d)
	d.leaveQueue()
}

// awaitTurn waits until a delivery may be attempted. If it returns false, the delivery was postponed or settled.
func (w *Worker) awaitTurn(ctx, work context.Context, d *delivery) bool {
	for {
		if wait, ok := w.awaitPost(ctx, d); !ok {
			w.postpone(work, d, wait)
			return false
		}
		if w.tooOld(time.Now(), d.message) {
			w.endUndelivered(work, d)
			w.settle(settlement{message: d.message, outcome: Expired})
			return false
		}
		if w.health.turn(ctx, d) {
			return true
		}
		if ctx.Err() != nil || d.lost.Load() {
			w.postpone(work, d, 0)
			return false
		}
	}
}

// attempt posts once, or updates one of several messages before the post. The lease outlasts the post or was renewed just now. Without such
// a lease, or after the work context has ended, attempt does not post.
func (w *Worker) attempt(work context.Context, d *delivery) (receipt string, failure *sink.Error, attempted bool) {
	leased := work.Err() == nil && (d.left() >= w.o.SendTimeout || w.leases.extend(work, d))
	if !leased || d.lost.Load() {
		return "", nil, false
	}
	if d.attempts++; d.attempts == 1 {
		d.started = time.Now()
	}
	out := d.prepared()
	out.Opened, out.Others = d.opened, d.others
	var err error
	if len(d.others) > 0 {
		err = w.sink.Update(d.span.In(work), out, d.others[0])
	} else {
		failpoint.Reach(failpoint.BeforePost)
		receipt, err = w.sink.Send(d.span.In(work), out)
	}
	failure = failureOf(err, d.destination)
	if !isOfAll(failure) {
		d.leaveLane()
	}
	return receipt, failure, true
}

// failureOf returns the failure of a post. After an error of another type it is unknown whether the message was posted.
func failureOf(err error, destination string) *sink.Error {
	if err == nil {
		return nil
	}
	if failure, known := errors.AsType[*sink.Error](err); known {
		return failure
	}
	return &sink.Error{Class: sink.Unknown, Channel: destination, Err: err}
}

// isOfAll reports whether other deliveries to the channel would fail as well. They wait for this delivery, which keeps its lane.
func isOfAll(failure *sink.Error) bool {
	return failure != nil && (failure.Class == sink.RateLimited || failure.Class == sink.Misconfigured)
}

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

// postpone puts an event that waits for its destination at the end of the channel's queue. An event from that queue keeps its place.
// Without a delay, the event goes to the next worker. It keeps its slot.
func (w *Worker) postpone(work context.Context, d *delivery, delay time.Duration) {
	if d.lost.Load() || d.left() <= 0 { // someone else may have the lease by now
		d.span.Left(tracing.Lost)
		d.leaveHand()
		return
	}
	if delay > 0 && !d.fromQueue() && work.Err() == nil {
		held := make(chan struct{})
		w.hold(work, d, func() { close(held) })
		d.reserving.done() // the next delivery may follow it to the room
		d.posting.done()
		<-held
		return
	}
	d.grant.Release(context.WithoutCancel(work), d.uncertain)
	if d.fromQueue() && d.attempts == 0 && delay > 0 { // the whole queue waits for the channel
		w.channels.pause(d.destination, delay)
		delay = min(delay, pollTime) // an open request would bring it back behind later events
	}
	w.nak(d.message, delay)
}

// endUndelivered ends the grant of an event that is not retried. The slot is returned unless an attempt may have delivered the event. Such
// an event counts as delivered, so a replay does not post it again.
func (w *Worker) endUndelivered(work context.Context, d *delivery) {
	work = context.WithoutCancel(work)
	if d.uncertain {
		d.grant.Finish(work, "")
		return
	}
	d.grant.Refund(work)
}

// reject stores an undeliverable message as a dead letter and ends its grant.
func (w *Worker) reject(work context.Context, d *delivery, failure *sink.Error) {
	detail := cmp.Or(failure.Code, failure.Error())
	fault := event.NewFault(event.ReasonRejected, detail, failure)
	if !w.storeLetter(context.WithoutCancel(work), d.message, d.event, fault) {
		d.grant.Release(context.WithoutCancel(work), d.uncertain)
		return
	}
	w.endUndelivered(work, d)
	w.terminate(d.message, fault)
}
