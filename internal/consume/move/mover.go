package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/openers"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// Mover stores moves in the room in the order of their arrival, and settles their messages. It drops an event that may not stay. Nothing
// cuts it off: it returns what it cannot store to its stream. While the room does not answer, the mover tries one move at a time and returns
// the other messages at once: nobody waits for the room.
type Mover struct {
	streams  *stream.Client
	room     stay.Room
	reader   *received.Reader
	reporter *outcome.Reporter
	refusals *outcome.Refusals
	replans  *Replanner
	settler  *outcome.Settler
	Queues   *Queues
	metrics  outcome.RoomMetrics
	answers  roomAnswers
	moves    chan *Move
	ended    sync.WaitGroup
}

// Options configure a mover.
type Options struct {
	Room     stay.Room
	Settler  *outcome.Settler
	Refusals *outcome.Refusals
	Replans  *Replanner
	Queues   *Queues
	Metrics  outcome.RoomMetrics
	Logger   *slog.Logger
}

// NewMover returns a mover that does not run yet.
func NewMover(o Options) *Mover {
	return &Mover{
		streams: o.Settler.Streams, room: o.Room, reader: o.Settler.Reader, reporter: o.Settler.Reporter, refusals: o.Refusals, replans: o.Replans,
		settler: o.Settler, Queues: o.Queues, metrics: o.Metrics, moves: make(chan *Move, store.MaxBatch),
		answers: roomAnswers{storing: oplog.NewCondition(o.Logger, "cannot store waiting events", "storing waiting events again")},
	}
}

// Failing returns why the event that was last to be stored was not; nil if it was.
func (m *Mover) Failing() error { return m.answers.storing.Failing() }

// roomAnswers knows whether the room answers.
type roomAnswers struct {
	storing  *oplog.Condition
	underWay atomic.Int64 // batches that the room has not confirmed
	silent   atomic.Bool  // it did not answer in time or has no leader
}

func (a *roomAnswers) tries(batch int) int {
	switch {
	case !a.silent.Load():
		return batch
	case a.underWay.Load() == 0:
		return 1
	}
	return 0
}

// Start begins to store moves, until close.
func (m *Mover) Start() { m.ended.Go(m.run) }

// Add has a move stored.
func (m *Mover) Add(moving *Move) { m.moves <- moving }

// Hold stores an event in the room until it reaches its goal. The end of the move releases its element of the pool.
func (m *Mover) Hold(c received.Candidate, to Goal, element *stage.Held) {
	moving := m.NewMove(c, to)
	moving.Element = element
	m.Add(moving)
}

// Close waits until everything handed over is stored or returned to its stream.
func (m *Mover) Close() {
	close(m.moves)
	m.ended.Wait()
}

func (m *Mover) run() {
	batch := make([]*Move, 0, store.MaxBatch)
	for next := range m.moves {
		batch = append(batch[:0], next)
		for size := len(next.ToStore.Messages); size < store.MaxBatch && len(m.moves) > 0; size += len(next.ToStore.Messages) {
			next = <-m.moves
			batch = append(batch, next)
		}
		m.store(m.admit(m.withinReach(batch)))
	}
}

// withinReach returns the moves to store: all of them unless the room is silent. It returns the messages of the others to their streams.
func (m *Mover) withinReach(batch []*Move) []*Move {
	tried := m.answers.tries(len(batch))
	for _, move := range batch[tried:] {
		move.Element.Release()
		m.ended.Go(func() {
			defer move.end()
			m.settler.GiveBack(move.message, move.Admission, stage.Jitter(stage.MisconfiguredBackoff))
		})
	}
	return batch[:tried]
}

// admit returns the moves that may stay in the room, and ends the others.
func (m *Mover) admit(batch []*Move) (admitted []*Move) {
	refused := m.ask(batch)
	for _, move := range batch {
		why, isRefused := refused[move]
		switch {
		case move.message.Lease.Left() <= 0: // JetStream redelivers the message
			m.settler.LeaveLost(move.message, move.Admission)
			move.end()
		case isRefused:
			m.ended.Go(func() {
				defer move.end()
				m.drop(move, why)
			})
		default:
			admitted = append(admitted, move)
		}
	}
	return admitted
}

