package deadletters

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
)

// Letter is the summary of a dead letter.
type Letter struct {
	Number     uint64    `json:"number"` // its sequence in the dead-letter stream
	ID         string    `json:"id"`     // the event's ID; empty if not known
	Reason     string    `json:"reason"`
	Category   string    `json:"category"` // empty if it is not known
	Subject    string    `json:"subject"`  // subject of the event; empty if the letter does not have it
	Title      string    `json:"title"`
	Error      string    `json:"error"`
	Deliveries uint64    `json:"deliveries"`            // how often workers received the event; 0 if the letter does not have it
	Stored     time.Time `json:"stored"`                // when it became a dead letter
	BodyLength int       `json:"body_length,omitempty"` // original length of a body that was cut
	PushedOut  int       `json:"pushed_out,omitempty"`  // older letters that were removed for this one

	first string     // the first level of the category, as the letter's subject has it
	entry room.Entry // the identity and the origin of the event
	lacks error      // why the letter has no entry
}

// Event returns the identity and the origin of the letter's event. It fails if the letter lacks them.
func (l Letter) Event() (room.Entry, error) { return l.entry, l.lacks }

// ShownID returns the ID of the letter's event in the form for people.
func (l Letter) ShownID() string { return event.Event{ID: l.ID, Part: l.entry.Part}.ShownID() }

// Content is the full content of a dead letter.
type Content struct {
	Letter
	Header nats.Header
	Body   []byte
}

// letterOf reads a message of the dead-letter stream.
func (s *Store) letterOf(m *jetstream.RawStreamMsg) Letter {
	l := Letter{
		Number:  m.Sequence,
		ID:      m.Header.Get(room.HeaderID),
		Subject: m.Header.Get(room.HeaderSubject),
		Error:   plain.Line(m.Header.Get(HeaderError)),
		Stored:  m.Time,
	}
	l.Reason, l.first, _ = strings.Cut(strings.TrimPrefix(m.Subject, s.o.Subject+"."), ".")
	l.Deliveries, _ = strconv.ParseUint(m.Header.Get(HeaderDeliveries), 10, 64)
	l.BodyLength, _ = strconv.Atoi(m.Header.Get(HeaderBodyLength))
	l.PushedOut, _ = strconv.Atoi(m.Header.Get(HeaderPushedOut))
	l.entry, l.lacks = room.Read(m.Header, m.Time)
	e, err := s.decode(m, l)
	if l.Subject != "" { // otherwise the origin is not known
		l.Category = e.Category
	}
	if l.Category == "" && l.first != event.NoLevel {
		l.Category = l.first
	}
	l.Title = cmp.Or(excerpt(e.Title), excerpt(e.Text))
	if err != nil {
		l.Title = excerpt(string(m.Data))
		if fault, isFault := errors.AsType[*event.Fault](err); isFault && l.Error == "" {
			l.Error = fault.Detail
		}
	}
	return l
}

// decode decodes the message that became this letter, as the worker did.
func (s *Store) decode(m *jetstream.RawStreamMsg, l Letter) (event.Event, error) {
	return s.o.Decoder.Decode(event.Message{
		Subject: m.Header.Get(room.HeaderSubject), Header: event.Headers(m.Header), Data: m.Data,
		Room: &event.RoomIdentity{ID: l.entry.ID, Derived: l.entry.Derived, Part: l.entry.Part},
	})
}

// maxTitle is the maximum number of characters of a title.
const maxTitle = 200

// excerpt returns the first line with visible text.
func excerpt(text string) string {
	for line := range strings.Lines(text) {
		if short := plain.Short(line, maxTitle); short != "" {
			return strings.Clone(short) // not the whole body
		}
	}
	return ""
}
