package consume

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

// mover stores moves in the room in the order of their arrival, and settles their messages. It drops an event that may not stay. Nothing
// cuts it off: it returns what it cannot store to its stream. While the room does not answer, the mover tries one move at a time and returns
// the other messages at once: nobody waits for the room.
type mover struct {
	streams  *stream.Client
	room     stay.Room
	reader   *reader
	reporter *reporter
	refusals *refusals
	replans  *replanner
	settler  *settler
	queues   *channelQueues
	metrics  RoomMetrics
	answers  roomAnswers
	moves    chan *move
	ended    sync.WaitGroup
}

// moverOptions configure a mover.
type moverOptions struct {
	Room     stay.Room
	Settler  *settler
	Refusals *refusals
	Replans  *replanner
	Queues   *channelQueues
	Metrics  RoomMetrics
	Logger   *slog.Logger
}

func newMover(o moverOptions) *mover {
	return &mover{
		streams: o.Settler.streams, room: o.Room, reader: o.Settler.reader, reporter: o.Settler.reporter, refusals: o.Refusals, replans: o.Replans,
		settler: o.Settler, queues: o.Queues, metrics: o.Metrics, moves: make(chan *move, store.MaxBatch),
		answers: roomAnswers{storing: oplog.NewCondition(o.Logger, "cannot store waiting events", "storing waiting events again")},
	}
}

// failing returns why the event that was last to be stored was not; nil if it was.
func (m *mover) failing() error { return m.answers.storing.Failing() }

// watchLimits has waiting events planned anew whenever this worker has other limits, until the context ends.
func (m *mover) watchLimits(ctx context.Context) { m.replans.watch(ctx) }

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

// start begins to store moves, until close.
func (m *mover) start() { m.ended.Go(m.run) }

// hold stores an event in the room until it reaches its goal. The end of the move releases its element of the pool.
func (m *mover) hold(c candidate, to goal, element *held) {
	moving := m.newMove(c, to)
	moving.element = element
	m.moves <- moving
}

// close waits until everything handed over is stored or returned to its stream.
func (m *mover) close() {
	close(m.moves)
	m.ended.Wait()
}

func (m *mover) run() {
	batch := make([]*move, 0, store.MaxBatch)
	for next := range m.moves {
		batch = append(batch[:0], next)
		for size := len(next.toStore.messages); size < store.MaxBatch && len(m.moves) > 0; size += len(next.toStore.messages) {
			next = <-m.moves
			batch = append(batch, next)
		}
		m.store(m.admit(m.withinReach(batch)))
	}
}

// withinReach returns the moves to store: all of them unless the room is silent. It returns the messages of the others to their streams.
func (m *mover) withinReach(batch []*move) []*move {
	tried := m.answers.tries(len(batch))
	for _, move := range batch[tried:] {
		move.element.release()
		m.ended.Go(func() {
			defer move.end()
			m.settler.giveBack(move.message, move.admission, jitter(misconfiguredBackoff))
		})
	}
	return batch[:tried]
}

