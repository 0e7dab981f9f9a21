package consume

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// move is an event, or the parts of a body, on the way to the room. The event keeps its slots and its identity.
type move struct {
	*message
	reason  room.Reason
	first   string        // first level of the event's category
	channel string        // if it waits for its channel: the destination
	due     time.Time     // when the event comes back, by the server's clock; zero: not known
	denial  *store.Denial // if it waits for a slot: the event's denial; nil: not known
	toStore []*nats.Msg   // messages for the room: the event, or the parts
	stays   []store.Stay  // the stay of each message
	counted bool          // the stay is already approved
	grant   store.Grant   // grant of an admitted event; otherwise nil
	inDoubt bool          // an attempt may have delivered the event
	bad     *event.Fault  // if it is a body: the fault of its bad parts, which become one dead letter
	refused func()        // called if the event may not stay; settles the message
	stored  func()        // called when the move is stored; may be nil
	done    func()        // called at the end of the move

	published []jetstream.PubAckFuture // messages published so far
	fault     error                    // error that stopped the publishing of the rest
}

// goal describes what an event waits for in the room.
type goal struct {
	reason  room.Reason
	channel string        // if it waits for its channel: the destination
	in      time.Duration // if it waits for its slot, pair, Redis or body: time until it comes back
	until   uint64        // if it waits for its pair: see room.Entry, as for behind
	behind  uint64
}

// stayIn is how long an event without a known return time counts in the room: longer than a channel is likely to be paused. The stay ends
// earlier if the event ends earlier.
const stayIn = 24 * time.Hour

// comesBackWithin is how much longer than planned a returning event counts.
const comesBackWithin = 5 * time.Minute

// weightBytes is the body size for which an event counts as one more event in the room.
const weightBytes = 16 << 10

// undecodedBytes is the weightBytes of an undecoded body, which may hold an alert in every few hundred bytes.
const undecodedBytes = 1 << 10

// stayOf returns a message's stay in the room. A message that moves again has the same stay. The undecoded bodies of a first level have a
// separate share, so they leave room for the parts into which they are split.
func stayOf(first string, entry room.Entry, size int, d time.Duration) store.Stay {
	stay := store.Stay{First: first, Member: entry.Origin.String() + " " + entry.Part, Weight: 1 + size/weightBytes, For: d}
	if entry.Reason == room.Body {
		stay.First, stay.Weight = first+" bodies", 1+size/undecodedBytes
	}
	return stay
}

// nameOf returns the name (Nats-Msg-Id) with which a message goes to the room. A redelivery has the same name, so JetStream stores the
// message once.
func nameOf(m *message) string {
	return fmt.Sprintf("room-%s-%d-%d", m.stream, m.sequence, m.stored.UnixMilli())
}

// newMove returns the move of an event. If the event may not stay, it is dropped.
func (w *Worker) newMove(c candidate, to goal) *move {
	w.trace(c.message, time.Now(), false)
	subjects, first, name := w.streams.Names.Room(), w.firstLevel(c.message, c.event), nameOf(c.message)
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
		due = w.streams.Clock.Latest().Add(to.in) // an event that came before its slot opens would wait once more
		room.ScheduleAt(toStore, target, due)
	}
	return &move{
		message: c.message, reason: to.reason, first: first, channel: to.channel, due: due,
		toStore: []*nats.Msg{toStore}, stays: []store.Stay{stayOf(first, entry, len(c.Data()), staysFor)},
		refused: func() { w.settle(w.dropped(c.message, store.DeniedByRoom)) },
	}
}

// newSplit returns the move of a body whose parts become messages of their own, with identities that no producer can claim. If one part may
// not stay, all parts are dropped.
func (w *Worker) newSplit(m *message, parts []event.Part, bad *event.Fault) *move {
	w.trace(m, time.Now(), false)
	producer := m.producerTrace()
	body := &move{
		message: m, reason: room.Part, first: w.firstLevel(m, event.Event{}), bad: bad, stored: w.metrics.Split,
		refused: func() { w.settle(w.dropped(m, store.DeniedByRoom)) },
	}
	for i, part := range parts {
		entry := m.entry
		entry.Reason, entry.Subject = room.Part, part.Subject
		entry.ID, entry.Derived, entry.Part, entry.Trace = part.Room.ID, part.Room.Derived, part.Room.Part, m.traceparent()
		category, _, _ := w.o.Decoder.CategoryOf(part.Subject)
		first := event.FirstLevel(category)
		toStore := entry.Message(w.streams.Names.Room().Queue(room.Part, first), producer, part.Data)
		toStore.Header.Set(nats.MsgIdHdr, fmt.Sprintf("%s-%d", nameOf(m), i))
		body.toStore = append(body.toStore, toStore)
		body.stays = append(body.stays, stayOf(first, entry, len(part.Data), stayIn))
	}
	return body
}

// move hands a move to the mover, which calls done at the end of the move.
func (w *Worker) move(m *move, done func()) {
	m.done = done
	w.mover.moves <- m
}

// hold moves an admitted event to its channel's queue, and calls done at the end of the move. If the event may not stay, its slot is
// returned.
func (w *Worker) hold(work context.Context, d *delivery, done func()) {
	held := w.channels.hold(d.destination)
	m := w.newMove(d.candidate, goal{reason: room.Channel, channel: d.destination})
	m.grant, m.inDoubt = d.grant, d.uncertain
	m.stored = func() { w.serve(source{inRoom: true, channel: d.destination}) }
	m.refused = func() {
		w.endUndelivered(work, d)
		w.settle(w.dropped(d.message, store.DeniedByRoom))
	}
	w.move(m, func() { held(); done() })
}

// exceedsRoom reports whether a message with its headers is larger than the room accepts.
func (w *Worker) exceedsRoom(message *nats.Msg) bool {
	size := int64(message.Size() - len(message.Subject))
	most := int64(w.streams.Layout().Room.Stream.CachedInfo().Config.MaxMsgSize)
	return size > w.streams.Connection.Conn.MaxPayload() || most > 0 && size > most
}
