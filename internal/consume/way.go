package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// This file has the way of an event: receive, decode, decide, deliver, settle. The file of each step's name has its owner and its rules.

// receive decides messages in batches until no more arrive. Messages that arrive after the worker's end get a nak at the end: with an
// earlier nak, the last request would receive them again.
func (d *decider) receive(l life) {
	batch := make([]*message, 0, store.MaxBatch)
	var undecided []*message
	for m := range d.incoming {
		batch = append(batch[:0], m)
		for len(batch) < store.MaxBatch && len(d.incoming) > 0 {
			batch = append(batch, <-d.incoming)
		}
		if l.waiting.Err() != nil {
			undecided = append(undecided, batch...)
		} else {
			undecided = append(undecided, d.decideInParts(l, d.intake.decode(l, batch))...)
		}
		for _, m := range batch {
			if m.from.deciding != nil {
				m.from.deciding.Done()
			}
		}
	}
	for _, m := range undecided {
		d.settler.nak(m, 0)
	}
}

// decode decodes a batch, and returns the events that need a decision. The others end here, are split, or are updates of posted messages.
func (i *intake) decode(l life, batch []*message) (candidates []candidate) {
	settled := make([]settlement, 0, len(batch)) // most events of a flood end here
	now, forgotten := time.Now(), i.reader.forgottenUntil()
	for _, m := range batch {
		if m.lease.leftAt(now) <= 0 { // its lease has expired: JetStream redelivers it
			m.leaveHand()
			continue
		}
		if m.meta.NumDelivered > 1 && i.settler.knows(m) {
			settled = append(settled, settlement{message: m})
			continue
		}
		if m.forged() {
			i.forged.Forged(trusted.Room, 1)
			settled = append(settled, settlement{message: m})
			continue
		}
		if i.replans.asked(m) {
			m.untraced = true // it is no event
			i.pool.run(func() { i.replans.replan(l.working, m) })
			continue
		}
		if m.meta.NumDelivered > 1 && m.decoded == nil {
			i.metrics.Redelivered(1)
		}
		if m.entry.Reason == room.Update {
			i.updater.start(l, m)
			continue
		}
		drops := m.entry.Order.Action == room.Drop
		c := candidate{
			message: m, received: now, lookUp: drops || i.reader.tooOld(now, m) && !m.holdsSlots(), again: m.from.inRoom || m.redelivered(forgotten),
		}
		if c.lookUp && !c.again || drops && m.entry.Reason == room.Body {
			m.about.category = i.reader.categoryOf(m)
			settled = append(settled, withoutRecord(m))
			continue
		}
		hints := event.HintsOf(m.Data)
		denial := i.knownDenial(&c, hints)
		if denial == nil && i.heavy(m, hints) {
			i.bodies.add(m)
			continue
		}
		if denial == nil {
			var fault *event.Fault
			denial, fault = i.read(&c)
			switch {
			case fault != nil && c.lookUp:
				settled = append(settled, withoutRecord(m))
				continue
			case fault != nil:
				i.letters.add(letter{m, c.event, fault})
				continue
			case denial == nil:
				candidates = append(candidates, c)
				continue
			}
		}
		settled = append(settled, i.refusals.dropped(m, denial))
	}
	i.settler.settle(settled...)
	return candidates
}

// decideInParts decides as many candidates at once as the pool has elements. When the worker ends, it returns the undecided messages.
func (d *decider) decideInParts(l life, candidates []candidate) (undecided []*message) {
	for len(candidates) > 0 {
		n := d.pool.acquire(l.waiting, len(candidates))
		if n == 0 || !d.decide(l, candidates[:n]) { // the worker has ended
			for _, c := range candidates {
				undecided = append(undecided, c.message)
			}
			return undecided
		}
		candidates = candidates[n:]
	}
	return nil
}

