package update

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
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

// Pacer paces updates: [pacing.Pacer]. Its methods may be called concurrently.
type Pacer interface {
	// BeginUpdate reserves an update and begins it when it is due. If it does not begin, the caller asks again after the wait. Updated ends it.
	BeginUpdate(ctx context.Context, u pacing.Update) pacing.Reservation
	Updated(ctx context.Context, message string, order int64)

	// PauseUpdates stops updates for d, on all instances.
	PauseUpdates(ctx context.Context, d time.Duration)
}

// Sink updates messages: a part of [sink.Sink]. Its methods may be called concurrently.
type Sink interface {
	Destination(d sink.Delivery) string

	// Updatable reports whether the message of a receipt can be updated. Update changes the message to show that d has resolved it. Update may
	// be repeated; a failure is a *sink.Error, which is Rejected if the message can never be updated.
	Updatable(receipt string) bool
	Update(ctx context.Context, d sink.Delivery, receipt string) error
}

// updateStates knows which states of messages are shown and are to be shown.
type updateStates struct {
	Pacer
	Folds
	steadyAfter time.Duration // see Options.Flap
	showsFolds  bool          // see Options.ShowsFolds
}

// Updater makes the updates of posted messages. Each of them is an entry of the room, which survives kills, and in which a newer state of the
// message takes the place of an older one. No event waits for an update. Its methods may be called concurrently.
type Updater struct {
	streams     *stream.Client
	room        stay.Room
	sink        Sink
	states      updateStates
	sendTimeout time.Duration
	reader      *received.Reader
	reporter    *outcome.Reporter
	settler     *outcome.Settler
	pool        *stage.Pool
	metrics     outcome.RoomMetrics
	permits     chan struct{} // has an element for each update that is waited for or made
	log         updateLog
}

type updateLog struct {
	storing, making *oplog.Condition
	*slog.Logger
}

// Options configure an updater.
type Options struct {
	Streams     *stream.Client
	Room        stay.Room
	Sink        Sink
	Pacer       Pacer
	Folds       Folds
	Flap        time.Duration // how long a flapping key has not changed when it is steady
	ShowsFolds  bool          // messages show what is folded into them; else the digests count it
	SendTimeout time.Duration // longest duration of a request
	Concurrency int           // posts to one channel at once: a fourth of the updates at once
	Settler     *outcome.Settler
	Pool        *stage.Pool
	Metrics     outcome.RoomMetrics
	Logger      *slog.Logger
}

// NewUpdater returns an updater, which settles through the settler of its options.
func NewUpdater(o Options) *Updater {
	return &Updater{
		streams: o.Streams, room: o.Room, sink: o.Sink, states: updateStates{o.Pacer, o.Folds, o.Flap, o.ShowsFolds}, sendTimeout: o.SendTimeout,
		reader: o.Settler.Reader, reporter: o.Settler.Reporter, settler: o.Settler, pool: o.Pool, metrics: o.Metrics,
		permits: make(chan struct{}, 4*o.Concurrency),
		log: updateLog{
			storing: oplog.NewCondition(o.Logger, "cannot store updates of messages", "storing updates of messages again"),
			making:  oplog.NewCondition(o.Logger, "updates of messages fail: retrying", "updates of messages work again"),
			Logger:  o.Logger,
		},
	}
}

// Failing returns why the update that was last to be stored was not; nil if it was.
func (u *Updater) Failing() error { return u.log.storing.Failing() }

// change is a state that a posted message is to show: how an event changes it.
type change struct {
	receipt string        // of the message
	order   int64         // of the state: see room.Entry. Below ResolvedOrder see CountedOrder.
	count   store.Count   // of a resolved message: what is folded into it
	in      time.Duration // until the message may show the state; 0: at once. An earlier time of an older state stays.
}

// ResolvedOrder is the order of the last state of a message: it is resolved.
const ResolvedOrder = pacing.MostOrder

// CountedOrder is the order of the state in which a message shows what is folded into it, and afterwards that its key is steady.
func CountedOrder(folded int64, steady bool) int64 {
	if steady {
		return 2*folded + 1
	}
	return 2 * folded
}

// errNoPlace is the error of an update or a report for which the room has no place: the share of its first level is used up.
var errNoPlace = errors.New("the room has no place for it")

// Unshown is what the room does not have yet of a posted event.
type Unshown struct {
	flaps    bool             // the key of the event is flapping: the report about that
	Messages []store.Resolved // the messages that the event resolves: their updates
}

// Any reports whether the room lacks anything.
func (s *Unshown) Any() bool { return s.flaps || len(s.Messages) > 0 }

// UnshownOf returns what the room is to have of an event that is or was delivered.
func (u *Updater) UnshownOf(decision *store.Decision) Unshown {
	s := Unshown{flaps: decision.Flaps}
	for _, message := range decision.Resolved {
		if u.sink.Updatable(message.Receipt) {
			s.Messages = append(s.Messages, message)
		}
	}
	return s
}

