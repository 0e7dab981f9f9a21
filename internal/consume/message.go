package consume

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/tracing"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// source is where messages come from: a consumer of the producers' stream, or of the room.
type source struct {
	inRoom    bool
	channel   string // of a channel's queue in the room: the destination
	onlyToken string // likewise, where the destination is not known

	deciding *sync.WaitGroup // counts what was passed on and is not decided about; nil: nobody waits for that
}

// token names the channel's queue, "" for another source.
func (s source) token() string {
	if s.channel == "" {
		return s.onlyToken
	}
	return room.Token(s.channel)
}

// message is a stored message that this worker was given.
type message struct {
	jetstream.Msg
	source    source
	stream    string // in which it is stored
	consumer  string // that delivered it
	sequence  uint64
	stored    time.Time
	behind    uint64     // messages of its source that were not delivered then
	delivered uint64     // how often the consumer has delivered it, this time included
	entry     room.Entry // where its event comes from, and what it waited for
	category  string     // "" until known, or if it is none
	shownID   string     // of its event; "" until that is decoded, and so below
	title     string     // may be "" then, too
	cost      int
	span      *tracing.Span // nil: it has none
	untraced  bool          // likewise, and is to have none unless it is admitted
	forged    bool          // it is in the room, and neither a worker nor an operator wrote it

	connection  uint64 // how often the connection had been lost when it was asked for
	copiesBegun uint64 // of the delivery record, when it was received

	size    int      // bytes of the subject, the headers and the body
	decoded *decoded // by bodies; nil: nobody has decoded it
	hand    *hand
	weight  atomic.Int64 // in hand; 0: it is not, or not any more

	mu       sync.Mutex
	deadline time.Time // until then it is certainly this worker's
}

// decoded is what was decoded of a message.
type decoded struct {
	event event.Event
	fault *event.Fault // nil: it is an event
}

func decodedOf(e event.Event, err error) *decoded {
	of := &decoded{event: e}
	errors.As(err, &of.fault)
	return of
}

// newMessage takes over a message that was asked for at a time. The server started its acknowledgement wait later.
func newMessage(msg jetstream.Msg, from source, asked time.Time, connection uint64, ackWait time.Duration) (*message, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("reading where a message is stored: %w", err)
	}
	m := &message{
		Msg:        msg,
		source:     from,
		stream:     meta.Stream,
		consumer:   meta.Consumer,
		sequence:   meta.Sequence.Stream,
		stored:     meta.Timestamp,
		delivered:  meta.NumDelivered,
		behind:     meta.NumPending,
		connection: connection,
		size:       storedSize(msg.Subject(), msg.Headers(), len(msg.Data())),
		deadline:   asked.Add(ackWait),
		forged:     from.inRoom && !trusted.IsMarked(msg.Headers()),
	}
	m.entry = entryOf(from.inRoom, msg.Subject(), msg.Headers(), room.Origin{Stream: m.stream, Sequence: m.sequence, Stored: m.stored})
	return m, nil
}

// entryOf is where the event of a stored message comes from. Only headers in the room are believed. A message there without them has
// no category, and ends as a dead letter.
func entryOf(inRoom bool, subject string, header nats.Header, at room.Origin) room.Entry {
	if inRoom {
		if entry, err := room.Read(header, at.Stored); err == nil {
			return entry
		}
	}
	return room.Entry{Subject: subject, Origin: at, Since: at.Stored}
}

// Consumer implements settle.Message, with Sequence, Size and Reply.
func (m *message) Consumer() string { return m.consumer }

// Sequence is the message's sequence in its stream.
func (m *message) Sequence() uint64 { return m.sequence }

// Size is about how many bytes the message takes in memory.
func (m *message) Size() int { return messageBytes + m.size }

// waited tells whether the event has waited for a slot.
func (m *message) waited() bool { return m.entry.Reason == room.Slot }

// left is how long the message is still this worker's.
func (m *message) left() time.Duration { return m.leftAt(time.Now()) }

func (m *message) leftAt(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deadline.Sub(now)
}

func (m *message) extend(asked time.Time, ackWait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deadline = asked.Add(ackWait)
}

func (m *message) decode(d event.Decoder) (event.Event, error) { return d.Decode(m.asStored()) }

func (m *message) asStored() event.Message { return asStored(m.entry, m.Headers(), m.Data()) }

// asStored is a message as its producer published it, with the identity from the room.
func asStored(entry room.Entry, header nats.Header, data []byte) event.Message {
	stored := event.Message{Subject: entry.Subject, Header: header, Data: data, Stream: entry.Origin.Stream, Sequence: entry.Origin.Sequence}
	if entry.ID != "" {
		stored.Room = &event.RoomIdentity{ID: entry.ID, Derived: entry.Derived, Part: entry.Part}
	}
	return stored
}

// entryFor is the entry of the message's event when it goes on in the room.
func (m *message) entryFor(e event.Event, reason room.Reason) room.Entry {
	entry := m.entry
	entry.Reason, entry.ID, entry.Derived, entry.Part = reason, e.ID, e.Derived, e.Part
	entry.Trace = m.traceparent()
	if m.entry.ID == "" {
		entry.MessageID = m.Headers().Get(nats.MsgIdHdr)
	}
	return entry
}
