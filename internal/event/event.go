package event

import (
	"strings"
	"time"
)

// Severity says how much an event matters; the zero value counts as SeverityInfo.
type Severity string

// The severities an event may have.
const (
	SeverityInfo     Severity = "info"
	SeverityWarning  Severity = "warning"
	SeverityError    Severity = "error"
	SeverityCritical Severity = "critical"
)

// Status says whether what an event is about goes on; most events have none.
type Status string

// The statuses an event may have.
const (
	StatusFiring   Status = "firing"
	StatusResolved Status = "resolved"
)

// Field is one name and value that a producer adds to an event.
type Field struct{ Name, Value string }

// MaxCost is the largest cost of an event.
const MaxCost = 100

// MaxIDBytes is the longest ID taken as it is; a longer one is replaced by a hash.
const MaxIDBytes = 64

// HeaderID is the header whose ID wins over every other, so that an event that is stored anew
// stays the same event whatever Nats-Msg-Id the new message needs.
const HeaderID = "Notifier-Id"

// Event is one decoded event. All strings are valid UTF-8. Title, Text, Source and the fields
// may hold control characters, whose removal belongs to whoever renders them.
type Event struct {
	// ID is stable across redeliveries: 1 to MaxIDBytes bytes, no control characters.
	ID string
	// Derived says that the producer gave no ID, so ID is made from where JetStream stored
	// the message: "<stream>:<sequence>".
	Derived  bool
	Category string
	Title    string // Title or Text holds something visible
	Text     string
	Severity Severity // one of the constants; SeverityInfo unless given
	Source   string
	Link     string    // an absolute http or https URL, or empty
	Fields   []Field   // in the body's order; of duplicates the last value, at its place
	Time     time.Time // in UTC; zero when the producer gave none
	Cost     int       // slots it takes, 1 to MaxCost; 1 unless given
	Status   Status    // empty unless given
	Key      string    // what it is about, unique within its category; as an ID, or empty if none was given
}

// Heading is what the event is called in one place: its title, else the first line of its text
// that holds something visible.
func (e Event) Heading() string {
	if visible(e.Title) {
		return strings.TrimSpace(e.Title)
	}
	return firstLine(e.Text)
}

// Resolves tells whether the event says that something is over which an earlier one with its key began.
func (e Event) Resolves() bool { return e.Status == StatusResolved && e.Key != "" }

// Pair names what a firing and a resolved event are about together; empty for any other event. A key means something within
// its category alone, so that who may publish there cannot resolve what others watch.
func (e Event) Pair() string {
	if e.Status == "" || e.Key == "" {
		return ""
	}
	return e.Category + "\n" + e.Key
}

// Message is what JetStream stored, as far as decoding needs it.
type Message struct {
	Subject  string
	Header   map[string][]string // may be nil; names are matched in any letter case
	Data     []byte              // only read
	Stream   string              // name of the stream
	Sequence uint64              // stream sequence, the same at each redelivery
}
