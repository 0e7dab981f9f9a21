package consume

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// move is an event, or the parts of a body, on the way to the room. Its slots and its identity stay.
type move struct {
	*message
	reason  room.Reason
	first   string           // the first level of its category
	channel string           // Channel: the destination
	due     time.Time        // when it comes back, by the server's clock; zero if that is not known
	denial  *throttle.Denial // Slot: of the event; nil if that is not known
	toStore []*nats.Msg      // as they are stored in the room: one, or the parts
	stays   []throttle.Stay  // of each
	counted bool             // it may stay: that is known already
	grant   throttle.Grant   // of an admitted event, else nil
	inDoubt bool             // an attempt may have delivered it
	bad     *event.Fault     // of a body: what is wrong with other parts, which end as one dead letter
	refused func()           // called if it may not stay; it then settles the message
	stored  func()           // called when it is stored; nil: nobody has to know
	done    func()           // called in the end

	published []jetstream.PubAckFuture // so far
	fault     error                    // why the others are not
}

// goal is what an event waits for in the room.
type goal struct {
	reason  room.Reason
	channel string        // Channel: the destination
	in      time.Duration // Slot, Pair, Redis, Body: after which it comes back
	until   uint64        // Pair: see room.Entry; so is behind
	behind  uint64
}

// stayIn is how long an event counts in the room unless it comes back at a known time: longer than a channel is likely to be paused. The
// stay ends earlier with the event.
const stayIn = 24 * time.Hour

// comesBackWithin is how much longer than planned an event that comes back counts.
const comesBackWithin = 5 * time.Minute

// weightBytes is the size of body for which an event counts as one more event in the room.
const weightBytes = 16 << 10

func (n Names) room() room.Subjects { return room.Under(n.Subject) }

// undecodedBytes is the same for an undecoded body, which may hold an alert for each few hundred bytes.
const undecodedBytes = 1 << 10

// stayOf is a message's stay in the room, the same wherever it moves there. The undecoded bodies of a first level have a share of their own:
// they leave room for the parts that they are split into.
func stayOf(first string, entry room.Entry, size int, d time.Duration) throttle.Stay {
	stay := throttle.Stay{First: first, Member: entry.Origin.String() + " " + entry.Part, Weight: 1 + size/weightBytes, For: d}
	if entry.Reason == room.Body {
		stay.First, stay.Weight = first+" bodies", 1+size/undecodedBytes
	}
	return stay
}

// nameOf is the name under which a message goes on. A redelivery has the same name, so JetStream stores it once.
func nameOf(m *message) string {
	return fmt.Sprintf("room-%s-%d-%d", m.stream, m.sequence, m.stored.UnixMilli())
}

// newMove is the move of an event. If the event may not stay, it is dropped.
func (w *Worker) newMove(c candidate, to goal) *move {
	w.trace(c.message, time.Now(), false)
	subjects, first, name := w.names.room(), w.firstLevel(c.message, c.event), nameOf(c.message)
	entry := c.entryFor(c.event, to.reason)
	entry.Until, entry.Behind = to.until, to.behind
	subject, target, staysFor := subjects.Channel(room.Token(to.channel), first), "", stayIn
	if to.reason != room.Channel {
		subject, target = subjects.Schedule(to.reason, first, name)
		staysFor = to.in + comesBackWithin
	}
	toStore := entry.Message(subject, c.Headers(), c.Data())
	toStore.Header.Set(nats.MsgIdHdr, name)
	var due time.Time
	if target != "" {
		due = w.clock.latest().Add(to.in) // an event that came before its slot opens would wait once more
		room.ScheduleAt(toStore, target, due)
	}
	return &move{
		message: c.message, reason: to.reason, first: first, channel: to.channel, due: due,
		toStore: []*nats.Msg{toStore}, stays: []throttle.Stay{stayOf(first, entry, len(c.Data()), staysFor)},
		refused: func() { w.settle(w.dropped(c.message, throttle.DeniedByRoom)) },
	}
}

// newSplit is the move of a body whose parts go on in messages of their own, with identities that no producer can claim. If one part
// may not stay, all are dropped.
func (w *Worker) newSplit(m *message, parts []event.Part, bad *event.Fault) *move {
	w.trace(m, time.Now(), false)
	producer := m.producerTrace()
	body := &move{
		message: m, reason: room.Part, first: w.firstLevel(m, event.Event{}), bad: bad, stored: w.metrics.Split,
		refused: func() { w.settle(w.dropped(m, throttle.DeniedByRoom)) },
	}
	for i, part := range parts {
		entry := m.entry
		entry.Reason, entry.Subject = room.Part, part.Subject
		entry.ID, entry.Derived, entry.Part, entry.Trace = part.Room.ID, part.Room.Derived, part.Room.Part, m.traceparent()
		category, _, _ := w.o.Decoder.CategoryOf(part.Subject)
		first := event.FirstLevel(category)
		toStore := entry.Message(w.names.room().Queue(room.Part, first), producer, part.Data)
		toStore.Header.Set(nats.MsgIdHdr, fmt.Sprintf("%s-%d", nameOf(m), i))
		body.toStore = append(body.toStore, toStore)
		body.stays = append(body.stays, stayOf(first, entry, len(part.Data), stayIn))
	}
	return body
}

// move has a move made, and calls done in the end.
func (w *Worker) move(m *move, done func()) {
	m.done = done
	w.mover.moves <- m
}

// hold moves an admitted event to its channel's queue, and calls done in the end. If the event may not stay, its slot is returned.
func (w *Worker) hold(work context.Context, d *delivery, done func()) {
	held := w.channels.hold(d.destination)
	m := w.newMove(d.candidate, goal{reason: room.Channel, channel: d.destination})
	m.grant, m.inDoubt = d.grant, d.uncertain
	m.stored = func() { w.serve(source{inRoom: true, channel: d.destination}) }
	m.refused = func() {
		w.endUndelivered(work, d)
		w.settle(w.dropped(d.message, throttle.DeniedByRoom))
	}
	w.move(m, func() { held(); done() })
}

// exceedsRoom tells whether a message with its headers is larger than the room takes.
func (w *Worker) exceedsRoom(message *nats.Msg) bool {
	size := int64(message.Size() - len(message.Subject))
	most := int64(w.topology.Load().room.stream.CachedInfo().Config.MaxMsgSize)
	return size > w.conn.MaxPayload() || most > 0 && size > most
}
