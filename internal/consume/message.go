package consume

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/tracing"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// source is an origin of messages: a consumer of the producers' stream or of the room.
type source struct {
	inRoom  bool
	token   string // of a channel's queue in the room; "" for another source
	channel string // the destination of that queue; "" if it is not known

	deciding *sync.WaitGroup // counts messages that were passed on and are undecided; nil: nobody waits for the decisions
}

func queueOf(channel string) source {
	return source{inRoom: true, token: room.Token(channel), channel: channel}
}

func (s source) isQueueOf(channel string) bool {
	return s.token != "" && s.token == room.Token(channel)
}

// lane returns the name of the lane in which requests for the channel's queue wait. A channel that is not known yet has a lane of its own.
func (s source) lane() string { return cmp.Or(s.channel, s.token) }

type pullRequest struct {
	source
	*stream.Request
}

// message is a stored message that this worker received. It is kept small: objects of more than 512 bytes cost the garbage collector more.
type message struct {
	*nats.Msg
	span     *tracing.Span     // of its event; nil: no span
	untraced bool              // no span yet; one is started only if the event is admitted
	meta     *nats.MsgMetadata // where it is stored, and how it was delivered; NumPending: undelivered messages of its source at that time
	lease    lease
	about    about
	from     *pullRequest
	entry    *room.Entry // origin of the event, and what it waited for; not nil
	size     int         // bytes of the subject, the headers and the body
	decoded  *decoded    // result of bodies; nil: not decoded
	hand     *hand
	weight   atomic.Int64 // bytes that count in hand; 0: the message is not in hand
}

// about is what is known of a message's event, beside its entry.
type about struct {
	category string // "" if not known yet or invalid
	shownID  string // empty until the event is decoded; so are the fields below
	title    string // may be empty even then
	key      string // of the event; mostly empty
	cost     int
	pair     string // of a firing or resolved event; "" for none
	resolves bool
}

// lease is how long a message certainly belongs to this worker. Its methods may be called concurrently.
type lease struct {
	mu       sync.Mutex
	deadline time.Time
}

type decoded struct {
	event event.Event
	fault *event.Fault // nil: the message is a valid event
}

func decodedOf(e event.Event, err error) *decoded {
	of := &decoded{event: e}
	errors.As(err, &of.fault)
	return of
}

// fewHeaders is how many headers newMessage leaves alone. Of more headers it keeps only those that count: many short ones take much memory.
const fewHeaders = 32

func newMessage(msg *nats.Msg, by *pullRequest, ackWait time.Duration) (*message, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("reading where a message is stored: %w", err)
	}
	if !by.inRoom && len(msg.Header) > fewHeaders {
		msg.Header = event.HeadersToRead(msg.Header)
	}
	at := room.Origin{Stream: meta.Stream, Sequence: meta.Sequence.Stream, Stored: meta.Timestamp}
	entry := room.NewEntry(msg.Subject, at)
	if by.inRoom { // only there are headers trusted; without them, the message is a dead letter
		if read, err := room.Read(msg.Header, at.Stored); err == nil {
			entry = read
		}
	}
	return &message{
		Msg:   msg,
		meta:  meta,
		lease: lease{deadline: by.Asked.Add(ackWait)},
		from:  by,
		entry: &entry,
		size:  messagesize.Of(msg.Subject, msg.Header, len(msg.Data)) + headerBytes*len(msg.Header),
	}, nil
}

// Consumer implements settle.Message, with Sequence, Size and Reply.
func (m *message) Consumer() string { return m.meta.Consumer }

// Reply returns the subject for acknowledgements of the message.
func (m *message) Reply() string { return m.Msg.Reply }

// Sequence returns the message's sequence in its stream.
func (m *message) Sequence() uint64 { return m.meta.Sequence.Stream }

// Size returns roughly how many bytes the message takes in memory.
func (m *message) Size() int { return messageBytes + m.size }

// titleOf returns the title of the event of a message. An event without a title has the first line of its text.
func titleOf(m *message) string {
	if m.about.title != "" {
		return m.about.title
	}
	return event.QuickTitle(m.Data)
}

// forged reports whether the message is in the room, and neither a worker nor an operator wrote it.
func (m *message) forged() bool { return m.from.inRoom && !trusted.IsMarked(m.Header) }

// attempted returns the time before which no delivery of the event's messages has posted the event; zero: none has posted it.
func (m *message) attempted() time.Time {
	if m.entry.Attempted.IsZero() && m.meta.NumDelivered > 1 {
		return m.meta.Timestamp
	}
	return m.entry.Attempted
}

// waited reports whether the event has waited for a slot.
func (m *message) waited() bool { return m.entry.Reason == room.Slot }

// holdsSlots reports whether the event was admitted before it waited in the room. If it is too old, its slots have to be returned.
func (m *message) holdsSlots() bool { return m.entry.Reason == room.Channel }

func (l *lease) left() time.Duration { return l.leftAt(time.Now()) }

func (l *lease) leftAt(now time.Time) time.Duration { return l.ends().Sub(now) }

func (l *lease) ends() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// extend moves the deadline after the server has confirmed an extension that was requested at the time asked.
func (l *lease) extend(asked time.Time, ackWait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = asked.Add(ackWait)
}

// published is the message as its producer published it, with the identity from the room.
func (m *message) published() event.Message { return m.entry.Published(m.Header, m.Data) }

