package consume

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/failpoint"
	"github.com/seed-4578ace9/notifier/internal/room"
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
	grant       Grant
	level       string // of a denial that is only measured
	opened      string // receipt of the event that it resolves
	prepared    any    // for the sink
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

func (w *Worker) newDelivery(c candidate, decision Decision, prepared any) *delivery {
	d := &delivery{
		candidate: c, grant: decision.Grant, level: decision.Level, opened: decision.Opened, prepared: prepared,
		uncertain: decision.InDoubt, reserved: func() {}, begin: func() {}, leaveQueue: func() {},
	}
	d.destination = w.sink.Destination(d.notification())
	return d
}

func (d *delivery) notification() Notification {
	return Notification{Event: d.event, Opened: d.opened, Prepared: d.prepared}
}

// fromQueue tells whether the event comes from its channel's queue in the room.
func (d *delivery) fromQueue() bool {
	token := d.source.token()
	return token != "" && token == room.Token(d.destination)
}

// deliver posts an event when its destination takes it, again and again while the lease allows, and settles it or puts it
// off. Waiting ends when the context does; a post under way ends with the work context.
func (w *Worker) deliver(ctx, work context.Context, d *delivery) {
	w.metrics.InFlight(1)
	w.keeper.add(d)
	defer func() {
		w.metrics.InFlight(-1)
		w.keeper.remove(d)
		w.trouble.leave(d)
		d.leaveQueue()
	}()
	for {
		if wait, ok := w.awaitPost(ctx, d); !ok {
			w.postpone(work, d, wait)
			return
		}
		if w.tooOld(d.message) {
			w.expire(work, d)
			return
		}
		if !w.trouble.turn(ctx, d) {
			if ctx.Err() == nil && !d.isLost() {
				continue
			}
			w.postpone(work, d, 0)
			return
		}
		receipt, failure, attempted := w.attempt(work, d)
		if !attempted {
			w.postpone(work, d, 0)
			return
		}
		if !failure.isOfAll() {
			d.leaveLane()
		}
		if failure == nil {
			w.delivered(work, d, receipt)
			return
		}
		delay, again := w.failed(work, d, failure)
		if !again {
			return
		}
		if failure.Class == RateLimited {
			continue
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			w.postpone(work, d, 0)
			return
		}
	}
}

// isOfAll tells whether the others of the channel would fail as well. They wait for whoever found that, who keeps its turn.
func (f *Failure) isOfAll() bool {
	return f != nil && (f.Class == RateLimited || f.Class == Misconfigured)
}

// attempt posts once, on a lease that lasts longer than a post can take or was renewed just now. It does not if the lease
// is lost or cannot be renewed, or if the work context ends first.
func (w *Worker) attempt(work context.Context, d *delivery) (receipt string, failure *Failure, attempted bool) {
	if work.Err() != nil {
		return "", nil, false
	}
	if d.left() < w.o.SendTimeout && !w.keeper.extend(work, d) {
		return "", nil, false
	}
	if d.isLost() {
		return "", nil, false
	}
	if d.attempts++; d.attempts == 1 {
		d.started = time.Now()
	}
	failpoint.Reach(failpoint.BeforePost)
	receipt, failure = w.sink.Send(work, d.notification())
	return receipt, failure, true
}

// delivered records that an event is out. Its outcome is counted here, by whoever recorded it first: its message may be settled
// more than once.
func (w *Worker) delivered(work context.Context, d *delivery, receipt string) {
	w.trouble.sinkTried(nil)
	w.trouble.mended(d.destination)
	failpoint.Reach(failpoint.AfterPost)
	newly := d.grant.Finish(context.WithoutCancel(work), receipt)
	failpoint.Reach(failpoint.AfterRecord)
	if newly {
		w.metrics.EventAge(w.clock.since(d.entry.Since))
		if d.event.Resolves() {
			w.metrics.Resolved("paired")
		}
		w.metrics.Event(d.category, string(Sent), 1)
		if d.level != "" {
			w.metrics.Dropped(d.category, d.level, 1)
		}
	}
	w.settler.settle(settlement{message: d.message})
}

// failed decides what comes after an attempt that did not succeed: another one after a delay, or the end.
func (w *Worker) failed(work context.Context, d *delivery, failure *Failure) (delay time.Duration, again bool) {
	if failure.Class != Misconfigured {
		w.trouble.mended(d.destination)
	}
	switch failure.Class {
	case Rejected:
		w.reject(work, d, failure)
		return 0, false
	case RateLimited:
		w.throttle.Pause(work, d.destination, failure.RetryAfter)
		return 0, true
	case Misconfigured:
		w.trouble.misconfigure(d, failure.Err)
		return jitter(backoff(misconfiguredBackoff, d.attempts)), true
	case Uncertain:
		d.uncertain = true
	case Transient:
	}
	if work.Err() != nil {
		w.postpone(work, d, 0)
		return 0, false
	}
	w.trouble.sinkTried(failure.Err)
	delay = jitter(backoff(firstBackoff, d.attempts+attemptsInHand*int(min(d.delivered-1, 100))))
	if time.Since(d.started)+delay+w.o.SendTimeout > w.ackWait { // another one would not end inside the first lease
		w.postpone(work, d, delay)
		return 0, false
	}
	return delay, true
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
	w.settler.settle(settlement{message: d.message, outcome: Expired})
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
func (w *Worker) reject(work context.Context, d *delivery, failure *Failure) {
	detail := failure.Code
	if detail == "" {
		detail = fmt.Sprint(failure.Err)
	}
	fault := event.NewFault(event.ReasonSlackRejected, detail, failure.Err)
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
