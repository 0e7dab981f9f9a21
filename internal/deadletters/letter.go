package deadletters

import (
	"errors"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
)

// Letter is what can be said of a dead letter in a line.
type Letter struct {
	Number      uint64    `json:"number"` // its sequence in the dead-letter stream
	ID          string    `json:"id"`     // the event's; empty if it is not known
	Reason      string    `json:"reason"`
	Category    string    `json:"category"` // empty if it is not known
	Subject     string    `json:"subject"`  // on which the event was published; empty if the letter does not say
	Title       string    `json:"title"`
	Error       string    `json:"error"`
	Deliveries  uint64    `json:"deliveries"`  // how often a worker had the event; 0 if the letter does not say
	Stored      time.Time `json:"stored"`      // when it became a dead letter
	Interrupted bool      `json:"interrupted"` // a replay of it was begun, and may have sent it on

	messageID string // the name under which the event was published; that of a replay if it came back
}

// Content is all that a dead letter holds.
type Content struct {
	Letter
	Header nats.Header
	Body   []byte
}

// letterOf reads a message of the dead-letter stream.
func (s *Store) letterOf(m *jetstream.RawStreamMsg) Letter {
	l := Letter{
		Number:    m.Sequence,
		Reason:    strings.TrimPrefix(m.Subject, s.o.Subject+"."),
		Subject:   m.Header.Get(consume.HeaderSubject),
		Error:     oneLine(m.Header.Get(consume.HeaderError)),
		Stored:    m.Time,
		messageID: m.Header.Get(consume.HeaderMessageID),
	}
	l.Deliveries, _ = strconv.ParseUint(m.Header.Get(consume.HeaderDeliveries), 10, 64)
	e, err := s.decode(m)
	if l.Subject != "" { // else nothing says where it came from, and so what its ID was
		l.ID, l.Category = e.ID, e.Category
	}
	l.Title = title(e)
	if err != nil {
		l.Title = excerpt(string(m.Data))
		if fault, isFault := errors.AsType[*event.Fault](err); isFault && l.Error == "" {
			l.Error = fault.Detail
		}
	}
	return l
}

// decode finds out what the worker made of the message that became this letter.
func (s *Store) decode(m *jetstream.RawStreamMsg) (event.Event, error) {
	header := producers(m.Header)
	if id := m.Header.Get(consume.HeaderMessageID); id != "" {
		header.Set(nats.MsgIdHdr, id)
	}
	sequence, _ := strconv.ParseUint(m.Header.Get(consume.HeaderSequence), 10, 64)
	return s.o.Decoder.Decode(event.Message{
		Subject: m.Header.Get(consume.HeaderSubject), Header: header, Data: m.Data, Stream: s.o.Events, Sequence: sequence,
	})
}

// producers are the headers that are not the worker's, without those that command the server.
func producers(letter nats.Header) nats.Header {
	own := []string{consume.HeaderReason, consume.HeaderError, consume.HeaderSubject, consume.HeaderSequence, consume.HeaderDeliveries, consume.HeaderMessageID}
	header := make(nats.Header, len(letter))
	for name, values := range letter {
		if canonical := textproto.CanonicalMIMEHeaderKey(name); !slices.Contains(own, canonical) && !strings.HasPrefix(canonical, "Nats-") {
			header[name] = values
		}
	}
	return header
}

// maxTitle is how many characters of a title are kept.
const maxTitle = 200

func title(e event.Event) string {
	if title := excerpt(e.Title); title != "" {
		return title
	}
	return excerpt(e.Text)
}

// excerpt is the first line that shows anything.
func excerpt(text string) string {
	for line := range strings.Lines(text) {
		if line = oneLine(line); line != "" {
			return cut(line)
		}
	}
	return ""
}

func cut(line string) string {
	if runes := []rune(line[:min(len(line), 4*(maxTitle+1))]); len(runes) > maxTitle {
		return strings.ToValidUTF8(string(runes[:maxTitle-1]), "") + "…"
	}
	return line
}

// oneLine returns a text without what would command a terminal, and without line ends.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
	return strings.Join(strings.Fields(text), " ")
}
