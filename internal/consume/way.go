package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/update"
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
func (d *decider) receive(l stage.Life) {
	batch := make([]*received.Message, 0, store.MaxBatch)
	var undecided []*received.Message
	for m := range d.incoming {
		batch = append(batch[:0], m)
		for len(batch) < store.MaxBatch && len(d.incoming) > 0 {
			batch = append(batch, <-d.incoming)
		}
		if l.Waiting.Err() != nil {
			undecided = append(undecided, batch...)
		} else {
			undecided = append(undecided, d.decideInParts(l, d.intake.decode(l, batch))...)
		}
		for _, m := range batch {
			if m.From.Deciding != nil {
				m.From.Deciding.Done()
			}
		}
	}
	for _, m := range undecided {
		d.settler.Nak(m, 0)
	}
}

// decode decodes a batch, and returns the events that need a decision. The others end here, are split, or are updates of posted messages.
func (i *intake) decode(l stage.Life, batch []*received.Message) (candidates []received.Candidate) {
	settled := make([]outcome.Settlement, 0, len(batch)) // most events of a flood end here
	now, forgotten := time.Now(), i.reader.ForgottenUntil()
	for _, m := range batch {
		if m.Lease.LeftAt(now) <= 0 { // its lease has expired: JetStream redelivers it
			m.LeaveHand()
			continue
		}
		if m.Meta.NumDelivered > 1 && i.settler.Knows(m) {
			settled = append(settled, outcome.Settlement{Message: m})
			continue
		}
		if m.Forged() {
			i.forged.Forged(trusted.Room, 1)
			settled = append(settled, outcome.Settlement{Message: m})
			continue
		}
		if i.replans.Asked(m) {
			m.Untraced = true // it is no event
			i.pool.Run(func() { i.replans.Replan(l.Working, m) })
			continue
		}
		if m.Meta.NumDelivered > 1 && m.Decoded == nil {
			i.metrics.Redelivered(1)
		}
		if m.Entry.Reason == room.Update {
			i.updater.Start(l, m)
			continue
		}
		drops := m.Entry.Order.Action == room.Drop
		c := received.Candidate{
			Message: m, Received: now, LookUp: drops || i.reader.TooOld(now, m) && !m.HoldsSlots(), Again: m.From.InRoom || m.Redelivered(forgotten),
		}
		if c.LookUp && !c.Again || drops && m.Entry.Reason == room.Body {
			m.About.Category = i.reader.CategoryOfMessage(m)
			settled = append(settled, outcome.WithoutRecord(m))
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
			case fault != nil && c.LookUp:
				settled = append(settled, outcome.WithoutRecord(m))
				continue
			case fault != nil:
				i.letters.Add(outcome.Letter{Message: m, Event: c.Event, Fault: fault})
				continue
			case denial == nil:
				candidates = append(candidates, c)
				continue
			}
		}
		settled = append(settled, i.refusals.Dropped(m, denial))
	}
	i.settler.Settle(settled...)
	return candidates
}

// decideInParts decides as many candidates at once as the pool has elements. When the worker ends, it returns the undecided messages.
func (d *decider) decideInParts(l stage.Life, candidates []received.Candidate) (undecided []*received.Message) {
	for len(candidates) > 0 {
		n := d.pool.Acquire(l.Waiting, len(candidates))
		if n == 0 || !d.decide(l, candidates[:n]) { // the worker has ended
			for _, c := range candidates {
				undecided = append(undecided, c.Message)
			}
			return undecided
		}
		candidates = candidates[n:]
	}
	return nil
}

