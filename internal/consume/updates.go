package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// UpdatePacer paces updates: [pacing.Pacer]. Its methods may be called concurrently.
type UpdatePacer interface {
	// BeginUpdate reserves an update and begins it when it is due. If it does not begin, the caller asks again after the wait. Updated ends it.
	BeginUpdate(ctx context.Context, u pacing.Update) pacing.Reservation
	Updated(ctx context.Context, message string, order int64)

	// PauseUpdates stops updates for d, on all instances.
	PauseUpdates(ctx context.Context, d time.Duration)
}

// UpdateSink updates messages: a part of [sink.Sink]. Its methods may be called concurrently.
type UpdateSink interface {
	Destination(d sink.Delivery) string

	// Updatable reports whether the message of a receipt can be updated. Update changes the message to show that d has resolved it. Update may
	// be repeated; a failure is a *sink.Error, which is Rejected if the message can never be updated.
	Updatable(receipt string) bool
	Update(ctx context.Context, d sink.Delivery, receipt string) error
}

// updateStates knows which states of messages are shown and are to be shown.
type updateStates struct {
	UpdatePacer
	Folds
	steadyAfter time.Duration // see updaterOptions.Flap
}

// updater makes the updates of posted messages. Each of them is an entry of the room, which survives kills, and in which a newer state of the
// message takes the place of an older one. No event waits for an update. Its methods may be called concurrently.
type updater struct {
	streams     *stream.Client
	room        stay.Room
	sink        UpdateSink
	states      updateStates
	sendTimeout time.Duration
	reader      *reader
	reporter    *reporter
	settler     *settler
	pool        *pool
	metrics     RoomMetrics
	permits     chan struct{} // has an element for each update that is waited for or made
	log         updateLog
}

type updateLog struct {
	storing, making *oplog.Condition
	*slog.Logger
}

// updaterOptions configure an updater.
type updaterOptions struct {
	Streams     *stream.Client
	Room        stay.Room
	Sink        UpdateSink
	Pacer       UpdatePacer
	Folds       Folds
	Flap        time.Duration // how long a flapping key has not changed when it is steady
	SendTimeout time.Duration // longest duration of a request
	Concurrency int           // posts to one channel at once: a fourth of the updates at once
	Settler     *settler
	Pool        *pool
	Metrics     RoomMetrics
	Logger      *slog.Logger
}

func newUpdater(o updaterOptions) *updater {
	return &updater{
		streams: o.Streams, room: o.Room, sink: o.Sink, states: updateStates{o.Pacer, o.Folds, o.Flap}, sendTimeout: o.SendTimeout,
		reader: o.Settler.reader, reporter: o.Settler.reporter, settler: o.Settler, pool: o.Pool, metrics: o.Metrics,
		permits: make(chan struct{}, 4*o.Concurrency),
		log: updateLog{
			storing: oplog.NewCondition(o.Logger, "cannot store updates of messages", "storing updates of messages again"),
			making:  oplog.NewCondition(o.Logger, "updates of messages fail: retrying", "updates of messages work again"),
			Logger:  o.Logger,
		},
	}
}

// failing returns why the update that was last to be stored was not; nil if it was.
func (u *updater) failing() error { return u.log.storing.Failing() }

// change is a state that a posted message is to show: how an event changes it.
type change struct {
	receipt string        // of the message
	order   int64         // of the state: see room.Entry. Below resolvedOrder see countedOrder.
	count   store.Count   // of a resolved message: what is folded into it
	in      time.Duration // until the message may show the state; 0: at once. An earlier time of an older state stays.
}

const resolvedOrder = pacing.MostOrder

// countedOrder is the order of the state in which a message shows what is folded into it, and afterwards that its key is steady.
func countedOrder(folded int64, steady bool) int64 {
	if steady {
		return 2*folded + 1
	}
	return 2 * folded
}

// errNoPlace is the error of an update or a report for which the room has no place: the share of its first level is used up.
var errNoPlace = errors.New("the room has no place for it")

// unshown is what the room does not have yet of a posted event.
type unshown struct {
	flaps    bool             // the key of the event is flapping: the report about that
	messages []store.Resolved // the messages that the event resolves: their updates
}

func (s *unshown) any() bool { return s.flaps || len(s.messages) > 0 }

// unshownOf returns what the room is to have of an event that is or was delivered.
func (u *updater) unshownOf(decision *store.Decision) unshown {
	s := unshown{flaps: decision.Flaps}
	for _, message := range decision.Resolved {
		if decision.Opened() != "" && u.sink.Updatable(message.Receipt) {
			s.messages = append(s.messages, message)
		}
	}
	return s
}

