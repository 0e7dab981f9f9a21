package room

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Reason is the reason why an event waits in the room.
type Reason string

// The reasons.
const (
	Slot    Reason = "slot"    // a slot of a full limit
	Pair    Reason = "pair"    // a resolved event: the outcome of its firing event
	Redis   Reason = "redis"   // Redis, which is unavailable or refuses a key: it has the event's pair, its queues or its limits
	Body    Reason = "body"    // a large body or a group of alerts: its turn to be decoded
	Channel Reason = "channel" // its channel is paused or has earlier events
	Part    Reason = "part"    // an alert of a split body: a worker
	Replay  Reason = "replay"  // a dead letter: a worker
	Update  Reason = "update"  // an update of a posted message: its place in the budget of updates
	Steady  Reason = "steady"  // the report that a flapping key is steady: until the key has not changed for long enough
)

// Scheduled lists the reasons of message schedules.
func Scheduled() []Reason { return []Reason{Slot, Pair, Redis, Body, Update, Steady} }

// replan is in the place of a reason in the subjects of requests to plan waiting events anew. Such a request is no event.
const replan Reason = "replan"

// Due replaces the reason at the start of the subject of a message that has waited long enough: the next worker takes it.
const Due = "due"

// Subjects is the prefix of the room's subjects, such as notify-room.
type Subjects string

// Under returns the room for a subject of producers.
func Under(subject string) Subjects { return Subjects(subject + "-room") }

// All matches every subject of the room.
func (s Subjects) All() string { return string(s) + ".>" }

// Ready lists the subjects for the consumer of the room: everything except the channels' queues and pending schedules.
func (s Subjects) Ready() []string {
	return []string{string(s) + "." + Due + ".>", s.Waiting(Part), s.Waiting(Replay)}
}

// IsDue reports whether a subject is that of a due message.
func (s Subjects) IsDue(subject string) bool {
	return strings.HasPrefix(subject, string(s)+"."+Due+".")
}

// Waiting matches the messages of a reason; for a schedule, the pending ones.
func (s Subjects) Waiting(reason Reason) string { return string(s) + "." + string(reason) + ".>" }

// Undecided matches the undecided events in the room.
func (s Subjects) Undecided() []string {
	undecided := []string{s.Waiting(Part), s.Waiting(Replay)}
	for _, reason := range []Reason{Redis, Body} {
		undecided = append(undecided, s.Waiting(reason), string(s)+"."+Due+"."+string(reason)+".>")
	}
	return undecided
}

// Queue is the subject of the events of a first level that wait for a reason, in their order.
func (s Subjects) Queue(reason Reason, first string) string {
	return string(s) + "." + string(reason) + "." + first
}

// Channel is the subject of the events of a first level that wait for a channel.
func (s Subjects) Channel(token, first string) string {
	return string(s) + "." + string(Channel) + "." + token + "." + first
}

// ChannelFilter matches all events that wait for a channel.
func (s Subjects) ChannelFilter(token string) string {
	return string(s) + "." + string(Channel) + "." + token + ".>"
}

// ChannelOf is the token of the channel in a subject; ok is false for a subject of another reason.
func (s Subjects) ChannelOf(subject string) (token string, ok bool) {
	rest, ok := strings.CutPrefix(subject, string(s)+"."+string(Channel)+".")
	token, _, _ = strings.Cut(rest, ".")
	return token, ok
}

// First is the first level in a subject of the room; "" for any other subject.
func (s Subjects) First(subject string) string {
	rest, ok := strings.CutPrefix(subject, string(s)+".")
	if !ok {
		return ""
	}
	tokens := strings.Split(rest, ".")
	place := 1
	if tokens[0] == Due || tokens[0] == string(Channel) {
		place = 2
	}
	if len(tokens) <= place {
		return ""
	}
	return tokens[place]
}