// decide asks the throttle about candidates, each of which holds an element of the pool, and handles each decision. It waits for no single
// event. It returns false if the worker ends first.
func (d *decider) decide(l life, candidates []candidate) (decided bool) {
	requests := make([]store.Request, len(candidates))
	for i, c := range candidates {
		requests[i] = c.request()
		requests[i].MayWait = d.refusals.waits(c.event.Category)
		d.pairs.letFold(c, &requests[i])
	}
	asked, rules := time.Now(), d.throttle.Rules()
	decisions, err := d.throttle.Decide(l.waiting, requests)
	if err != nil {
		return d.notDecided(l, candidates)
	}
	trip := roundTrip{asked: asked, answered: time.Now(), events: len(candidates)}
	var (
		settled  []settlement
		unpaired []candidate
		folded   []foldedEvent
	)
	for i := range decisions {
		c, decision := candidates[i], &decisions[i]
		denial := decision.Denial(asked)
		d.reporter.traceDecision(&candidates[i], trip, decision, denial)
		switch {
		case decision.Grant != nil: // it is admitted, or in shadow mode, where a denial is only measured
			d.deliverer.start(l, d.deliverer.newDelivery(c, decision, denial))
		case decision.Verdict == store.Unpaired && !c.certain:
			unpaired = append(unpaired, c)
		default:
			end, ends := d.undelivered(l, c, decision, denial, rules)
			switch {
			case ends && end.outcome == journal.Folded:
				folded = append(folded, foldedEvent{c, requests[i], end})
			case ends:
				settled = append(settled, end)
			}
		}
	}
	d.pool.release(len(settled) + len(unpaired))
	if len(unpaired) > 0 { // they hold no element of the pool, so other events are decided while the streams are searched
		d.pool.run(func() { d.sortUnpaired(l, unpaired) })
	}
	if len(folded) > 0 {
		d.pool.run(func() { d.folds.settle(l, folded) })
	}
	d.settler.settle(settled...)
	return true
}

// undelivered handles the decision about an event that is not delivered now. If the event ends, it returns the settlement. Otherwise the
// event waits, and gives up its element of the pool later. The limits that decided were these rules or newer ones.
func (d *decider) undelivered(
	l life, c candidate, decision *store.Decision, denial *store.Denial, rules *store.Rules,
) (end settlement, ends bool) {
	switch decision.Verdict {
	case store.Denied, store.ExceedsCapacity:
		if d.planner.add(c, decision, denial, rules) || d.planner.forget(c, denial) {
			return settlement{}, false
		}
		return d.refusals.dropped(c.message, denial), true
	case store.Done:
		if rest := d.folds.updater.unshownOf(decision); rest.any() {
			d.pool.run(func() { d.folds.updater.show(l, c, rest) })
			return settlement{}, false
		}
		return done(c), true
	case store.Duplicate:
		return settlement{message: c.message, outcome: journal.Duplicate}, true
	case store.Unknown: // no worker has delivered it
		if d.planner.forget(c, nil) {
			return settlement{}, false
		}
		return withoutRecord(c.message), true
	case store.Unpaired:
		return d.pairs.neverOpened(c), true
	case store.Folded:
		failpoint.Reach(failpoint.AfterFold)
		return settlement{message: c.message, outcome: journal.Folded, fold: decision.Fold}, true
	case store.Leased:
		d.awaitOther(l, c, decision)
	case store.Planned: // the message may not have been settled after the move
		d.mover.hold(c, goal{reason: room.Slot, in: decision.Wait}, d.pool.hold(1))
	case store.Deferred:
		d.mover.hold(c, goal{reason: room.Redis, in: jitter(10 * undecidedDelay)}, d.pool.hold(1))
	}
	return settlement{}, false
}

// start begins a delivery, which holds an element of the pool. If channels are paced, the delivery releases the element at once, and otherwise when
// it takes long: a slow channel may not hold what other channels need. If its channel is paused or has earlier events, the event waits in the room.
// An event that needs more than a post releases the element, and enters its channel's lane later.
func (v *deliverer) start(l life, d *delivery) {
	if d.fromQueue() {
		v.mover.queues.learn(d.message.from.token, d.destination)
	}
	enters := !d.admission.doubt.open && len(d.unshown.messages) == 0 && !v.mutes.covers(d)
	if enters && !v.enter(d) {
		v.hold(d)
		return
	}
	if !enters || v.lanes.Ordered() {
		d.element.release()
	}
	v.pool.run(func() { v.deliver(l, d) })
}

// deliver hands the updates of the messages that the event resolves to the room, looks up what an earlier attempt may have posted, and posts
// the event when its destination takes it. It retries while the lease allows, and settles or postpones the event.
func (v *deliverer) deliver(l life, d *delivery) {
	l.waiting, d.stopWait = context.WithCancel(l.waiting)
	v.leases.add(d)
	defer v.end(d)
	defer time.AfterFunc(lane.StallTime, d.element.release).Stop()
	for v.keepUpdates(l, d) && v.settleDoubt(l, d) && !v.dropMuted(l, d) && v.awaitTurn(l, d) {
		receipt, failure, attempted := v.attempt(l.working, d)
		switch {
		case !attempted:
			if !v.dropMuted(l, d) {
				v.postpone(l, d, 0)
			}
			return
		case failure == nil:
			v.health.Posted(d.destination)
			v.record(l, d, receipt)
			return
		case !v.retries(l, d, failure):
			return
		}
	}
}

