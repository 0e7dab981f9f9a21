package consume

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

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
	until   uint64        // if it waits for its pair: see room.Entry, as for behind
	behind  uint64
	fires   bool          // see room.Entry
	denial  *store.Denial // if it waits for a slot: the event's denial; nil: not known
	limits  string        // if it waits for a slot: see room.Entry; "" if the limits that planned it are not known

	attempted time.Time // see room.Entry
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
	entry.Until, entry.Behind, entry.Limits, entry.Fires = to.until, to.behind, to.limits, to.fires
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
		toStore: publication{messages: []*nats.Msg{toStore}}, stays: []store.Stay{stayOf(first, entry, room.Kept(c.Header, c.Data), staysFor)},
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
		body.stays = append(body.stays, stayOf(first, entry, len(part.Data), stayIn))
	}
	return body
}