// Schedule is the subject of a message schedule and of its message when it is due. The key distinguishes schedules: the server stores one
// for each subject.
func (s Subjects) Schedule(reason Reason, first, key string) (schedule, target string) {
	tail := string(reason) + "." + first + "." + hashed(key)
	return string(s) + "." + tail, string(s) + "." + Due + "." + tail
}

// Replan is [Subjects.Schedule] for a request to plan the events anew that wait for slots. The key distinguishes requests.
func (s Subjects) Replan(key string) (schedule, target string) {
	return s.Schedule(replan, "limits", key)
}

// IsReplan reports whether a subject is that of a request to plan waiting events anew.
func (s Subjects) IsReplan(subject string) bool {
	rest, _ := strings.CutPrefix(subject, string(s)+".")
	return strings.HasPrefix(strings.TrimPrefix(rest, Due+"."), string(replan)+".")
}

// Token identifies a channel in subjects and consumers. A channel's name may be invalid in a subject, and a webhook's is secret.
func Token(channel string) string { return hashed(channel)[:16] }

func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// Headers of the room's messages.
const (
	HeaderSubject   = "Notifier-Subject"
	HeaderID        = "Notifier-Id"
	HeaderDerived   = "Notifier-Derived"
	HeaderPart      = "Notifier-Part"
	HeaderOrigin    = "Notifier-Origin"
	HeaderSince     = "Notifier-Since"
	HeaderReason    = "Notifier-Waits-For"
	HeaderUntil     = "Notifier-Until"
	HeaderBehind    = "Notifier-Behind"
	HeaderMessageID = "Notifier-Msg-Id" // the producer's Nats-Msg-Id
	HeaderTrace     = "Notifier-Traceparent"
	HeaderAttempted = "Notifier-Attempted"
	HeaderLimits    = "Notifier-Limits"
	HeaderReceipt   = "Notifier-Receipt"
	HeaderState     = "Notifier-State"
	HeaderOrder     = "Notifier-Order"
	HeaderCount     = "Notifier-Count"
	HeaderFires     = "Notifier-Fires"
	HeaderSteady    = "Notifier-Steady"
)

// Headers of the server's protocol.
const (
	headerRollup         = "Nats-Rollup"
	headerSchedule       = "Nats-Schedule"
	headerScheduleTarget = "Nats-Schedule-Target"
)

// Origin identifies the message of the producer, wherever the event waits.
type Origin struct {
	Stream   string
	Sequence uint64
	Stored   time.Time
}

// Entry is the room's information about an event in addition to the producer's headers and body.
type Entry struct {
	Reason  Reason
	Subject string // of the producer's message
	ID      string
	Derived bool   // the producer gave no ID
	Fires   bool   // of an event that waits for its pair: it does not resolve it, but waits to be folded into its message
	Part    string // the name of the alert in the body that it was split from; "" for none
	Origin  Origin
	Since   time.Time // start of the event's age: the time when it was first stored or replayed

	MessageID string // the producer's Nats-Msg-Id, "" for none
	Trace     string // the traceparent of the span that stored the event here, "" for none

	Attempted time.Time // when the first attempt began that may have posted the event; zero: none has

	Limits string // of an event that waits for a slot: the limits by which it was planned (store.Route); "" if they are not known
	Order  Order  // of an operator

	// An event that opens this event's pair may be in the producers' stream up to the sequence Until, and in the room up to the sequence
	// Behind. 0 means unknown.
	Until, Behind uint64

	// An entry with the reason Update is a state of a posted message: its receipt, and the order of the state. Of two states, the one with the
	// larger order is newer.
	Receipt string
	State   int64
	Count   string // what is folded into the message that the event resolves, as the worker writes it; "" for nothing

	// Of the report that a key is steady, whatever it waits for: the change (store.Change) since which the key is steady. 0 for any other entry.
	Steady int64
}

// IsReport reports whether the entry is the report that a key is steady, whatever it waits for.
func (e Entry) IsReport() bool { return e.Steady > 0 }

