package consume

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/health"
	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/update"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// deliverer delivers admitted events. Each delivery has a goroutine.
type deliverer struct {
	lanes       *lane.Lanes
	sink        Sink
	sendTimeout time.Duration
	settler     *outcome.Settler
	mover       *move.Mover
	pool        *stage.Pool
	leases      *leaseRenewer
	health      *health.Health[*delivery]
	reporter    *outcome.Reporter
	doubts      *doubts
	mutes       muteCheck
	updater     *update.Updater
}

func (v *deliverer) newDelivery(c received.Candidate, decision *store.Decision, denial *store.Denial) *delivery {
	if c.Entry.IsReport() {
		update.BecomeReport(&c.Event, *c.Entry, decision)
	}
	d := &delivery{
		message: c.Message, event: c.Event, denial: denial,
		admission: outcome.Admission{Grant: decision.Grant, Doubt: v.doubts.about(c, decision), Anew: decision.Verdict != store.Reclaimed},
		opened:    decision.Opened(), unshown: v.updater.UnshownOf(decision), element: v.pool.Hold(1),
		name: v.doubts.nameOf(c), seen: sink.Seen{Flapping: decision.Flaps, Fires: true},
	}
	d.destination = v.sink.Destination(sink.Delivery{Event: c.Event, Opened: decision.Opened()})
	if own := d.ownDestination(v.sink); own != d.destination && (c.From.IsQueueOf(own) || v.health.Lost(d.destination)) { // the thread is lost
		d.alone, d.destination = true, own
	}
	return d
}

// enter gives a delivery a place in its channel's lane. It returns false if the event has to wait in the room.
func (v *deliverer) enter(d *delivery) bool {
	d.place = v.lanes.Enter(lane.Delivery{
		Channel: d.destination, Size: d.message.Length(), Queued: d.fromQueue(), Again: d.attempts > 0, Since: d.message.Entry.Since,
		Critical: d.event.Severity == event.SeverityCritical,
	})
	return d.place != nil
}

// stepOut gives up a delivery's place in its channel's lane, which it may enter again, and its element of the pool.
func (v *deliverer) stepOut(d *delivery) {
	if d.place != nil {
		d.place.Leave()
		d.place = nil
	}
	d.element.Release()
}

// awaitTurn waits until a delivery may be attempted. If it returns false, the delivery was postponed or settled. If the stream does not say whether
// another worker has ended the event, the event is delivered.
func (v *deliverer) awaitTurn(l stage.Life, d *delivery) bool {
	if d.place == nil && !v.enter(d) {
		v.waitInRoom(l, d)
		return false
	}
	for {
		wait, ok, lost := v.awaitPost(l, d)
		if lost {
			d.lose()
		}
		if !ok {
			if v.dropMuted(l, d) {
				return false
			}
			v.postpone(l, d, wait)
			return false
		}
		if v.reporter.Reader.TooOld(time.Now(), d.message) {
			v.settler.Expire(l, d.message, d.admission)
			return false
		}
		if v.health.Turn(l.Waiting, d.destination, d) {
			ended, _ := v.settler.EndedElsewhere(l, d.message, d.admission)
			return !ended
		}
		if l.Waiting.Err() != nil {
			v.postpone(l, d, 0)
			return false
		}
	}
}

// toSend returns what the sink sends.
func (d *delivery) toSend() sink.Delivery {
	out := sink.Delivery{Event: d.event, Stored: d.message.Entry.Origin.Stored, Name: d.name, Opened: d.opened, Seen: d.seen}
	if d.alone {
		out.Opened = sink.WithoutMessage(d.opened)
	}
	return out
}

// keepUpdates stores the updates of the messages that the event resolves in the room, before the post, and the report about a flapping key: they
// survive whatever becomes of the event, and the event waits for none of them. If the room has no place for them, the event comes back for
// them after its post. It returns false if the delivery has ended.
func (v *deliverer) keepUpdates(l stage.Life, d *delivery) bool {
	err := v.updater.KeepAll(l.Ending(), d.message, d.event, &d.unshown)
	if err != nil {
		v.settler.GiveBack(d.message, d.admission, stage.Jitter(stage.MisconfiguredBackoff))
	}
	return err == nil
}

