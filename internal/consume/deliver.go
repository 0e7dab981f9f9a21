package consume

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/failpoint"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Waiting times between attempts: 0.5 s doubling to 30 s, and never under 5 s while the setup is at fault.
const (
	firstBackoff         = 500 * time.Millisecond
	longestBackoff       = 30 * time.Second
	misconfiguredBackoff = 5 * time.Second
)

// delivery is one admitted event on its way out.
type delivery struct {
	candidate
	grant       throttle.Grant
	level       string        // of a denial that is only measured
	out         sink.Delivery // for the sink
	destination string
	started     time.Time // when it was first tried
	attempts    int
	uncertain   bool // some attempt, perhaps of another worker, may have delivered it

	before     <-chan struct{} // closed when the delivery before it for its destination has reserved its post; nil: none is waited for
	reserved   func()          // lets the next one reserve its post; may be called again
	ahead      <-chan struct{} // closed when the one before has begun its post; nil: none is waited for
	begin      func()          // lets the next one begin its post; may be called again
	lanes      chan struct{}   // of its destination
	hasLane    bool            // it has its turn
	leaveQueue func()          // lets the next one have its turn; may be called again

	mu   sync.Mutex
	lost bool // someone else may be delivering it by now
}

func (w *Worker) newDelivery(c candidate, decision *throttle.Decision, out sink.Delivery) *delivery {
	d := &delivery{
		candidate: c, grant: decision.Grant, level: decision.Node.Level, out: out,
		uncertain: decision.InDoubt, reserved: func() {}, begin: func() {}, leaveQueue: func() {},
	}
	d.out.Opened = decision.Opened
	d.destination = w.sink.Destination(d.out)
	return d
}

// fromQueue tells whether the event comes from its channel's queue in the room.
func (d *delivery) fromQueue() bool {
	token := d.source.token()
	return token != "" && token == room.Token(d.destination)
}

// takeInHand has the leases of a delivery renewed, until letGo.
func (w *Worker) takeInHand(d *delivery) {
	w.metrics.InFlight(1)
	w.keeper.add(d)
}

func (w *Worker) letGo(d *delivery) {
	w.metrics.InFlight(-1)
	w.keeper.remove(d)
	w.trouble.leave(d)
	d.leaveQueue()
}

// awaitTurn waits until a delivery may be tried. If it may not be tried any more, it has been put off or settled.
func (w *Worker) awaitTurn(ctx, work context.Context, d *delivery) bool {
	for {
		if wait, ok := w.awaitPost(ctx, d); !ok {
			w.postpone(work, d, wait)
			return false
		}
		if w.tooOld(d.message) {
			w.expire(work, d)
			return false
		}
		if w.trouble.turn(ctx, d) {
			return true
		}
		if ctx.Err() != nil || d.isLost() {
			w.postpone(work, d, 0)
			return false
		}
	}
}

// attempt posts once, on a lease that lasts longer than a post can take or was renewed just now. It does not if the lease
// is lost or cannot be renewed, or if the work context ends first.
func (w *Worker) attempt(work context.Context, d *delivery) (receipt string, failure *sink.Error, attempted bool) {
	select {
	case <-work.Done():
		return "", nil, false
	default:
	}
	if d.left() < w.o.SendTimeout && !w.keeper.extend(work, d) || d.isLost() {
		return "", nil, false
	}
	if d.attempts++; d.attempts == 1 {
		d.started = time.Now()
	}
	failpoint.Reach(failpoint.BeforePost)
	receipt, err := w.sink.Send(work, d.out)
	failure = failureOf(err, d.destination)
	if !isOfAll(failure) {
		d.leaveLane()
	}
	return receipt, failure, true
}

// failureOf is what came of a post that did not succeed. Of an error that is none of a sink nobody knows whether the message is out.
func failureOf(err error, destination string) *sink.Error {
	if err == nil {
		return nil
	}
	if failure, known := errors.AsType[*sink.Error](err); known {
		return failure
	}
	return &sink.Error{Class: sink.Unknown, Channel: destination, Err: err}
}

// isOfAll tells whether the others of the channel would fail as well. They wait for whoever found that, who keeps its turn.
func isOfAll(failure *sink.Error) bool {
	return failure != nil && (failure.Class == sink.RateLimited || failure.Class == sink.Misconfigured)
}

// attemptsInHand is about how often an event is tried before it is given back; the back-off goes on from there.
const attemptsInHand = 3

func backoff(first time.Duration, attempts int) time.Duration {
	return min(longestBackoff, first<<min(attempts-1, 6))
}

// postpone lets an event wait for its destination: at the end of the channel's queue in the room or, where it comes from there,
// where it stood. Without a delay it is for the next worker. It keeps its slot; whoever gets it then may deliver it.
func (w *Worker) postpone(work context.Context, d *delivery, delay time.Duration) {
	if d.isLost() || d.left() <= 0 {
		return // someone else may have the lease by now
	}
	if delay > 0 && !d.fromQueue() && work.Err() == nil {
		w.hold(work, d)
		return
	}
	d.grant.Release(context.WithoutCancel(work), d.uncertain)
	if d.fromQueue() && d.attempts == 0 && delay > 0 { // it waits for its channel, as those behind it do
		w.channels.rests(d.destination, delay)
		delay = min(delay, pollTime) // a request that is open now would bring it back behind those that follow it
	}
	w.giveBack(d.message, delay)
}

// expire ends an event that became too old while it waited. Its slot is returned if it surely was never posted.
func (w *Worker) expire(work context.Context, d *delivery) {
	w.endUndelivered(work, d)
	w.settle(settlement{message: d.message, outcome: Expired})
}

// endUndelivered ends the grant of an event that is not tried again. Its slot is returned unless some attempt may have delivered
// it: then it counts as delivered, so that nobody delivers it once more.
func (w *Worker) endUndelivered(work context.Context, d *delivery) {
	work = context.WithoutCancel(work)
	if d.uncertain {
		d.grant.Finish(work, "")
		return
	}
	d.grant.Refund(work)
}

// reject stores a message that will never be delivered as a dead letter and ends its grant.
func (w *Worker) reject(work context.Context, d *delivery, failure *sink.Error) {
	detail := cmp.Or(failure.Code, failure.Error())
	fault := event.NewFault(event.ReasonSlackRejected, detail, failure)
	if !w.bury(context.WithoutCancel(work), d.message, fault, func() { w.endUndelivered(work, d) }) {
		d.grant.Release(context.WithoutCancel(work), d.uncertain)
	}
}

func (d *delivery) isLost() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost
}

func (d *delivery) lose() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost = true
}