// IsEvent reports whether the entry is an event: neither a report nor an update.
func (e Entry) IsEvent() bool { return e.Reason != Update && !e.IsReport() }

// Replayed reports whether an operator replayed the event.
func (e Entry) Replayed() bool { return !e.Since.Equal(e.Origin.Stored) }

// Message returns an event for the room on a subject, with the headers of the producer that say something about the event.
func (e Entry) Message(subject string, producer nats.Header, data []byte) *nats.Msg {
	header := nats.Header(event.Headers(producer))
	if e.MessageID != "" {
		header.Set(HeaderMessageID, e.MessageID)
	}
	trusted.Mark(header)
	header.Set(HeaderReason, string(e.Reason))
	header.Set(HeaderSubject, e.Subject)
	header.Set(HeaderID, e.ID)
	if e.Derived {
		header.Set(HeaderDerived, "true")
	}
	if e.Fires {
		header.Set(HeaderFires, "true")
	}
	if e.Part != "" {
		header.Set(HeaderPart, e.Part)
	}
	header.Set(HeaderOrigin, e.Origin.String())
	if e.Replayed() {
		header.Set(HeaderSince, strconv.FormatInt(e.Since.UnixMilli(), 10))
	}
	if !e.Attempted.IsZero() {
		header.Set(HeaderAttempted, strconv.FormatInt(e.Attempted.UnixMilli(), 10))
	}
	for name, text := range map[string]string{HeaderTrace: e.Trace, HeaderLimits: e.Limits, HeaderOrder: e.Order.String()} {
		if text != "" {
			header.Set(name, text)
		}
	}
	if e.Reason == Update {
		header.Set(HeaderReceipt, e.Receipt)
		header.Set(HeaderState, strconv.FormatInt(e.State, 10))
		if e.Count != "" {
			header.Set(HeaderCount, e.Count)
		}
	}
	if e.Steady > 0 {
		header.Set(HeaderSteady, strconv.FormatInt(e.Steady, 10))
	}
	for name, sequence := range map[string]uint64{HeaderUntil: e.Until, HeaderBehind: e.Behind} {
		if sequence > 0 {
			header.Set(name, strconv.FormatUint(sequence, 10))
		}
	}
	return &nats.Msg{Subject: subject, Header: header, Data: data}
}

// Kept returns how many bytes of a message the room keeps: of its body and of the producer's headers, not of the headers of the workers.
func Kept(header nats.Header, data []byte) int {
	return messagesize.OfHeader(event.Headers(header)) + len(data)
}

// Published returns an event of the room for decoding: the message of its producer, with the identity that the room has for it.
func (e Entry) Published(header nats.Header, data []byte) event.Message {
	m := event.Message{Subject: e.Subject, Header: header, Data: data, Stream: e.Origin.Stream, Sequence: e.Origin.Sequence}
	if e.ID != "" {
		m.Room = &event.RoomIdentity{ID: e.ID, Derived: e.Derived, Part: e.Part}
	}
	return m
}

