package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// This file has the way of an event, from top to bottom: receive, decode, decide, deliver, settle. The rules of a step are in the file of
// that name.

// receive decides messages in batches until no more arrive. Messages that arrive after the context has ended get a nak at the end: with an
// earlier nak, the last request would receive them again. Deliveries and dead letters continue in the work context.
func (w *Worker) receive(ctx, work context.Context) {
	batch := make([]*message, 0, store.MaxBatch)
	var undecided []*message
	defer func() {
		for _, m := range undecided {
			w.nak(m, 0)
		}
	}()
	for m := range w.incoming {
		batch = append(batch[:0], m)
		for len(batch) < store.MaxBatch && len(w.incoming) > 0 {
			batch = append(batch, <-w.incoming)
		}
		if ctx.Err() != nil {
			undecided = append(undecided, batch...)
		} else {
			undecided = append(undecided, w.decideInParts(ctx, work, w.decode(ctx, work, batch))...)
		}
		for _, m := range batch {
			if m.source.deciding != nil {
				m.source.deciding.Done()
			}
		}
	}
}

// decode decodes a batch, and returns the events that need a decision. The rest end here or continue as the parts of their bodies.
func (w *Worker) decode(ctx, work context.Context, batch []*message) (candidates []candidate) {
	settled := make([]settlement, 0, len(batch)) // most events of a flood end here
	now, forgotten := time.Now(), w.forgottenUntil()
	for _, m := range batch {
		if m.leftAt(now) <= 0 { // its lease has expired: JetStream redelivers it
			m.leaveHand()
			continue
		}
		if m.forged {
			w.metrics.Forged(trusted.Room, 1)
			settled = append(settled, settlement{message: m})
			continue
		}
		again := m.deliveredBefore(forgotten)
		if m.delivered > 1 && m.decoded == nil {
			w.metrics.Redelivered(1)
		}
		expired := w.tooOld(now, m)
		if expired && !again {
			m.category = w.categoryOf(m)
			settled = append(settled, settlement{message: m, outcome: Expired})
			continue
		}
		denial := w.knownDenial(ctx, m, again)
		if denial == nil && w.heavy(m) {
			w.bodies.add(m)
			continue
		}
		var e event.Event
		var fault *event.Fault
		if denial == nil {
			e, denial, fault = w.read(m, again)
		}
		switch {
		case fault != nil && expired:
			settled = append(settled, settlement{message: m, outcome: Expired})
		case fault != nil:
			w.pool <- struct{}{}
			w.work(func() { defer w.release(); w.deadLetter(work, m, e, fault) })
		case denial != nil:
			settled = append(settled, w.dropped(m, denial))
		default:
			candidates = append(candidates, candidate{message: m, event: e, received: now, lookUp: expired, again: again})
		}
	}
	w.settle(settled...)
	return candidates
}

// decideInParts decides candidates, as many at once as the pool has free elements. When the context ends, it returns the messages of the
// undecided candidates.
func (w *Worker) decideInParts(ctx, work context.Context, candidates []candidate) (undecided []*message) {
	for len(candidates) > 0 {
		n := w.acquire(ctx, len(candidates))
		if n == 0 || !w.decide(ctx, work, candidates[:n]) { // the context has ended
			for _, c := range candidates {
				undecided = append(undecided, c.message)
			}
			return undecided
		}
		candidates = candidates[n:]
	}
	return nil
}

// decide asks the throttle about candidates, each of which holds an element of the pool, and handles each decision. It returns false if the
// context ends first.
func (w *Worker) decide(ctx, work context.Context, candidates []candidate) (decided bool) {
	requests := make([]store.Request, len(candidates))
	for i, c := range candidates {
		requests[i] = c.request()
		requests[i].MayWait = w.waits(c.event.Category)
	}
	asked := time.Now()
	prepared := w.prepare(candidates)
	decisions, err := w.throttle.Decide(ctx, requests)
	if err != nil {
		return w.notDecided(ctx, candidates)
	}
	answered := time.Now()
	var (
		settled  []settlement
		unpaired []candidate
	)
	end := func(s settlement) {
		settled = append(settled, s)
		w.release()
	}
	for i := range decisions {
		c, d := candidates[i], &decisions[i]
		denial := d.Denial(asked)
		w.traceDecision(&candidates[i], asked, answered, d, denial, len(candidates))
		switch d.Verdict {
		case store.Admitted, store.Reclaimed:
			w.start(ctx, work, w.newDelivery(c, d, nil, prepared(i)))
		case store.Denied, store.ExceedsCapacity:
			if d.Grant != nil { // in shadow mode the denial is only measured
				w.start(ctx, work, w.newDelivery(c, d, denial, prepared(i)))
			} else if later := w.delayOf(c, d, denial); later != nil {
				w.work(func() { later(work) })
			} else {
				end(w.dropped(c.message, denial))
			}
		case store.Leased:
			w.awaitOther(c, d.Wait)
		case store.Done:
			end(w.done(c))
		case store.Duplicate:
			end(settlement{message: c.message, outcome: Duplicate})
		case store.Unknown: // too old, and no worker has delivered it
			end(settlement{message: c.message, outcome: Expired})
		case store.Unpaired:
			if c.certain {
				end(w.neverOpened(c))
			} else {
				unpaired = append(unpaired, c)
			}
		case store.Planned: // the message may not have been settled after the move
			w.comeBack(c, d.Wait, nil)
		case store.Deferred:
			w.move(w.newMove(c, goal{reason: room.Redis, in: jitter(10 * undecidedDelay)}), w.release)
		}
	}
	if len(unpaired) > 0 {
		for range unpaired {
			w.release()
		}
		w.work(func() { w.unpaired(ctx, work, unpaired) })
	}
	w.settle(settled...)
	return true
}

