package event

import (
	"crypto/sha256"
	"encoding/hex"
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

// MaxIDBytes is the longest ID taken as it is; a longer one is replaced by a hash (see Named).
const MaxIDBytes = 64

// Event is one decoded event. All strings are valid UTF-8. Title, Text, Source and the fields
// may hold control characters, whose removal belongs to whoever renders them.
type Event struct {
	// ID is stable across redeliveries: 1 to MaxIDBytes bytes, no control characters.
	ID string
	// Derived says that the producer gave no ID, so ID is made from where JetStream stored
	// the message: "<stream>:<sequence>".
	Derived bool
	// Part names an alert without an identity of its own within its group, whose ID is the event's; empty for any other event.
	// No producer can write it.
	Part     string
	Category string
	Title    string // Title or Text holds something visible
	Text     string
	Severity Severity // one of the constants; SeverityInfo unless given
	Source   string
	Link     string    // an absolute http or https URL, or empty
	Links    []Field   // absolute http or https URLs by their names, in the order of Fields
	Fields   []Field   // in the body's order; of duplicates the last value, at its place
	Time     time.Time // in UTC; zero when the producer gave none
	Cost     int       // slots it takes, 1 to MaxCost; 1 unless given
	Status   Status    // empty unless given; StatusResolved only beside a Key
	Key      string    // what it is about, unique within its category; as an ID, or empty if none was given
}

// Identity tells the event from all others: its category and its ID with a blank between, or
// "<category>#<hash of the part> <ID>" for a part of a group. No category holds a blank or '#', so an ID
// means something within its category alone, and no ID that a producer gives is that of a part.
func (e Event) Identity() string {
	if e.Part == "" {
		return e.Category + " " + e.ID
	}
	sum := sha256.Sum256([]byte(e.Part))
	var digits [2 * partHashBytes]byte
	hex.Encode(digits[:], sum[:partHashBytes])
	return e.Category + "#" + string(digits[:]) + " " + e.ID
}

// partHashBytes is how much of a part's hash an identity holds. Only the parts of one group are told apart by it.
const partHashBytes = 8

// MaxIdentityBytes is the length of the longest Identity.
const MaxIdentityBytes = MaxPathBytes + len("#") + 2*partHashBytes + len(" ") + MaxIDBytes

// ShownID is the ID as people are shown it: behind that of a group stands the name of the part. It tells no events
// apart; Identity does.
func (e Event) ShownID() string {
	if e.Part == "" {
		return e.ID
	}
	return e.ID + "/" + e.Part
}

// Resolves tells whether the event says that something is over which an earlier one with its key began.
func (e Event) Resolves() bool { return e.Status == StatusResolved && e.Key != "" }

// Pair names what a firing and a resolved event are about together; empty for any other event. A key means something within
// its category alone: a producer of one category cannot resolve what others watch.
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
	// Room is what workers noted of the event when they stored it anew; nil for what producers can write.
	Room *RoomIdentity
}

// RoomIdentity is which event a message of the room holds. It wins over everything that body and
// headers say. Where ID is empty the message speaks for itself, as a producer's does.
type RoomIdentity struct {
	ID      string
	Derived bool
	Part    string
}