// ask asks the throttle which moves may not stay in the room, and returns why: journal.TooLarge, or "" if too many events wait. A body's parts may
// stay all together or not at all.
func (m *Mover) ask(batch []*Move) (refused map[*Move]string) {
	refused = make(map[*Move]string)
	var asking []*Move
	var stays []store.Stay
	for _, move := range batch {
		switch {
		case slices.ContainsFunc(move.ToStore.Messages, m.exceedsRoom):
			refused[move] = journal.TooLarge
		case !move.isPlanned():
			asking = append(asking, move)
			stays = append(stays, move.stays...)
		}
	}
	if len(asking) == 0 {
		return refused
	}
	mayStay, err := m.room.EnterRoom(context.Background(), stays)
	if err != nil { // while Redis is unavailable nothing is counted: few events move then, since few are decided about
		return refused
	}
	for _, move := range asking {
		of := mayStay[:len(move.stays)]
		mayStay = mayStay[len(move.stays):]
		if !slices.Contains(of, false) {
			continue
		}
		refused[move] = ""
		if !move.goal.Fires {
			m.refusals.AddCrowded(outcome.Crowd(move.goal.Reason, move.first))
		}
		for i, place := range move.stays {
			if of[i] {
				m.settler.Stays.Leave(place)
			}
		}
	}
	return refused
}

// exceedsRoom reports whether a message with its headers is larger than the room accepts.
func (m *Mover) exceedsRoom(message *nats.Msg) bool {
	size := int64(message.Size() - len(message.Subject))
	most := int64(m.streams.Layout().Room.Stream.CachedInfo().Config.MaxMsgSize)
	return size > m.streams.Connection.Conn.MaxPayload() || most > 0 && size > most
}

// drop ends an event that may not stay in the room. Its slot is returned unless an attempt may have delivered the event. The message of an
// undecided event that Redis may have admitted goes back to its stream instead, since the answer to an earlier delivery may have been lost. Why is
// the reason for the journal; "": too many events wait.
func (m *Mover) drop(moving *Move, why string) {
	m.metrics.RoomRefused(string(moving.goal.Reason), 1)
	if moving.goal.isUndecided() && moving.message.Redelivered(m.reader.ForgottenUntil()) {
		m.settler.Nak(moving.message, stage.Jitter(stage.MisconfiguredBackoff))
		return
	}
	owed := moving.Admission.EndUndelivered(context.Background())
	dropped := m.refusals.Dropped(moving.message, cmp.Or(moving.goal.denial, store.DeniedByRoom))
	dropped.Refused = cmp.Or(why, dropped.Refused)
	m.settler.SettleAfter(owed, dropped)
}

// store ends the leases of the moves, so any worker can take the events from the room, and publishes the moves in order.
func (m *Mover) store(batch []*Move) {
	if len(batch) == 0 {
		return
	}
	var releasing sync.WaitGroup
	for _, move := range batch {
		releasing.Go(func() { move.Admission.Release(context.Background()) })
	}
	releasing.Wait()
	failpoint.Reach(failpoint.AfterRelease)
	for _, move := range batch {
		move.ToStore.publish(m.streams.JetStream)
	}
	m.answers.underWay.Add(1)
	m.ended.Go(func() {
		defer m.answers.underWay.Add(-1)
		m.settle(batch)
	})
}