// decide asks the throttle about candidates, each of which holds an element of the pool, and handles each decision. It waits for no single
// event. It returns false if the worker ends first.
func (d *decider) decide(l stage.Life, candidates []received.Candidate) (decided bool) {
	requests := make([]store.Request, len(candidates))
	for i, c := range candidates {
		requests[i] = c.Request()
		requests[i].MayWait = d.refusals.Waits(c.Event.Category)
		d.pairs.letFold(c, &requests[i])
	}
	asked, rules := time.Now(), d.throttle.Rules()
	decisions, err := d.throttle.Decide(l.Waiting, requests)
	if err != nil {
		return d.notDecided(l, candidates)
	}
	trip := outcome.RoundTrip{Asked: asked, Answered: time.Now(), Events: len(candidates)}
	var (
		settled  []outcome.Settlement
		unpaired []received.Candidate
		folded   []update.FoldedEvent
	)
	for i := range decisions {
		c, decision := candidates[i], &decisions[i]
		denial := decision.Denial(asked)
		d.reporter.TraceDecision(&candidates[i], trip, decision, denial)
		switch {
		case decision.Grant != nil: // it is admitted, or in shadow mode, where a denial is only measured
			d.deliverer.start(l, d.deliverer.newDelivery(c, decision, denial))
		case decision.Verdict == store.Unpaired && !c.Certain:
			unpaired = append(unpaired, c)
		default:
			end, ends := d.undelivered(l, c, decision, denial, rules)
			switch {
			case ends && end.Outcome == journal.Folded:
				folded = append(folded, update.FoldedEvent{Candidate: c, Request: requests[i], End: end})
			case ends:
				settled = append(settled, end)
			}
		}
	}
	d.pool.Release(len(settled) + len(unpaired))
	if len(unpaired) > 0 { // they hold no element of the pool, so other events are decided while the streams are searched
		d.pool.Run(func() { d.sortUnpaired(l, unpaired) })
	}
	if len(folded) > 0 {
		d.pool.Run(func() { d.folds.Settle(l, folded) })
	}
	d.settler.Settle(settled...)
	return true
}

// undelivered handles the decision about an event that is not delivered now. If the event ends, it returns the settlement. Otherwise the
// event waits, and gives up its element of the pool later. The limits that decided were these rules or newer ones.
func (d *decider) undelivered(
	l stage.Life, c received.Candidate, decision *store.Decision, denial *store.Denial, rules *store.Rules,
) (end outcome.Settlement, ends bool) {
	switch decision.Verdict {
	case store.Denied, store.ExceedsCapacity:
		if d.planner.Add(c, decision, denial, rules) {
			return outcome.Settlement{}, false
		}
		end = d.refusals.Dropped(c.Message, denial)
		return end, !d.planner.Forget(c, end)
	case store.Done:
		if rest := d.folds.Updater.UnshownOf(decision); rest.Any() {
			d.pool.Run(func() { d.folds.Updater.Show(l, c, rest) })
			return outcome.Settlement{}, false
		}
		return outcome.Done(c), true
	case store.Duplicate:
		end = outcome.Settlement{Message: c.Message, Outcome: journal.Duplicate}
		return end, !d.planner.Forget(c, end)
	case store.Unknown: // no worker has delivered it
		end = outcome.WithoutRecord(c.Message)
		return end, !d.planner.Forget(c, end)
	case store.Unpaired:
		return d.pairs.neverOpened(c, decision), true
	case store.Folded:
		failpoint.Reach(failpoint.AfterFold)
		return outcome.Settlement{Message: c.Message, Outcome: journal.Folded, Fold: decision.Fold}, true
	case store.Leased:
		d.awaitOther(l, c, decision)
	case store.Planned: // the message may not have been settled after the move
		d.mover.Hold(c, move.Goal{Reason: room.Slot, In: decision.Wait}, d.pool.Hold(1))
	case store.Deferred:
		d.mover.Hold(c, move.Goal{Reason: room.Redis, In: stage.Jitter(10 * stage.UndecidedDelay)}, d.pool.Hold(1))
	}
	return outcome.Settlement{}, false
}

// start begins a delivery, which holds an element of the pool. If channels are paced, the delivery releases the element at once, and otherwise when
// it takes long: a slow channel may not hold what other channels need. If its channel is paused or has earlier events, the event waits in the room.
// An event that needs more than a post releases the element, and enters its channel's lane later.
func (v *deliverer) start(l stage.Life, d *delivery) {
	if d.fromQueue() {
		v.mover.Queues.Learn(d.message.From.Token, d.destination)
	}
	enters := !d.admission.Doubt.Open && len(d.unshown.Messages) == 0 && !v.mutes.covers(d)
	if enters && !v.enter(d) {
		v.hold(d)
		return
	}
	if !enters || v.lanes.Ordered() {
		d.element.Release()
	}
	v.pool.Run(func() { v.deliver(l, d) })
}