func (m *message) entryFor(e event.Event, reason room.Reason) room.Entry {
	entry := *m.entry
	entry.Reason, entry.ID, entry.Derived, entry.Part = reason, e.ID, e.Derived, e.Part
	entry.Fires, entry.Trace, entry.Attempted = false, m.traceparent(), m.attempted()
	if m.entry.ID == "" {
		entry.MessageID = event.MessageID(m.Header)
	}
	return entry
}

// reader reads what a stored message says about its event, by the decoder, the settings and the server's clock. It has no state.
type reader struct {
	event.Decoder
	streams *stream.Client
	maxAge  time.Duration                       // see Options.MaxAge, as for the next field
	delay   func(category string) time.Duration // never nil
	fold    func(category string) time.Duration // see Options.Fold; never nil
	flaps   bool                                // keys may be flapping
}

// timeToDeliver is how long an event may take from the end of its longest wait, when its slot may open, until its post.
const timeToDeliver = time.Minute

// LongestLife returns the age at which the last event expires, by [Options.MaxAge] and the longest wait for a slot; 0: no event expires.
func LongestLife(maxAge, longestDelay time.Duration) time.Duration {
	if maxAge == 0 || longestDelay == 0 {
		return maxAge
	}
	return max(maxAge, longestDelay+timeToDeliver)
}

// at returns a time of this host's clock by the server's clock.
func (r *reader) at(t time.Time) time.Time { return r.streams.Clock.At(t) }

// tooOld reports whether an event has expired at a time of this host's clock. If the event's category may wait for slots, the event lives
// at least until the end of the longest wait, plus timeToDeliver. A report never expires: without its decision, its key would be flapping for
// as long as its pair is remembered, and its next event would be folded.
func (r *reader) tooOld(now time.Time, m *message) bool {
	if m.entry.IsReport() {
		return false
	}
	age := r.at(now).Sub(m.entry.Since)
	if r.maxAge == 0 || age <= r.maxAge {
		return false
	}
	delay := r.delay(r.categoryOf(m))
	return delay == 0 || age > delay+timeToDeliver
}

// leastAge returns the minimum time since an event was stored, by the server's clock.
func (r *reader) leastAge(m *message) time.Duration {
	latest := r.streams.Clock.Earliest(time.Now())
	if m.meta.Timestamp.After(latest) { // the time at which it came back from the room
		latest = m.meta.Timestamp
	}
	return latest.Sub(m.entry.Since)
}

// clockSkew is the tolerated error of the estimate of the server's clock.
const clockSkew = 5 * time.Second

// forgottenUntil is the time up to which the server may have forgotten deliveries, since the consumer is new or the server was killed.
func (r *reader) forgottenUntil() time.Time {
	created, reconnected := r.streams.Layout().Created, r.at(r.streams.Connection.LastReconnect()).Add(clockSkew)
	if created.After(reconnected) {
		return created
	}
	return reconnected
}

// categoryOf returns the category of a message that may not have been decoded yet; "": it has none.
func (r *reader) categoryOf(m *message) string {
	if m.about.category != "" {
		return m.about.category
	}
	category, bare, err := r.CategoryOf(m.entry.Subject)
	if err != nil || !bare {
		return category
	}
	e, _ := r.Decode(m.published())
	return e.Category
}

// firstLevel returns the first level of an event's category. If the category is unknown, it returns the first level of the subject: a
// producer of notify.payments.> must not push out letters of other first levels.
func (r *reader) firstLevel(m *message, e event.Event) string {
	if e.Category != "" {
		return event.FirstLevel(e.Category)
	}
	return r.FirstLevelOf(m.entry.Subject)
}

// shownID returns the ID of a message's event, which may have been dropped undecoded.
func (r *reader) shownID(m *message) string {
	if m.about.shownID == "" {
		e := r.Identify(m.published())
		m.about.shownID, m.about.cost = e.ShownID(), e.Cost
	}
	return m.about.shownID
}

// redelivered reports whether this message, or an earlier message of its event, may have been delivered before.
func (m *message) redelivered(forgotten time.Time) bool {
	return !m.attempted().IsZero() || m.meta.Timestamp.Before(forgotten)
}

func (m *message) producerSpan() tracing.Context { return tracing.Parse(m.published().TraceContext()) }

// traceID returns the ID of the event's trace or of its producer's trace; "" if there is none.
func (m *message) traceID() string {
	if id := m.span.TraceID(); id != "" {
		return id
	}
	return m.producerSpan().TraceID()
}

// traceparent names the event's current span, or else the span in which the event was last stored; "" if there is neither.
func (m *message) traceparent() string { return cmp.Or(m.span.Traceparent(), m.entry.Trace) }

// traced appends the ID of the event's trace to the attributes of a log line.
func (m *message) traced(attributes ...any) []any {
	if id := m.span.TraceID(); id != "" {
		return append(attributes, "trace_id", id)
	}
	return attributes
}

// appendKey appends the state of the key of a message's event, if the event has a key.
func (m *message) appendKey(keys []summary.Key) []summary.Key {
	if m.about.pair == "" {
		return keys
	}
	return append(keys, summary.Key{
		Name: plain.Line(m.about.pair), At: m.entry.Origin.Stored, Firing: !m.about.resolves, Title: plain.Title(titleOf(m)),
	})
}