func (m *Mover) settle(batch []*Move) {
	deadline, cancel := context.WithTimeout(context.Background(), stream.APITimeout)
	defer cancel()
	patience := time.AfterFunc(stage.RoomPatience, func() {
		m.answers.silent.Store(true)
		for _, move := range batch {
			move.Element.Release()
		}
	})
	var (
		settled  []outcome.Settlement
		stored   []*Move
		answered bool // of the last move
	)
	for _, move := range batch {
		known, err := move.ToStore.confirmed(deadline.Done())
		answered = err == nil
		if !messagesize.IsTooLarge(err) {
			m.answers.storing.Note(err)
		}
		switch {
		case err == nil:
			m.answers.silent.Store(false)
			stored = append(stored, move)
			m.stored(move, known)
			if move.Bury != nil {
				move.Bury()
				break
			}
			settled = append(settled, outcome.Settlement{Message: move.message, GoesOn: true})
		case messagesize.IsTooLarge(err): // the room's maximum message size has shrunk
			m.settler.Stays.Leave(move.stays...)
			if move.Admission.Grant == nil {
				m.drop(move, journal.TooLarge)
				break
			}
			// Its lease is released, so its slots would stay taken. When it is admitted again, exceedsRoom knows the new size.
			m.settler.Nak(move.message, stage.Jitter(stage.MisconfiguredBackoff))
		default:
			if errors.Is(err, jetstream.ErrNoStreamResponse) { // the server said at once that nobody answers
				m.answers.silent.Store(true)
			}
			if !move.isPlanned() { // the event may come back when it need not wait any more
				m.settler.Stays.Leave(move.stays...)
			}
			m.settler.Nak(move.message, stage.Jitter(stage.MisconfiguredBackoff))
		}
		move.end()
	}
	patience.Stop()
	if answered { // although it took longer
		m.answers.silent.Store(false)
	}
	if len(settled) > 0 {
		failpoint.Reach(failpoint.AfterMove)
	}
	m.settler.Settle(settled...)
	for _, move := range stored {
		m.reporter.RecordMoved(outcome.Moved{
			Message: move.message, Reason: move.goal.Reason, Denial: move.goal.denial, Due: move.due, Channel: move.goal.Channel,
		})
	}
}

// stored records a stored move. Known marks the messages that the room held before.
func (m *Mover) stored(moving *Move, known []bool) {
	for i, place := range moving.stays {
		if known[i] && !moving.isPlanned() {
			m.settler.Stays.Leave(place) // its event may have ended, so nothing else would end this stay
		}
	}
	if place, waited := m.settler.Stays.Of(moving.message); waited && place.First != moving.stays[0].First {
		m.settler.Stays.Leave(place) // the earlier stay counts for another first level
	}
	if moving.goal.Reason == room.Part {
		failpoint.Reach(failpoint.AfterSplit)
		moving.message.Span.Ended(tracing.Split)
		m.metrics.Split()
		return
	}
	moving.message.Span.Ended(tracing.Waiting)
	moving.message.Span.WaitsFor(string(moving.goal.Reason))
	switch moving.goal.Reason {
	case room.Slot:
		if !moving.message.Waited() {
			m.metrics.Delayed(moving.message.About.Category, outcome.LevelOf(moving.goal.denial))
		}
		m.replans.stored(moving.message.About.Category, moving.goal.limits)
	case room.Channel:
		m.Queues.Serve(received.QueueOf(moving.goal.Channel))
	}
}

// Move is an event or the parts of a body on the way to the room. The event keeps its slots and its identity.
type Move struct {
	message   *received.Message
	goal      Goal
	first     string            // first level of the event's category
	due       time.Time         // when the event comes back, by the server's clock; zero: not known
	ToStore   publication       // the event or the parts
	stays     []store.Stay      // the stay of each message
	Admission outcome.Admission // zero: the event is not admitted
	Bury      func()            // ends the message of a body with bad parts once the other parts are stored; nil: there are none

	Element *stage.Held   // of the pool; nil: the event holds none
	Stored  func()        // ends the event's entry in its channel's lane; nil: it has none
	Ended   chan struct{} // closed when the message is stored, dropped or returned to its stream
}

// isPlanned reports whether the event waits for a slot: the plan for its return has approved its stay.
func (m *Move) isPlanned() bool { return m.goal.Reason == room.Slot }

func (m *Move) end() {
	if m.Stored != nil {
		m.Stored()
	}
	m.Element.Release()
	close(m.Ended)
}

type publication struct {
	Messages  []*nats.Msg
	published []jetstream.PubAckFuture // of the messages published so far
	fault     error                    // error that stopped the publishing of the rest
}

func (p *publication) publish(js jetstream.JetStream) {
	for _, message := range p.Messages {
		future, err := js.PublishMsgAsync(message)
		if err != nil {
			p.fault = err
			return
		}
		p.published = append(p.published, future)
	}
}