// KeepAll stores the report and the updates of an event in the room, and leaves those for which the room has no place. It drops those that are
// too large for the room. After an error nothing is known to be stored.
func (u *Updater) KeepAll(ctx context.Context, m *received.Message, e event.Event, s *Unshown) error {
	if s.flaps {
		_, err := u.KeepReport(ctx, m, e, store.Request{Message: store.Message(m.Entry.Origin)}.Change())
		s.flaps = errors.Is(err, errNoPlace)
		if err != nil && !s.flaps && !messagesize.IsTooLarge(err) {
			return err
		}
	}
	var refused []store.Resolved
	for _, message := range s.Messages {
		next := change{receipt: message.Receipt, order: ResolvedOrder, count: message.Count}
		if next.count.StaysOpen {
			next.order = CountedOrder(next.count.Folded, true)
		}
		err := u.keep(ctx, m, e, next)
		if errors.Is(err, errNoPlace) {
			refused = append(refused, message)
		} else if err != nil && !messagesize.IsTooLarge(err) {
			return err
		}
	}
	s.Messages = refused
	return nil
}

// keep stores a change of a message in the room, unless the room has a newer state. After an error nothing is known to be stored.
func (u *Updater) keep(ctx context.Context, m *received.Message, e event.Event, c change) error {
	u.reporter.Trace(m, time.Now())
	entry, first := m.EntryFor(e, room.Update), u.reader.FirstLevel(m, e)
	entry.Receipt, entry.State, entry.Count = c.receipt, c.order, countText(c.count)
	place := stay.Of(first, entry, room.Kept(m.Header, m.Data), c.in+outcome.StayIn)
	mayStay, err := u.room.EnterRoom(ctx, []store.Stay{place})
	if err == nil && !mayStay[0] {
		u.metrics.RoomRefused(string(room.Update), 1)
		return errNoPlace
	}
	err = u.Store(ctx, first, m, entry, c.in)
	if messagesize.IsTooLarge(err) {
		u.metrics.RoomRefused(string(room.Update), 1)
		return err
	}
	u.log.storing.Note(err)
	return err
}

// Show ends an event that was delivered before, once the room has what it had no place for then.
func (u *Updater) Show(l stage.Life, c received.Candidate, rest Unshown) {
	defer u.pool.Hold(1).WhileRoomAnswers()()
	if err := u.KeepAll(l.Ending(), c.Message, c.Event, &rest); err != nil || rest.Any() {
		u.settler.Nak(c.Message, stage.Jitter(stage.MisconfiguredBackoff))
		return
	}
	failpoint.Reach(failpoint.AfterKeep)
	u.settler.Settle(outcome.Done(c))
}