// keepAll stores the report and the updates of an event in the room, and leaves those for which the room has no place. It drops those that are
// too large for the room. After an error nothing is known to be stored.
func (u *updater) keepAll(ctx context.Context, m *message, e event.Event, s *unshown) error {
	if s.flaps {
		_, err := u.keepReport(ctx, m, e, store.Request{Message: store.Message(m.entry.Origin)}.Change())
		s.flaps = errors.Is(err, errNoPlace)
		if err != nil && !s.flaps && !messagesize.IsTooLarge(err) {
			return err
		}
	}
	var refused []store.Resolved
	for _, message := range s.messages {
		next := change{receipt: message.Receipt, order: resolvedOrder, count: message.Count}
		if next.count.StaysOpen {
			next.order = countedOrder(next.count.Folded, true)
		}
		err := u.keep(ctx, m, e, next)
		if errors.Is(err, errNoPlace) {
			refused = append(refused, message)
		} else if err != nil && !messagesize.IsTooLarge(err) {
			return err
		}
	}
	s.messages = refused
	return nil
}

// keep stores a change of a message in the room, unless the room has a newer state. After an error nothing is known to be stored.
func (u *updater) keep(ctx context.Context, m *message, e event.Event, c change) error {
	u.reporter.trace(m, time.Now())
	entry, first := m.entryFor(e, room.Update), u.reader.firstLevel(m, e)
	entry.Receipt, entry.State, entry.Count = c.receipt, c.order, countText(c.count)
	place := stay.Of(first, entry, room.Kept(m.Header, m.Data), c.in+stayIn)
	mayStay, err := u.room.EnterRoom(ctx, []store.Stay{place})
	if err == nil && !mayStay[0] {
		u.metrics.RoomRefused(string(room.Update), 1)
		return errNoPlace
	}
	err = u.store(ctx, first, m, entry, c.in)
	if messagesize.IsTooLarge(err) {
		u.metrics.RoomRefused(string(room.Update), 1)
		return err
	}
	u.log.storing.Note(err)
	return err
}

// show ends an event that was delivered before, once the room has what it had no place for then.
func (u *updater) show(l life, c candidate, rest unshown) {
	defer u.pool.hold(1).whileRoomAnswers()()
	if err := u.keepAll(l.ending(), c.message, c.event, &rest); err != nil || rest.any() {
		u.settler.nak(c.message, jitter(misconfiguredBackoff))
		return
	}
	failpoint.Reach(failpoint.AfterKeep)
	u.settler.settle(done(c))
}

// store stores an entry, with the body of a message, in place of an older state of the posted message. A worker takes it after a time. It changes
// nothing if the room has this state or a newer one there.
func (u *updater) store(ctx context.Context, first string, m *message, entry room.Entry, in time.Duration) error {
	subject, target := u.streams.Names.Room().Schedule(room.Update, first, stay.MessageOf(entry.Receipt))
	due := u.streams.Clock.Latest().Add(in)
	if in <= 0 {
		subject = target
	}
	_, err := u.replace(ctx, subject, func(before storedUpdate) *nats.Msg {
		if before.entry.State >= entry.State {
			return nil
		}
		toStore := entry.Message(subject, m.Header, m.Data)
		if subject != target {
			if before.due.After(time.Time{}) && before.due.Before(due) {
				due = before.due
			}
			room.ScheduleAt(toStore, target, due)
		}
		return toStore
	})
	return err
}

// replace stores a message in place of the entry on a subject of the room, again and again until no other worker has stored another entry
// meanwhile. If next returns nil, the entry stays. It returns the entry before.
func (u *updater) replace(ctx context.Context, subject string, next func(before storedUpdate) *nats.Msg) (storedUpdate, error) {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	for {
		before, err := u.stored(ctx, subject)
		if err != nil {
			return before, err
		}
		toStore := next(before)
		if toStore == nil {
			return before, nil
		}
		room.Replace(toStore)
		_, err = u.streams.JetStream.PublishMsg(ctx, toStore, jetstream.WithExpectLastSequencePerSubject(before.sequence))
		if !room.IsOutrun(err) {
			return before, err
		}
	}
}

// storedUpdate is the entry on a subject of the room; the zero value if there is none.
type storedUpdate struct {
	sequence uint64
	entry    room.Entry
	due      time.Time
}

// stored reads the entry on a subject of the room. It ignores a forged one.
func (u *updater) stored(ctx context.Context, subject string) (found storedUpdate, err error) {
	m, err := u.streams.Layout().Room.Stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return storedUpdate{}, nil
	}
	if err != nil {
		return storedUpdate{}, fmt.Errorf("looking for an earlier update: %w", err)
	}
	found.sequence = m.Sequence
	if entry, err := room.Read(m.Header, m.Time); err == nil {
		found.entry = entry
		found.due, _ = room.DueAt(m.Header)
	}
	return found, nil
}

const (
	// updateWithin is how long a worker waits for a reserved update. An update that is further away waits in the room.
	updateWithin = 3 * time.Second
	// updateEarly is how much earlier than its slot such an update comes back: JetStream stores a schedule up to a second late.
	updateEarly = 2 * time.Second
	// longestReserved is how far ahead updates are reserved. Later ones ask again then.
	longestReserved = time.Hour
	// updateBackoff is the time between two attempts at an update.
	updateBackoff = 10 * time.Second
	// shortWaits are not worth another entry in the room.
	shortWaits = time.Second
)