// deliver hands the updates of the messages that the event resolves to the room, looks up what an earlier attempt may have posted, and posts
// the event when its destination takes it. It retries while the lease allows, and settles or postpones the event.
func (v *deliverer) deliver(l stage.Life, d *delivery) {
	l.Waiting, d.stopWait = context.WithCancel(l.Waiting)
	v.leases.add(d)
	defer v.end(d)
	defer time.AfterFunc(lane.StallTime, d.element.Release).Stop()
	for v.keepUpdates(l, d) && v.settleDoubt(l, d) && !v.dropMuted(l, d) && v.awaitTurn(l, d) {
		receipt, failure, attempted := v.attempt(l.Working, d)
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
func (v *deliverer) retries(l stage.Life, d *delivery, failure *sink.Error) bool {
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
	if again && d.admission.Doubt.Open {
		v.stepOut(d)
	}
	switch {
	case !again:
		return false
	case failure.Class == sink.RateLimited: // the turn comes when the pause is over
		return true
	case !await.For(l.Waiting, delay):
		v.postpone(l, d, 0)
		return false
	}
	return true
}

// record records a delivery. The first worker that records it counts its outcome: its message may be settled more than once. If the room had no
// place for what the event changes, the message comes back for that.
func (v *deliverer) record(l stage.Life, d *delivery, receipt string) {
	d.message.Span.Ended(string(journal.Sent))
	if d.unshown.Any() {
		d.admission.Grant.KeepPair()
	}
	newly, owed := d.admission.Grant.Finish(l.Ending(), receipt)
	failpoint.Reach(failpoint.AfterRecord)
	if newly {
		posted := outcome.Sent{
			Message: d.message, Denial: d.denial, Resolves: d.event.Resolves(), Channel: d.destination, Receipt: receipt, Recorded: time.Now(),
		}
		v.settler.CountSent(posted)
		defer v.reporter.RecordSent(posted) // once the message is handed over to be acknowledged
	}
	if d.unshown.Any() {
		v.settler.Nak(d.message, stage.Jitter(stage.MisconfiguredBackoff))
		return
	}
	v.settler.SettleAfter(owed, outcome.Settlement{Message: d.message})
}

func (v *deliverer) failed(l stage.Life, d *delivery, failure *sink.Error) (delay time.Duration, again bool) {
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
	v.reporter.RecordFailed(d.message, d.destination, failure)
	switch failure.Class {
	case sink.RateLimited:
		v.lanes.Pause(l.Working, d.destination, failure.RetryAfter)
		if ends := time.Now().Add(failure.RetryAfter); v.reporter.Reader.TooOld(ends, d.message) {
			v.health.Expires(d.destination, d.message.Traced("until", ends)...)
		}
		return 0, true
	case sink.Misconfigured:
		v.health.Misconfigure(d.destination, d, failure, d.message.Traced()...)
		delay = stage.RetryDelay(stage.MisconfiguredBackoff, d.attempts-1)
		if failure.OfChannel {
			v.lanes.PauseRefusing(l.Working, d.destination, delay)
		}
		return delay, true
	case sink.Unknown:
		d.admission.Doubt.Attempted(d.began, time.Now())
	case sink.Transient, sink.Rejected, sink.OK:
	}
	if l.Working.Err() != nil {
		v.postpone(l, d, 0)
		return 0, false
	}
	v.health.Failed(failure, d.message.Traced()...)
	delay = stage.RetryDelay(stage.FirstBackoff, d.attempts-1+attemptsPerDelivery*int(min(d.message.Meta.NumDelivered-1, stage.EnoughDoublings)))
	if time.Since(d.began)+delay+v.sendTimeout > v.settler.Lease { // another attempt would not end within the first lease
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