// Store stores an entry, with the body of a message, in place of an older state of the posted message. A worker takes it after a time. It changes
// nothing if the room has this state or a newer one there.
func (u *Updater) Store(ctx context.Context, first string, m *received.Message, entry room.Entry, in time.Duration) error {
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

// replace stores a message schedule in place of the entry on a subject of the room, again and again until no other worker has stored another
// entry meanwhile. A message that is due at once is stored beside the entry, which ends as obsolete: the server (2.15) miscounts the
// acknowledgements of a consumer when it removes a message that the consumer has delivered. If next returns nil, nothing is stored. It returns
// the entry before.
func (u *Updater) replace(ctx context.Context, subject string, next func(before storedUpdate) *nats.Msg) (storedUpdate, error) {
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
		if _, isSchedule := room.DueAt(toStore.Header); isSchedule {
			room.Replace(toStore)
		}
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
func (u *Updater) stored(ctx context.Context, subject string) (found storedUpdate, err error) {
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
	// UpdateEarly is how much earlier than its slot such an update comes back: JetStream stores a schedule up to a second late.
	UpdateEarly = 2 * time.Second
	// longestReserved is how far ahead updates are reserved. Later ones ask again then.
	longestReserved = time.Hour
	// updateBackoff is the time between two attempts at an update.
	updateBackoff = 10 * time.Second
	// shortWaits are not worth another entry in the room.
	shortWaits = time.Second
)

// Start begins the update of an entry of the room, or returns the entry to the room if too many are under way: it never blocks.
func (u *Updater) Start(l stage.Life, m *received.Message) {
	select {
	case u.permits <- struct{}{}:
		u.pool.Run(func() {
			defer func() { <-u.permits }()
			u.update(l, m)
		})
	default:
		u.settler.Nak(m, stage.Jitter(shortWaits))
	}
}

// update makes the update of an entry and ends the entry. It stays in the room if the budget of updates has no place for it soon.
func (u *Updater) update(l stage.Life, m *received.Message) {
	u.reporter.Trace(m, time.Now())
	e, err := u.reader.Decode(m.Published())
	if err == nil && u.streams.Clock.Since(m.Entry.Since) > outcome.StayIn {
		err = errTooLate
	}
	if err != nil {
		u.GiveUp(m, err, nil)
		return
	}
	m.About.Category, m.About.ShownID, m.About.Title = e.Category, e.ShownID(), e.Title
	state := pacing.Update{
		Message: stay.MessageOf(m.Entry.Receipt), Order: m.Entry.State, MaxWait: longestReserved, Within: updateWithin, Lasts: 2 * u.sendTimeout,
	}
	reserved := u.states.BeginUpdate(l.Waiting, state)
	switch {
	case reserved.Obsolete:
		u.settler.Settle(outcome.Settlement{Message: m})
	case l.Waiting.Err() != nil:
		u.settler.Nak(m, 0)
	case !reserved.OK && reserved.Wait <= updateWithin: // another state of the message is under way
		u.wait(l, m, e, reserved.Wait)
	case !reserved.OK:
		u.wait(l, m, e, min(reserved.Wait-UpdateEarly, longestReserved))
	case !await.For(l.Waiting, reserved.Wait), !u.holds(l.Working, m):
		u.settler.Nak(m, 0)
	default:
		u.attempt(l, m, e, state)
	}
}

var errTooLate = errors.New("it has waited for too long")

// holds reports whether the lease of an entry outlasts a request or was renewed just now.
func (u *Updater) holds(work context.Context, m *received.Message) bool {
	return work.Err() == nil && (m.Lease.Left() >= u.sendTimeout || u.settler.Extend(work, m) == nil)
}

// attempt makes one request, and decides what becomes of the entry.
func (u *Updater) attempt(l stage.Life, m *received.Message, e event.Event, state pacing.Update) {
	d := sink.Delivery{Event: e, Stored: m.Entry.Origin.Stored, Opened: m.Entry.Receipt, Seen: seenOf(countOf(m.Entry.Count))}
	if state.Order != ResolvedOrder {
		seen, ok := u.count(l, m, e)
		if !ok {
			return
		}
		d.Seen, d.Event.Status = seen, "" // the message shows its own status
	} else if m.Entry.IsReport() {
		d.Event.Status, d.Event.Time = event.StatusResolved, store.Change(m.Entry.Steady).At()
	}
	failpoint.Reach(failpoint.BeforeUpdate)
	failure := sink.FailureOf(u.sink.Update(m.Span.In(l.Working), d, m.Entry.Receipt), u.sink.Destination(d))
	if failure == nil {
		failpoint.Reach(failpoint.AfterShow)
	}
	isOver := failure == nil || failure.Class == sink.Rejected
	if isOver && failure != nil && state.Order != ResolvedOrder { // later repeats would be hidden in this message
		isOver = u.states.GiveUp(l.Ending(), countedIn(e), m.Entry.Receipt) == nil
	}
	if isOver {
		u.states.Updated(l.Ending(), state.Message, state.Order)
	}
	switch {
	case failure == nil:
		u.log.making.Note(nil)
		failpoint.Reach(failpoint.AfterUpdate)
		u.settler.Settle(outcome.Settlement{Message: m})
	case isOver:
		u.GiveUp(m, failure, nil)
	case failure.Class == sink.RateLimited:
		u.states.PauseUpdates(l.Working, failure.RetryAfter)
		u.wait(l, m, e, failure.RetryAfter-UpdateEarly)
	default:
		u.log.making.Note(failure, m.Traced()...)
		u.wait(l, m, e, stage.Jitter(updateBackoff))
	}
}

// GiveUp ends an update that cannot be made, or a report, whose message is settled after owed. The posted message keeps its state.
func (u *Updater) GiveUp(m *received.Message, err error, owed <-chan struct{}) {
	u.log.Warn("a message cannot be updated", m.Traced("id", u.reader.ShownID(m), "category", m.About.Category, "error", err)...)
	u.settler.SettleAfter(owed, outcome.Settlement{Message: m})
}

// wait keeps an entry in the room for a time. A newer state may take its place meanwhile.
func (u *Updater) wait(l stage.Life, m *received.Message, e event.Event, d time.Duration) {
	if d <= shortWaits {
		u.settler.Nak(m, max(d, 0))
		return
	}
	err := u.Store(l.Ending(), u.reader.FirstLevel(m, e), m, m.EntryFor(e, room.Update), d)
	u.log.storing.Note(err)
	if err != nil {
		u.settler.Nak(m, stage.Jitter(stage.MisconfiguredBackoff))
		return
	}
	m.Span.Ended(tracing.Waiting)
	m.Span.WaitsFor(string(room.Update))
	u.settler.Settle(outcome.Settlement{Message: m, GoesOn: true})
}
