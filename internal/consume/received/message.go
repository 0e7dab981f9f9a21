package received

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/tracing"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Source is an origin of messages: a consumer of the producers' stream or of the room.
type Source struct {
	InRoom  bool
	Token   string // of a channel's queue in the room; "" for another source
	Channel string // the destination of that queue; "" if it is not known

	Deciding *sync.WaitGroup // counts messages that were passed on and are undecided; nil: nobody waits for the decisions
}

// QueueOf returns the queue of a channel.
func QueueOf(channel string) Source {
	return Source{InRoom: true, Token: room.Token(channel), Channel: channel}
}

// IsQueueOf reports whether the source is the queue of a channel.
func (s Source) IsQueueOf(channel string) bool {
	return s.Token != "" && s.Token == room.Token(channel)
}

// Lane returns the name of the lane in which requests for the channel's queue wait. A channel that is not known yet has a lane of its own.
func (s Source) Lane() string { return cmp.Or(s.Channel, s.Token) }

// PullRequest is a request for messages, and their source.
type PullRequest struct {
	Source
	*stream.Request
}

// Message is a stored message that this worker received. It is kept small: objects of more than 512 bytes cost the garbage collector more.
type Message struct {
	Content
	Span     *tracing.Span     // of its event; nil: no span
	Untraced bool              // no span yet; one is started only if the event is admitted
	Meta     *nats.MsgMetadata // where it is stored, and how it was delivered; NumPending: undelivered messages of its source at that time
	Lease    Lease
	About    About
	From     *PullRequest
	Entry    *room.Entry // origin of the event, and what it waited for; not nil
	Decoded  *Decoded    // result of bodies; nil: not decoded
	place    place       // in the hand
}

// Content is a message as its stream delivers it.
type Content struct {
	Subject string // on which it is stored: in the room not that of its producer
	Header  nats.Header
	Data    []byte
}

// About is what is known of a message's event, beside its entry.
type About struct {
	Category string // "" if not known yet or invalid
	ShownID  string // empty until the event is decoded; so are the fields below
	Title    string // may be empty even then
	Key      string // of the event; mostly empty
	Cost     int
	Pair     string // of a firing or resolved event; "" for none
	Resolves bool
}

// Lease is how long a message certainly belongs to this worker. Its methods may be called concurrently.
type Lease struct {
	mu       sync.Mutex
	deadline time.Time
	reply    string // the subject for what extends it, and for the acknowledgement
}

// Decoded is the result of decoding a message.
type Decoded struct {
	Event event.Event
	Fault *event.Fault // nil: the message is a valid event
}

// DecodedOf returns the result of a decoder.
func DecodedOf(e event.Event, err error) *Decoded {
	of := &Decoded{Event: e}
	errors.As(err, &of.Fault)
	return of
}

// FewHeaders is how many headers NewMessage leaves alone. Of more headers it keeps only those that count: many short ones take much memory.
const FewHeaders = 32

// NewMessage returns a message whose lease began before its request was made.
func NewMessage(msg *nats.Msg, by *PullRequest, ackWait time.Duration) (*Message, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("reading where a message is stored: %w", err)
	}
	if !by.InRoom && len(msg.Header) > FewHeaders {
		msg.Header = event.HeadersToRead(msg.Header)
	}
	at := room.Origin{Stream: meta.Stream, Sequence: meta.Sequence.Stream, Stored: meta.Timestamp}
	entry := room.NewEntry(msg.Subject, at)
	if by.InRoom { // only there are headers trusted; without them, the message is a dead letter
		if read, err := room.Read(msg.Header, at.Stored); err == nil {
			entry = read
		}
	}
	return &Message{
		Content: Content{Subject: msg.Subject, Header: msg.Header, Data: msg.Data},
		Meta:    meta,
		Lease:   Lease{deadline: by.Asked.Add(ackWait), reply: msg.Reply},
		From:    by,
		Entry:   &entry,
		place:   place{bytes: messagesize.Of(msg.Subject, msg.Header, len(msg.Data)) + headerBytes*len(msg.Header)},
	}, nil
}