// start begins the update of an entry of the room, or returns the entry to the room if too many are under way: it never blocks.
func (u *updater) start(l life, m *message) {
	select {
	case u.permits <- struct{}{}:
		u.pool.run(func() {
			defer func() { <-u.permits }()
			u.update(l, m)
		})
	default:
		u.settler.nak(m, jitter(shortWaits))
	}
}

// update makes the update of an entry and ends the entry. It stays in the room if the budget of updates has no place for it soon.
func (u *updater) update(l life, m *message) {
	u.reporter.trace(m, time.Now())
	e, err := u.reader.Decode(m.published())
	if err == nil && u.streams.Clock.Since(m.entry.Since) > stayIn {
		err = errTooLate
	}
	if err != nil {
		u.giveUp(m, err, nil)
		return
	}
	m.about.category, m.about.shownID, m.about.title = e.Category, e.ShownID(), e.Title
	state := pacing.Update{
		Message: stay.MessageOf(m.entry.Receipt), Order: m.entry.State, MaxWait: longestReserved, Within: updateWithin, Lasts: 2 * u.sendTimeout,
	}
	reserved := u.states.BeginUpdate(l.waiting, state)
	switch {
	case reserved.Obsolete:
		u.settler.settle(settlement{message: m})
	case l.waiting.Err() != nil:
		u.settler.nak(m, 0)
	case !reserved.OK && reserved.Wait <= updateWithin: // another state of the message is under way
		u.wait(l, m, e, reserved.Wait)
	case !reserved.OK:
		u.wait(l, m, e, min(reserved.Wait-updateEarly, longestReserved))
	case !await.For(l.waiting, reserved.Wait), !u.holds(l.working, m):
		u.settler.nak(m, 0)
	default:
		u.attempt(l, m, e, state)
	}
}

var errTooLate = errors.New("it has waited for too long")

// holds reports whether the lease of an entry outlasts a request or was renewed just now.
func (u *updater) holds(work context.Context, m *message) bool {
	return work.Err() == nil && (m.lease.left() >= u.sendTimeout || u.settler.extend(work, m) == nil)
}

// attempt makes one request, and decides what becomes of the entry.
func (u *updater) attempt(l life, m *message, e event.Event, state pacing.Update) {
	d := sink.Delivery{Event: e, Stored: m.entry.Origin.Stored, Opened: m.entry.Receipt, Seen: seenOf(countOf(m.entry.Count))}
	if state.Order != resolvedOrder {
		seen, ok := u.count(l, m, e)
		if !ok {
			return
		}
		d.Seen, d.Event.Status = seen, "" // the message shows its own status
	} else if m.entry.IsReport() {
		d.Event.Status, d.Event.Time = event.StatusResolved, store.Change(m.entry.Steady).At()
	}
	failpoint.Reach(failpoint.BeforeUpdate)
	failure := sink.FailureOf(u.sink.Update(m.span.In(l.working), d, m.entry.Receipt), u.sink.Destination(d))
	if failure == nil {
		failpoint.Reach(failpoint.AfterShow)
	}
	isOver := failure == nil || failure.Class == sink.Rejected
	if isOver && failure != nil && state.Order != resolvedOrder { // later repeats would be hidden in this message
		isOver = u.states.GiveUp(l.ending(), countedIn(e), m.entry.Receipt) == nil
	}
	if isOver {
		u.states.Updated(l.ending(), state.Message, state.Order)
	}
	switch {
	case failure == nil:
		u.log.making.Note(nil)
		failpoint.Reach(failpoint.AfterUpdate)
		u.settler.settle(settlement{message: m})
	case isOver:
		u.giveUp(m, failure, nil)
	case failure.Class == sink.RateLimited:
		u.states.PauseUpdates(l.working, failure.RetryAfter)
		u.wait(l, m, e, failure.RetryAfter-updateEarly)
	default:
		u.log.making.Note(failure, m.traced()...)
		u.wait(l, m, e, jitter(updateBackoff))
	}
}

// giveUp ends an update that cannot be made, or a report, whose message is settled after owed. The posted message keeps its state.
func (u *updater) giveUp(m *message, err error, owed <-chan struct{}) {
	u.log.Warn("a message cannot be updated", m.traced("id", u.reader.shownID(m), "category", m.about.category, "error", err)...)
	u.settler.settleAfter(owed, settlement{message: m})
}

// wait keeps an entry in the room for a time. A newer state may take its place meanwhile.
func (u *updater) wait(l life, m *message, e event.Event, d time.Duration) {
	if d <= shortWaits {
		u.settler.nak(m, max(d, 0))
		return
	}
	err := u.store(l.ending(), u.reader.firstLevel(m, e), m, m.entryFor(e, room.Update), d)
	u.log.storing.Note(err)
	if err != nil {
		u.settler.nak(m, jitter(misconfiguredBackoff))
		return
	}
	m.span.Ended(tracing.Waiting)
	m.span.WaitsFor(string(room.Update))
	u.settler.settle(settlement{message: m, goesOn: true})
}