// IsOutrun reports whether JetStream has not stored a message because another one is the last of its subject by now.
func IsOutrun(err error) bool {
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return refused && (refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// Replace makes a message take the place of the messages on its subject.
func Replace(m *nats.Msg) { m.Header.Set(headerRollup, "sub") }

// ScheduleAt makes the server store a message on a subject of the room at a time.
func ScheduleAt(m *nats.Msg, target string, at time.Time) {
	m.Header.Set(headerSchedule, "@at "+at.UTC().Format(time.RFC3339Nano))
	m.Header.Set(headerScheduleTarget, target)
}

// DueAt returns the time of a message schedule; ok is false for any other message.
func DueAt(header nats.Header) (at time.Time, ok bool) {
	at, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(header.Get(headerSchedule), "@at "))
	return at, err == nil
}

// ErrForged means that neither a worker nor an operator wrote a message: see package trusted.
var ErrForged = errors.New("neither a worker nor an operator wrote it")

// NewEntry returns the entry of a producer's message.
func NewEntry(subject string, at Origin) Entry {
	return Entry{Subject: subject, Origin: at, Since: at.Stored}
}

// Read reads the entry of a message of the room that was stored at a time.
func Read(header nats.Header, stored time.Time) (Entry, error) {
	if !trusted.IsMarked(header) {
		return Entry{}, fmt.Errorf("reading an event of the room: %w", ErrForged)
	}
	e := Entry{
		Reason: Reason(header.Get(HeaderReason)), Subject: header.Get(HeaderSubject), ID: header.Get(HeaderID),
		Derived: header.Get(HeaderDerived) == "true", Part: header.Get(HeaderPart),
		MessageID: header.Get(HeaderMessageID), Trace: header.Get(HeaderTrace), Limits: header.Get(HeaderLimits), Order: readOrder(header),
		Fires: header.Get(HeaderFires) == "true",
	}
	if e.Subject == "" || e.ID == "" {
		return Entry{}, fmt.Errorf("reading an event of the room: it lacks %s or %s", HeaderSubject, HeaderID)
	}
	origin, err := parseOrigin(header.Get(HeaderOrigin))
	if err != nil {
		return Entry{}, fmt.Errorf("reading an event of the room: %w", err)
	}
	e.Origin, e.Since = origin, origin.Stored
	if e.Reason == Replay {
		e.Since = stored.Truncate(time.Millisecond) // the precision of the header, if the event moves on
	}
	for name, at := range map[string]*time.Time{HeaderSince: &e.Since, HeaderAttempted: &e.Attempted} {
		text := header.Get(name)
		if text == "" {
			continue
		}
		milliseconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return Entry{}, fmt.Errorf("reading an event of the room: %s is %q", name, text)
		}
		*at = time.UnixMilli(milliseconds)
	}
	for name, sequence := range map[string]*uint64{HeaderUntil: &e.Until, HeaderBehind: &e.Behind} {
		text := header.Get(name)
		if text == "" {
			continue
		}
		if *sequence, err = strconv.ParseUint(text, 10, 64); err != nil {
			return Entry{}, fmt.Errorf("reading an event of the room: %s is %q", name, text)
		}
	}
	if text := header.Get(HeaderSteady); text != "" {
		if e.Steady, err = strconv.ParseInt(text, 10, 64); err != nil {
			return Entry{}, fmt.Errorf("reading an event of the room: %s is %q", HeaderSteady, text)
		}
	}
	if e.Reason == Update {
		e.Receipt, e.Count = header.Get(HeaderReceipt), header.Get(HeaderCount)
		if e.State, err = strconv.ParseInt(header.Get(HeaderState), 10, 64); err != nil || e.Receipt == "" {
			return Entry{}, fmt.Errorf("reading an update of the room: %s is %q, %s is %q", HeaderReceipt, e.Receipt, HeaderState, header.Get(HeaderState))
		}
	}
	return e, nil
}

// String is the origin in the form of a header: the time in nanoseconds, the sequence, and the stream.
func (o Origin) String() string {
	return fmt.Sprintf("%d %d %s", o.Stored.UnixNano(), o.Sequence, o.Stream)
}

// parseOrigin reads what String writes.
func parseOrigin(text string) (Origin, error) {
	parts := strings.SplitN(text, " ", 3)
	if len(parts) != 3 || parts[2] == "" {
		return Origin{}, fmt.Errorf("%s is %q", HeaderOrigin, text)
	}
	nanoseconds, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil {
		return Origin{}, fmt.Errorf("%s is %q: %w", HeaderOrigin, text, err)
	}
	sequence, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return Origin{}, fmt.Errorf("%s is %q: %w", HeaderOrigin, text, err)
	}
	return Origin{Stream: parts[2], Sequence: sequence, Stored: time.Unix(0, nanoseconds).UTC()}, nil
}