// retries waits until a failed delivery may be attempted again. An event whose thread is lost becomes a message of its own at once. If that goes to
// another channel, the delivery leaves the lane of the thread's channel, and nobody has tried its own channel yet. If a post has to be looked up
// first, the delivery steps out of its lane: a look-up may take long, and delays no other event. retries returns false if the delivery has ended.
func (v *deliverer) retries(l life, d *delivery, failure *sink.Error) bool {
	if failure.Lost && failure.Class == sink.Rejected && !d.alone {
		d.alone = true
		if own := d.ownDestination(v.sink); own != d.destination {
			v.health.Leave(d.destination, d)
			v.stepOut(d)
			d.destination, d.attempts = own, 0
		}
		return true
	}
	delay, again := v.failed(l, d, failure)
	if again && d.admission.doubt.open {
		v.stepOut(d)
	}
	switch {
	case !again:
		return false
	case failure.Class == sink.RateLimited: // the turn comes when the pause is over
		return true
	case !await.For(l.waiting, delay):
		v.postpone(l, d, 0)
		return false
	}
	return true
}

// record records a delivery. The first worker that records it counts its outcome: its message may be settled more than once. If the room had no
// place for what the event changes, the message comes back for that.
func (v *deliverer) record(l life, d *delivery, receipt string) {
	d.message.span.Ended(string(journal.Sent))
	if d.unshown.any() {
		d.admission.grant.KeepPair()
	}
	newly, owed := d.admission.grant.Finish(l.ending(), receipt)
	failpoint.Reach(failpoint.AfterRecord)
	if newly {
		posted := sent{d.message, d.denial, d.event.Resolves(), d.destination, receipt, time.Now()}
		v.settler.countSent(posted)
		defer v.reporter.recordSent(posted) // once the message is handed over to be acknowledged
	}
	if d.unshown.any() {
		v.settler.nak(d.message, jitter(misconfiguredBackoff))
		return
	}
	v.settler.settleAfter(owed, settlement{message: d.message})
}

func (v *deliverer) failed(l life, d *delivery, failure *sink.Error) (delay time.Duration, again bool) {
	switch failure.Class {
	case sink.RateLimited, sink.Rejected:
		v.health.Mended(d.destination)
	case sink.Transient, sink.Unknown:
		v.health.Unclear(d.destination)
	case sink.Misconfigured, sink.OK:
	}
	if failure.Class == sink.Rejected {
		v.reject(l, d, failure)
		return 0, false
	}
	v.reporter.recordFailed(d.message, d.destination, failure)
	switch failure.Class {
	case sink.RateLimited:
		v.lanes.Pause(l.working, d.destination, failure.RetryAfter)
		if ends := time.Now().Add(failure.RetryAfter); v.reporter.reader.tooOld(ends, d.message) {
			v.health.Expires(d.destination, d.message.traced("until", ends)...)
		}
		return 0, true
	case sink.Misconfigured:
		v.health.Misconfigure(d.destination, d, failure, d.message.traced()...)
		delay = retryDelay(misconfiguredBackoff, d.attempts-1)
		if failure.OfChannel {
			v.lanes.PauseRefusing(l.working, d.destination, delay)
		}
		return delay, true
	case sink.Unknown:
		d.admission.doubt.attempted(d.began, time.Now())
	case sink.Transient, sink.Rejected, sink.OK:
	}
	if l.working.Err() != nil {
		v.postpone(l, d, 0)
		return 0, false
	}
	v.health.Failed(failure, d.message.traced()...)
	delay = retryDelay(firstBackoff, d.attempts-1+attemptsPerDelivery*int(min(d.message.meta.NumDelivered-1, enoughDoublings)))
	if time.Since(d.began)+delay+v.sendTimeout > v.settler.lease { // another attempt would not end within the first lease
		v.postpone(l, d, delay)
		return 0, false
	}
	return delay, true
}

func (v *deliverer) end(d *delivery) {
	d.stopWait()
	v.leases.remove(d)
	v.health.Leave(d.destination, d)
	v.stepOut(d)
}