// start begins a delivery, which holds an element of the pool. If channels are paced, the delivery releases the element. If its channel is
// paused or has earlier events, the event waits in the room.
func (w *Worker) start(ctx, work context.Context, d *delivery) {
	if d.fromQueue() {
		w.served.Store(d.source.token(), d.destination)
	}
	switch paused := w.paused(d.destination) > memoryWait; {
	case paused && !d.fromQueue(), !w.channels.enter(d):
		w.hold(work, d, w.release)
	case w.channels.paced:
		w.release()
		w.work(func() { w.deliver(ctx, work, d) })
	default:
		w.work(func() { defer w.release(); w.deliver(ctx, work, d) })
	}
}

// deliver posts an event when its destination takes it, retries while the lease allows, and settles or postpones the event. The end of the
// context stops waiting, and the end of the work context stops a post.
func (w *Worker) deliver(ctx, work context.Context, d *delivery) {
	w.beginDelivery(d)
	defer w.endDelivery(d)
	for w.awaitTurn(ctx, work, d) {
		receipt, failure, attempted := w.attempt(work, d)
		switch {
		case !attempted:
			w.postpone(work, d, 0)
			return
		case failure == nil && len(d.others) > 0:
			w.updated(work, d)
			continue
		case failure == nil:
			w.delivered(work, d, receipt)
			return
		}
		delay, again := w.failed(work, d, failure)
		if !again {
			return
		}
		if failure.Class == sink.RateLimited {
			continue // the turn comes when the pause is over
		}
		if !arrives(ctx, time.After(delay)) {
			w.postpone(work, d, 0)
			return
		}
	}
}

// updated records that one of several messages was updated. The next update, or the post, has a turn of its own.
func (w *Worker) updated(work context.Context, d *delivery) {
	d.others = d.others[1:]
	d.grant.Updated(context.WithoutCancel(work), len(d.others))
	d.attempts = 0
	failpoint.Reach(failpoint.AfterUpdate)
}

// delivered records a delivery. The first worker that records it counts its outcome: its message may be settled more than once.
func (w *Worker) delivered(work context.Context, d *delivery, receipt string) {
	w.health.sink.Note(nil)
	w.health.mended(d.destination)
	failpoint.Reach(failpoint.AfterPost)
	d.span.Ended(string(Sent))
	newly := d.grant.Finish(context.WithoutCancel(work), receipt)
	failpoint.Reach(failpoint.AfterRecord)
	if newly {
		w.metrics.EventAge(w.streams.Clock.Since(d.entry.Since), d.span.TraceID())
		if d.event.Resolves() {
			w.metrics.Resolved("paired")
		}
		w.metrics.Event(d.category, string(Sent), 1)
		w.logOutcomes(settlement{message: d.message, outcome: Sent, denial: d.denial})
		if d.denial != nil {
			w.metrics.Dropped(d.category, d.denial.Level, 1, d.span.TraceID())
		}
		defer w.recordSent(d, receipt, time.Now()) // once the message is handed over to be acknowledged
	}
	w.settle(settlement{message: d.message})
}

// failed decides what follows a failed attempt: a retry after a delay, or the end.
func (w *Worker) failed(work context.Context, d *delivery, failure *sink.Error) (delay time.Duration, again bool) {
	if failure.Class != sink.Misconfigured {
		w.health.mended(d.destination)
	}
	if failure.Class == sink.Rejected {
		w.reject(work, d, failure)
		return 0, false
	}
	w.recordFailed(d, failure)
	switch failure.Class {
	case sink.RateLimited:
		w.pacer.Pause(work, d.destination, failure.RetryAfter)
		return 0, true
	case sink.Misconfigured:
		w.health.misconfigure(d, failure)
		return retryDelay(misconfiguredBackoff, d.attempts-1), true
	case sink.Unknown:
		d.uncertain = d.uncertain || len(d.others) == 0 // an update may be repeated
	case sink.Transient, sink.Rejected, sink.OK:
	}
	if work.Err() != nil {
		w.postpone(work, d, 0)
		return 0, false
	}
	w.health.sink.Note(failure, d.traced()...)
	delay = retryDelay(firstBackoff, d.attempts-1+attemptsPerDelivery*int(min(d.delivered-1, enoughDoublings)))
	if time.Since(d.started)+delay+w.o.SendTimeout > w.ackWait { // another attempt would not end within the first lease
		w.postpone(work, d, delay)
		return 0, false
	}
	return delay, true
}

// settle has messages acknowledged, and their outcomes counted once the server has confirmed the acknowledgement.
func (w *Worker) settle(settled ...settlement) {
	now := time.Now()
	for i := range settled {
		settled[i].decided = now
		w.trace(settled[i].message, now, false)
		settled[i].leaveHand()
	}
	w.settlers.Acknowledge(settled...)
}