// Consumer implements settle.Message, with Sequence, Size and Reply.
func (m *Message) Consumer() string { return m.Meta.Consumer }

// Reply returns the subject for acknowledgements of the message.
func (m *Message) Reply() string { return m.Lease.reply }

// Sequence returns the message's sequence in its stream.
func (m *Message) Sequence() uint64 { return m.Meta.Sequence.Stream }

// Length returns the bytes of the subject, the headers and the body.
func (m *Message) Length() int { return m.place.bytes }

// Size returns roughly how many bytes the message takes in memory.
func (m *Message) Size() int { return MessageBytes + m.place.bytes }

// TitleOf returns the title of the event of a message. An event without a title has the first line of its text.
func TitleOf(m *Message) string {
	if m.About.Title != "" {
		return m.About.Title
	}
	return event.QuickTitle(m.Data)
}

// Forged reports whether the message is in the room, and neither a worker nor an operator wrote it.
func (m *Message) Forged() bool { return m.From.InRoom && !trusted.IsMarked(m.Header) }

// Attempted returns the time before which no delivery of the event's messages has posted the event; zero: none has posted it.
func (m *Message) Attempted() time.Time {
	if m.Entry.Attempted.IsZero() && m.Meta.NumDelivered > 1 {
		return m.Meta.Timestamp
	}
	return m.Entry.Attempted
}

// Waited reports whether the event has waited for a slot.
func (m *Message) Waited() bool { return m.Entry.Reason == room.Slot }

// HoldsSlots reports whether the event was admitted before it waited in the room. If it is too old, its slots have to be returned.
func (m *Message) HoldsSlots() bool { return m.Entry.Reason == room.Channel }

// Left returns for how long the message certainly belongs to this worker.
func (l *Lease) Left() time.Duration { return l.LeftAt(time.Now()) }

// LeftAt returns what Left returns at a time.
func (l *Lease) LeftAt(now time.Time) time.Duration { return l.Ends().Sub(now) }

// Ends returns when the lease ends.
func (l *Lease) Ends() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// Extend moves the deadline after the server has confirmed an extension that was requested at the time asked.
func (l *Lease) Extend(asked time.Time, ackWait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = asked.Add(ackWait)
}

// Published is the message as its producer published it, with the identity from the room.
func (m *Message) Published() event.Message { return m.Entry.Published(m.Header, m.Data) }

// EntryFor returns the entry with which the event of the message goes to the room for a reason.
func (m *Message) EntryFor(e event.Event, reason room.Reason) room.Entry {
	entry := *m.Entry
	entry.Reason, entry.ID, entry.Derived, entry.Part = reason, e.ID, e.Derived, e.Part
	entry.Fires, entry.Trace, entry.Attempted = false, m.Traceparent(), m.Attempted()
	if m.Entry.ID == "" {
		entry.MessageID = event.MessageID(m.Header)
	}
	return entry
}

// Redelivered reports whether this message, or an earlier message of its event, may have been delivered before.
func (m *Message) Redelivered(forgotten time.Time) bool {
	return !m.Attempted().IsZero() || m.Meta.Timestamp.Before(forgotten)
}

// ProducerSpan returns the span of the producer.
func (m *Message) ProducerSpan() tracing.Context { return tracing.Parse(m.Published().TraceContext()) }

// TraceID returns the ID of the event's trace or of its producer's trace; "" if there is none.
func (m *Message) TraceID() string {
	if id := m.Span.TraceID(); id != "" {
		return id
	}
	return m.ProducerSpan().TraceID()
}

// Traceparent names the event's current span, or else the span in which the event was last stored; "" if there is neither.
func (m *Message) Traceparent() string { return cmp.Or(m.Span.Traceparent(), m.Entry.Trace) }

// Traced appends the ID of the event's trace to the attributes of a log line.
func (m *Message) Traced(attributes ...any) []any {
	if id := m.Span.TraceID(); id != "" {
		return append(attributes, "trace_id", id)
	}
	return attributes
}