// attempt posts once. The lease outlasts the post or was renewed just now for longer than a post takes. Without such a lease, or after the work
// context has ended, attempt does not post. Nor does it post an event that is muted when its request is ready.
func (v *deliverer) attempt(work context.Context, d *delivery) (receipt string, failure *sink.Error, attempted bool) {
	leased := work.Err() == nil && (d.message.Lease.Left() >= v.sendTimeout || v.settler.Lease >= v.sendTimeout && v.leases.extend(work, d))
	if !leased || d.lost.Load() {
		return "", nil, false
	}
	began := time.Now()
	failpoint.Reach(failpoint.BeforePost)
	check, refused := v.mutes.ofPost(d)
	receipt, err := v.sink.Send(sink.WithCheck(d.message.Span.In(work), check), d.toSend())
	if *refused {
		return "", nil, false
	}
	if d.attempts++; d.attempts == 1 {
		d.began = began
	}
	failure = sink.FailureOf(err, d.destination)
	if failure == nil {
		failpoint.Reach(failpoint.AfterPost)
	}
	if !isOfAll(failure) {
		d.place.StepAside()
	}
	return receipt, failure, true
}

// isOfAll reports whether other deliveries to the channel would fail as well. They wait for this delivery, which keeps its permit.
func isOfAll(failure *sink.Error) bool {
	return failure != nil && (failure.Class == sink.RateLimited || failure.Class == sink.Misconfigured)
}

// postpone puts an event that waits for its destination at the end of the channel's queue. An event from that queue keeps its place. An event
// that has not entered its channel's lane comes back after the delay.
// Without a delay, the event goes to the next worker. It keeps its slot, unless another worker has ended it: nobody gets its message again.
func (v *deliverer) postpone(l stage.Life, d *delivery, delay time.Duration) {
	if d.lost.Load() || d.message.Lease.Left() <= 0 { // someone else may have the lease by now
		v.settler.LeaveLost(d.message, d.admission)
		return
	}
	if delay > 0 && d.place != nil && !d.fromQueue() && l.Working.Err() == nil {
		v.waitInRoom(l, d)
		return
	}
	if d.fromQueue() && d.place != nil && d.attempts == 0 && delay > 0 { // the whole queue waits for the channel
		// The open request may wait for a place in the hand.
		d.message.LeaveHand()
		v.lanes.Rest(d.destination, max(delay, lane.MemoryWait+2*pollTime)) // the next request comes well after the nak
		v.lanes.AwaitFetched(l.Waiting, d.message.From.Lane())              // the open request would bring the event back behind later ones
		v.lanes.AwaitFetched(l.Waiting, d.destination)
		delay = 0
	}
	v.settler.GiveBack(d.message, d.admission, delay)
}

// waitInRoom moves an event to its channel's queue unless another worker has ended it, and waits for the end of the move. If the stream does not say
// whether another worker has, the event goes back to its stream, because the room would not answer either.
func (v *deliverer) waitInRoom(l stage.Life, d *delivery) {
	ended, err := v.settler.EndedElsewhere(l, d.message, d.admission)
	switch {
	case ended:
		return
	case err != nil:
		v.settler.GiveBack(d.message, d.admission, stage.Jitter(stage.MisconfiguredBackoff))
		return
	}
	moving := v.hold(d)
	if d.place != nil {
		d.place.LetNext() // the next delivery may follow it to the room
	}
	<-moving.Ended
}