// admit returns the moves that may stay in the room, and ends the others.
func (m *mover) admit(batch []*move) (admitted []*move) {
	refused := m.ask(batch)
	for _, move := range batch {
		why, isRefused := refused[move]
		switch {
		case move.message.lease.left() <= 0: // JetStream redelivers the message
			m.settler.leaveLost(move.message, move.admission)
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
func (m *mover) ask(batch []*move) (refused map[*move]string) {
	refused = make(map[*move]string)
	var asking []*move
	var stays []store.Stay
	for _, move := range batch {
		switch {
		case slices.ContainsFunc(move.toStore.messages, m.exceedsRoom):
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
		if !move.goal.fires {
			m.refusals.addCrowded(crowd(move.goal.reason, move.first))
		}
		for i, place := range move.stays {
			if of[i] {
				m.settler.stays.leave(place)
			}
		}
	}
	return refused
}

// exceedsRoom reports whether a message with its headers is larger than the room accepts.
func (m *mover) exceedsRoom(message *nats.Msg) bool {
	size := int64(message.Size() - len(message.Subject))
	most := int64(m.streams.Layout().Room.Stream.CachedInfo().Config.MaxMsgSize)
	return size > m.streams.Connection.Conn.MaxPayload() || most > 0 && size > most
}

// drop ends an event that may not stay in the room. Its slot is returned unless an attempt may have delivered the event. The message of an
// undecided event that Redis may have admitted goes back to its stream instead, since the answer to an earlier delivery may have been lost. Why is
// the reason for the journal; "": too many events wait.
func (m *mover) drop(moving *move, why string) {
	m.metrics.RoomRefused(string(moving.goal.reason), 1)
	if moving.goal.isUndecided() && moving.message.redelivered(m.reader.forgottenUntil()) {
		m.settler.nak(moving.message, jitter(misconfiguredBackoff))
		return
	}
	owed := moving.admission.endUndelivered(context.Background())
	dropped := m.refusals.dropped(moving.message, cmp.Or(moving.goal.denial, store.DeniedByRoom))
	dropped.refused = cmp.Or(why, dropped.refused)
	m.settler.settleAfter(owed, dropped)
}

// store ends the leases of the moves, so any worker can take the events from the room, and publishes the moves in order.
func (m *mover) store(batch []*move) {
	if len(batch) == 0 {
		return
	}
	var releasing sync.WaitGroup
	for _, move := range batch {
		releasing.Go(func() { move.admission.release(context.Background()) })
	}
	releasing.Wait()
	failpoint.Reach(failpoint.AfterRelease)
	for _, move := range batch {
		move.toStore.publish(m.streams.JetStream)
	}
	m.answers.underWay.Add(1)
	m.ended.Go(func() {
		defer m.answers.underWay.Add(-1)
		m.settle(batch)
	})
}

func (m *mover) settle(batch []*move) {
	deadline, cancel := context.WithTimeout(context.Background(), stream.APITimeout)
	defer cancel()
	patience := time.AfterFunc(roomPatience, func() {
		m.answers.silent.Store(true)
		for _, move := range batch {
			move.element.release()
		}
	})
	var (
		settled  []settlement
		stored   []*move
		answered bool // of the last move
	)
	for _, move := range batch {
		known, err := move.toStore.confirmed(deadline.Done())
		answered = err == nil
		if !messagesize.IsTooLarge(err) {
			m.answers.storing.Note(err)
		}
		switch {
		case err == nil:
			m.answers.silent.Store(false)
			stored = append(stored, move)
			m.stored(move, known)
			if move.bury != nil {
				move.bury()
				break
			}
			settled = append(settled, settlement{message: move.message, goesOn: true})
		case messagesize.IsTooLarge(err): // the room's maximum message size has shrunk
			m.settler.stays.leave(move.stays...)
			if move.admission.grant == nil {
				m.drop(move, journal.TooLarge)
				break
			}
			// Its lease is released, so its slots would stay taken. When it is admitted again, exceedsRoom knows the new size.
			m.settler.nak(move.message, jitter(misconfiguredBackoff))
		default:
			if errors.Is(err, jetstream.ErrNoStreamResponse) { // the server said at once that nobody answers
				m.answers.silent.Store(true)
			}
			if !move.isPlanned() { // the event may come back when it need not wait any more
				m.settler.stays.leave(move.stays...)
			}
			m.settler.nak(move.message, jitter(misconfiguredBackoff))
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
	m.settler.settle(settled...)
	for _, move := range stored {
		m.reporter.recordMoved(moved{move.message, move.goal.reason, move.goal.denial, move.due, move.goal.channel})
	}
}

// stored records a stored move. Known marks the messages that the room held before.
func (m *mover) stored(moving *move, known []bool) {
	for i, place := range moving.stays {
		if known[i] && !moving.isPlanned() {
			m.settler.stays.leave(place) // its event may have ended, so nothing else would end this stay
		}
	}
	if place, waited := m.settler.stays.of(moving.message); waited && place.First != moving.stays[0].First {
		m.settler.stays.leave(place) // the earlier stay counts for another first level
	}
	if moving.goal.reason == room.Part {
		failpoint.Reach(failpoint.AfterSplit)
		moving.message.span.Ended(tracing.Split)
		m.metrics.Split()
		return
	}
	moving.message.span.Ended(tracing.Waiting)
	moving.message.span.WaitsFor(string(moving.goal.reason))
	switch moving.goal.reason {
	case room.Slot:
		m.metrics.Delayed(moving.message.about.category, levelOf(moving.goal.denial))
		m.replans.stored(moving.message.about.category, moving.goal.limits)
	case room.Channel:
		m.queues.serve(queueOf(moving.goal.channel))
	}
}

// move is an event or the parts of a body on the way to the room. The event keeps its slots and its identity.
type move struct {
	message   *message
	goal      goal
	first     string       // first level of the event's category
	due       time.Time    // when the event comes back, by the server's clock; zero: not known
	toStore   publication  // the event or the parts
	stays     []store.Stay // the stay of each message
	admission admission    // zero: the event is not admitted
	bury      func()       // ends the message of a body with bad parts once the other parts are stored; nil: there are none

	element *held         // of the pool; nil: the event holds none
	stored  func()        // ends the event's entry in its channel's lane; nil: it has none
	ended   chan struct{} // closed when the message is stored, dropped or returned to its stream
}

// isPlanned reports whether the event waits for a slot: the plan for its return has approved its stay.
func (m *move) isPlanned() bool { return m.goal.reason == room.Slot }

func (m *move) end() {
	if m.stored != nil {
		m.stored()
	}
	m.element.release()
	close(m.ended)
}

type publication struct {
	messages  []*nats.Msg
	published []jetstream.PubAckFuture // of the messages published so far
	fault     error                    // error that stopped the publishing of the rest
}

func (p *publication) publish(js jetstream.JetStream) {
	for _, message := range p.messages {
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

type goal struct {
	reason  room.Reason
	channel string        // if it waits for its channel: the destination
	in      time.Duration // if it waits for its slot, pair, Redis or body: time until it comes back
	fires   bool          // see room.Entry
	denial  *store.Denial // if it waits for a slot: the event's denial; nil: not known
	limits  string        // if it waits for a slot: see room.Entry; "" if the limits that planned it are not known

	searched  openers.Reach // if it waits for its pair
	attempted time.Time     // see room.Entry
}

func (g goal) isUndecided() bool { return g.reason == room.Body || g.reason == room.Redis }

// nameOf returns the name (Nats-Msg-Id) with which a message goes to the room. A redelivery has the same name, so it is stored once.
func nameOf(m *message) string {
	return fmt.Sprintf("room-%s-%d-%d", m.meta.Stream, m.meta.Sequence.Stream, m.meta.Timestamp.UnixMilli())
}

func (m *mover) newMove(c candidate, to goal) *move {
	m.reporter.trace(c.message, time.Now())
	subjects, first, name := m.streams.Names.Room(), m.reader.firstLevel(c.message, c.event), nameOf(c.message)
	entry := c.entryFor(c.event, to.reason)
	entry.Until, entry.Behind, entry.Limits, entry.Fires = to.searched.Until, to.searched.Behind, to.limits, to.fires
	if !to.attempted.IsZero() {
		entry.Attempted = to.attempted
	}
	subject, target, staysFor := subjects.Channel(room.Token(to.channel), first), "", stayIn
	if to.reason != room.Channel {
		subject, target = subjects.Schedule(to.reason, first, name)
		staysFor = to.in + comesBackWithin
	}
	toStore := entry.Message(subject, c.Header, c.Data)
	toStore.Header.Set(nats.MsgIdHdr, name)
	var due time.Time
	if target != "" {
		due = m.streams.Clock.Latest().Add(to.in) // an event that came before its slot opens would wait once more
		room.ScheduleAt(toStore, target, due)
	}
	return &move{
		message: c.message, goal: to, first: first, due: due, ended: make(chan struct{}),
		toStore: publication{messages: []*nats.Msg{toStore}}, stays: []store.Stay{stay.Of(first, entry, room.Kept(c.Header, c.Data), staysFor)},
	}
}

// newSplit returns the move of a body whose parts become messages of their own, with identities that no producer can claim.
func (m *mover) newSplit(of *message, parts []event.Part) *move {
	m.reporter.trace(of, time.Now())
	producer := make(nats.Header) // refers to the producer's span
	for name, value := range of.producerSpan().Headers() {
		producer.Set(name, value)
	}
	body := &move{
		message: of, goal: goal{reason: room.Part}, first: m.reader.firstLevel(of, event.Event{}), ended: make(chan struct{}),
	}
	for i, part := range parts {
		entry := *of.entry
		entry.Reason, entry.Subject, entry.Attempted = room.Part, part.Subject, of.attempted()
		entry.ID, entry.Derived, entry.Part, entry.Trace = part.Room.ID, part.Room.Derived, part.Room.Part, of.traceparent()
		category, _, _ := m.reader.CategoryOf(part.Subject)
		first := event.FirstLevel(category)
		toStore := entry.Message(m.streams.Names.Room().Queue(room.Part, first), producer, part.Data)
		toStore.Header.Set(nats.MsgIdHdr, fmt.Sprintf("%s-%d", nameOf(of), i))
		body.toStore.messages = append(body.toStore.messages, toStore)
		body.stays = append(body.stays, stay.Of(first, entry, len(part.Data), stayIn))
	}
	return body
}
