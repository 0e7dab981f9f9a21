package consume

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/failpoint"
)

// Waiting times between attempts: 0.5 s doubling to 30 s, and never under 5 s while the setup is at fault.
const (
	firstBackoff         = 500 * time.Millisecond
	longestBackoff       = 30 * time.Second
	misconfiguredBackoff = 5 * time.Second
)

// spread is how far apart events come back that wait for the same destination.
const (
	spread        = 100 * time.Millisecond
	longestSpread = 5 * time.Second
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
	uncertain   bool // some attempt may have delivered it

	before     <-chan struct{} // closed when the delivery before it for its destination has been tried; nil: none is waited for
	leaveQueue func()          // lets the next one go; may be called again

	mu   sync.Mutex
	lost bool // someone else may be delivering it by now
}

func (w *Worker) newDelivery(c candidate, decision Decision, prepared any) *delivery {
	d := &delivery{
		candidate: c, grant: decision.Grant, level: decision.Level, opened: decision.Opened, prepared: prepared, leaveQueue: func() {},
	}
	d.destination = w.sink.Destination(d.notification())
	return d
}

func (d *delivery) notification() Notification {
	return Notification{Event: d.event, Opened: d.opened, Prepared: d.prepared}
}

// deliver posts an event when its destination takes it, again and again while the lease allows, and settles it or gives it
// back. Waiting ends when the context does; a post under way ends with the work context.
func (w *Worker) deliver(ctx, work context.Context, d *delivery) {
	w.metrics.InFlight(1)
	w.keeper.add(d)
	defer func() {
		d.leaveQueue()
		w.keeper.remove(d)
		w.trouble.leave(d)
		w.metrics.InFlight(-1)
	}()
	for {
		if wait, ok := w.awaitMoment(ctx, d); !ok {
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
		if failure == nil {
			w.delivered(work, d, receipt)
			return
		}
		delay, again := w.failed(work, d, failure)
		if !again {
			return
		}
		if failure.Class == RateLimited {
			continue // it keeps its place: the others wait for the same
		}
		d.leaveQueue()
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			w.postpone(work, d, 0)
			return
		}
	}
}

// attempt posts once, on a lease that lasts longer than a post can take or was renewed just now. It does not if the lease
// is lost or cannot be renewed, or if the work context ends first.
func (w *Worker) attempt(work context.Context, d *delivery) (receipt string, failure *Failure, attempted bool) {
	select {
	case w.sending <- struct{}{}:
	case <-work.Done():
		return "", nil, false
	}
	defer func() { <-w.sending }()
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

func (w *Worker) delivered(work context.Context, d *delivery, receipt string) {
	w.metrics.EventAge(time.Since(d.stored))
	w.trouble.sinkTried(nil)
	w.trouble.mended(d.destination)
	failpoint.Reach(failpoint.AfterPost)
	d.grant.Finish(context.WithoutCancel(work), receipt)
	failpoint.Reach(failpoint.AfterRecord)
	if d.event.Resolves() {
		w.metrics.Resolved("paired")
	}
	w.settler.settle(settlement{message: d.message, outcome: Sent, level: d.level})
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

// postpone gives an event back to JetStream for later. It keeps its slot; whoever gets it then may deliver it.
func (w *Worker) postpone(work context.Context, d *delivery, delay time.Duration) {
	if d.isLost() || d.left() <= 0 {
		return // someone else may have the lease by now
	}
	d.grant.Release(context.WithoutCancel(work))
	w.giveBack(d.message, delay)
}

// expire ends an event that became too old while it waited. Its slot is returned if it surely was never posted.
func (w *Worker) expire(work context.Context, d *delivery) {
	if d.delivered == 1 && !d.uncertain {
		d.grant.Refund(context.WithoutCancel(work))
	} else {
		d.grant.Release(context.WithoutCancel(work))
	}
	w.settler.settle(settlement{message: d.message, outcome: Expired})
}

// reject stores a message that will never be delivered as a dead letter and returns its slot.
func (w *Worker) reject(work context.Context, d *delivery, failure *Failure) {
	detail := failure.Code
	if detail == "" {
		detail = fmt.Sprint(failure.Err)
	}
	fault := event.NewFault(event.ReasonSlackRejected, detail, failure.Err)
	work = context.WithoutCancel(work)
	end := d.grant.Refund
	if d.uncertain { // an earlier attempt may have delivered it after all
		end = d.grant.Release
	}
	if !w.bury(work, d.message, fault, func() { end(work) }) {
		d.grant.Release(work)
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