// hold moves an admitted event to its channel's queue. If it may not stay there, its slot is returned.
func (v *deliverer) hold(d *delivery) *move.Move {
	stored := v.lanes.Store(d.destination)
	goal := move.Goal{Reason: room.Channel, Channel: d.destination}
	if d.admission.InDoubt() {
		goal.Attempted = v.reporter.Reader.Streams.Clock.Earliest(d.admission.Doubt.First)
	}
	moving := v.mover.NewMove(received.Candidate{Message: d.message, Event: d.event}, goal)
	moving.Admission, moving.Stored, moving.Element = d.admission, stored, d.element
	v.mover.Add(moving)
	return moving
}

// reject stores an undeliverable message as a dead letter and ends its grant.
func (v *deliverer) reject(l stage.Life, d *delivery, failure *sink.Error) {
	fault := event.NewFault(event.ReasonRejected, failure.Err.Error())
	if d.message.Entry.IsReport() { // no operator can replay it
		v.updater.GiveUp(d.message, failure, d.admission.EndUndelivered(l.Ending()))
		return
	}
	if !v.settler.StoreLetter(l.Ending(), d.message, d.event, fault) {
		v.settler.GiveBack(d.message, d.admission, stage.Jitter(stage.MisconfiguredBackoff))
		return
	}
	failpoint.Reach(failpoint.AfterLetter)
	owed := d.admission.EndUndelivered(l.Ending())
	failpoint.Reach(failpoint.AfterReturn)
	v.settler.Terminate(d.message, fault, owed)
}

// delivery is one admitted event on its way out.
type delivery struct {
	message     *received.Message
	event       event.Event
	admission   outcome.Admission
	denial      *store.Denial // the denial of an event in shadow mode; it is only measured
	opened      string        // the receipt of the first message that the event resolves; "" for none
	alone       bool          // it is a message of its own, because the thread of the first message is lost
	unshown     update.Unshown
	name        string // of the post: see [sink.NameOf]
	seen        sink.Seen
	destination string
	attempts    int         // of this worker at the post
	began       time.Time   // when the first of them began
	place       *lane.Place // in its channel's lane; nil: it has none
	element     *stage.Held // of the pool

	lost     atomic.Bool        // another worker may be delivering the event by now
	stopWait context.CancelFunc // ends its waiting; set when the delivery begins
}

// lose records that another worker may be delivering the event by now.
func (d *delivery) lose() {
	d.lost.Store(true)
	d.stopWait()
}

// fromQueue reports whether the event comes from its channel's queue in the room.
func (d *delivery) fromQueue() bool { return d.message.From.IsQueueOf(d.destination) }

// ownDestination returns where the event goes as a message of its own.
func (d *delivery) ownDestination(by Sink) string {
	return by.Destination(sink.Delivery{Event: d.event, Opened: sink.WithoutMessage(d.opened)})
}

// shortWait is how long a delivery waits for its post before Redis learns of it. Deliveries that are posted at once cost no call.
const shortWait = 100 * time.Millisecond

// awaitPost waits until the event may be posted, as [lane.Place.AwaitPost] does. Redis knows of a longer wait: if the worker dies meanwhile, nobody
// has to look for the post. If Redis cannot learn that the wait is over, ok is false. If lost is true, another worker may be delivering the event.
func (v *deliverer) awaitPost(l stage.Life, d *delivery) (wait time.Duration, ok, lost bool) {
	if d.admission.InDoubt() {
		wait, ok = d.place.AwaitPost(l.Waiting)
		return wait, ok, false
	}
	grant, recorded := d.admission.Grant, make(chan struct{})
	recording := time.AfterFunc(shortWait, func() {
		defer close(recorded)
		_, _ = grant.SetWaiting(l.Ending(), true) // if it fails, the end of the wait is recorded all the same
	})
	wait, ok = d.place.AwaitPost(l.Waiting)
	if recording.Stop() {
		return wait, ok, false
	}
	<-recorded
	if !ok {
		return wait, false, false
	}
	held, err := grant.SetWaiting(l.Working, false)
	return 0, held, err == nil && !held
}

// attemptsPerDelivery is roughly how many attempts a worker makes. The next worker continues the back-off from there.
const attemptsPerDelivery = 3