// confirmed waits for the server to confirm the messages. It reports which messages the room held before.
func (p *publication) confirmed(givenUp <-chan struct{}) (known []bool, err error) {
	for _, future := range p.published {
		select {
		case ack := <-future.Ok():
			known = append(known, ack.Duplicate)
		case err := <-future.Err():
			return nil, err
		case <-givenUp:
			return nil, nats.ErrTimeout
		}
	}
	return known, p.fault
}

// Goal is what an event waits for in the room.
type Goal struct {
	Reason  room.Reason
	Channel string        // if it waits for its channel: the destination
	In      time.Duration // if it waits for its slot, pair, Redis or body: time until it comes back
	Fires   bool          // see room.Entry
	denial  *store.Denial // if it waits for a slot: the event's denial; nil: not known
	limits  string        // if it waits for a slot: see room.Entry; "" if the limits that planned it are not known

	Searched  openers.Reach // if it waits for its pair
	Attempted time.Time     // see room.Entry
}

func (g Goal) isUndecided() bool { return g.Reason == room.Body || g.Reason == room.Redis }

// nameOf returns the name (Nats-Msg-Id) with which a message goes to the room. A redelivery has the same name, so it is stored once.
func nameOf(m *received.Message) string {
	return fmt.Sprintf("room-%s-%d-%d", m.Meta.Stream, m.Meta.Sequence.Stream, m.Meta.Timestamp.UnixMilli())
}

// NewMove returns the move of an event to its goal.
func (m *Mover) NewMove(c received.Candidate, to Goal) *Move {
	m.reporter.Trace(c.Message, time.Now())
	subjects, first, name := m.streams.Names.Room(), m.reader.FirstLevel(c.Message, c.Event), nameOf(c.Message)
	entry := c.EntryFor(c.Event, to.Reason)
	entry.Until, entry.Behind, entry.Limits, entry.Fires = to.Searched.Until, to.Searched.Behind, to.limits, to.Fires
	if !to.Attempted.IsZero() {
		entry.Attempted = to.Attempted
	}
	subject, target, staysFor := subjects.Channel(room.Token(to.Channel), first), "", outcome.StayIn
	if to.Reason != room.Channel {
		subject, target = subjects.Schedule(to.Reason, first, name)
		staysFor = to.In + outcome.ComesBackWithin
	}
	toStore := entry.Message(subject, c.Header, c.Data)
	toStore.Header.Set(nats.MsgIdHdr, name)
	var due time.Time
	if target != "" {
		due = m.streams.Clock.Latest().Add(to.In) // an event that came before its slot opens would wait once more
		room.ScheduleAt(toStore, target, due)
	}
	return &Move{
		message: c.Message, goal: to, first: first, due: due, Ended: make(chan struct{}),
		ToStore: publication{Messages: []*nats.Msg{toStore}}, stays: []store.Stay{stay.Of(first, entry, room.Kept(c.Header, c.Data), staysFor)},
	}
}

// NewSplit returns the move of a body whose parts become messages of their own, with identities that no producer can claim.
func (m *Mover) NewSplit(of *received.Message, parts []event.Part) *Move {
	m.reporter.Trace(of, time.Now())
	producer := make(nats.Header) // refers to the producer's span
	for name, value := range of.ProducerSpan().Headers() {
		producer.Set(name, value)
	}
	body := &Move{
		message: of, goal: Goal{Reason: room.Part}, first: m.reader.FirstLevel(of, event.Event{}), Ended: make(chan struct{}),
	}
	for i, part := range parts {
		entry := *of.Entry
		entry.Reason, entry.Subject, entry.Attempted = room.Part, part.Subject, of.Attempted()
		entry.ID, entry.Derived, entry.Part, entry.Trace = part.Room.ID, part.Room.Derived, part.Room.Part, of.Traceparent()
		category, _, _ := m.reader.CategoryOf(part.Subject)
		first := event.FirstLevel(category)
		toStore := entry.Message(m.streams.Names.Room().Queue(room.Part, first), producer, part.Data)
		toStore.Header.Set(nats.MsgIdHdr, fmt.Sprintf("%s-%d", nameOf(of), i))
		body.ToStore.Messages = append(body.ToStore.Messages, toStore)
		body.stays = append(body.stays, stay.Of(first, entry, len(part.Data), outcome.StayIn))
	}
	return body
}
