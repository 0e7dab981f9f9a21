package deadletters

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
)

// Letter is what can be said of a dead letter in a line.
type Letter struct {
	Number     uint64    `json:"number"` // its sequence in the dead-letter stream
	ID         string    `json:"id"`     // the event's; empty if it is not known
	Reason     string    `json:"reason"`
	Category   string    `json:"category"` // empty if it is not known
	Subject    string    `json:"subject"`  // on which the event was published; empty if the letter does not say
	Title      string    `json:"title"`
	Error      string    `json:"error"`
	Deliveries uint64    `json:"deliveries"`            // how often a worker had the event; 0 if the letter does not say
	Stored     time.Time `json:"stored"`                // when it became a dead letter
	BodyLength int       `json:"body_length,omitempty"` // of a body of which the letter has only the beginning
	PushedOut  int       `json:"pushed_out,omitempty"`  // older letters that had to go for this one

	first string     // the first level of the category, as the letter's subject has it
	entry room.Entry // what a worker is to know of the event
	lacks error      // why that is not known
}

// Event is what a worker is to know of the letter's event. The error says why that is not known.
func (l Letter) Event() (room.Entry, error) { return l.entry, l.lacks }

// ShownID is the ID of the letter's event as people are shown it.
func (l Letter) ShownID() string { return event.Event{ID: l.ID, Part: l.entry.Part}.ShownID() }

// Content is all that a dead letter holds.
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
		Error:   plain.Line(m.Header.Get(consume.HeaderError)),
		Stored:  m.Time,
	}
	l.Reason, l.first, _ = strings.Cut(strings.TrimPrefix(m.Subject, s.o.Subject+"."), ".")
	l.Deliveries, _ = strconv.ParseUint(m.Header.Get(consume.HeaderDeliveries), 10, 64)
	l.BodyLength, _ = strconv.Atoi(m.Header.Get(consume.HeaderBodyLength))
	l.PushedOut, _ = strconv.Atoi(m.Header.Get(consume.HeaderPushedOut))
	l.entry, l.lacks = room.Read(m.Header, m.Time)
	e, err := s.decode(m, l)
	if l.Subject != "" { // else nothing says where it came from
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

// decode finds out what the worker made of the message that became this letter.
func (s *Store) decode(m *jetstream.RawStreamMsg, l Letter) (event.Event, error) {
	return s.o.Decoder.Decode(event.Message{
		Subject: m.Header.Get(room.HeaderSubject), Header: room.Producers(m.Header), Data: m.Data,
		Room: &event.RoomIdentity{ID: l.entry.ID, Derived: l.entry.Derived, Part: l.entry.Part},
	})
}

// maxTitle is how many characters of a title are kept.
const maxTitle = 200

// excerpt is the first line that shows anything.
func excerpt(text string) string {
	for line := range strings.Lines(text) {
		if short := plain.Short(line, maxTitle); short != "" {
			return short
		}
	}
	return ""
}
