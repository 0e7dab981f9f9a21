package event

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"
)

// Severity is the importance of an event; the zero value counts as SeverityInfo.
type Severity string

// The severities an event may have.
const (
	SeverityInfo     Severity = "info"
	SeverityWarning  Severity = "warning"
	SeverityError    Severity = "error"
	SeverityCritical Severity = "critical"
)

// severities has the severities by their ranks, from 1.
var severities = []Severity{SeverityInfo, SeverityWarning, SeverityError, SeverityCritical}

// Rank orders severities: 1 for info, up to 4 for critical.
func (s Severity) Rank() int { return max(0, slices.Index(severities, s)) + 1 }

// SeverityOf returns the severity of a rank.
func SeverityOf(rank int) Severity { return severities[min(max(1, rank), len(severities))-1] }

// Status is the state of the event's subject; most events have no status.
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

// MaxIDBytes is the length of the longest unchanged ID; a hash replaces a longer ID (see Named).
const MaxIDBytes = 64

// Event is one decoded event. All strings are valid UTF-8. Title, Text, Source and the fields may contain control characters, which the
// renderer removes.
type Event struct {
	// ID is stable across redeliveries: 1 to MaxIDBytes bytes, no control characters.
	ID string
	// Derived is true if the producer set no ID. The ID is then the position of the message in JetStream: "<stream>:<sequence>".
	Derived bool
	// Part identifies an alert without its own identity within its group, which shares the event's ID; empty for any other event. No
	// producer can write it.
	Part     string
	Category string
	Title    string // Title or Text has a visible character
	Text     string
	Severity Severity // one of the constants; SeverityInfo by default
	Source   string
	Link     string    // an absolute http or https URL, or empty
	Links    []Field   // absolute http or https URLs by their names, in the order of Fields
	Fields   []Field   // in the body's order; the last value of a duplicate name
	Time     time.Time // in UTC; zero if the producer set none
	Cost     int       // number of slots, 1 to MaxCost; 1 by default
	Status   Status    // empty by default; StatusResolved only with a Key
	Key      string    // the event's subject, unique within its category; in the form of an ID; empty by default
}

// Identity is the category and the ID of the event with a blank between, "<category>#<hash of the part> <ID>" for a part of a group. No
// category contains a blank or '#', so an ID is local to its category, and no producer can set the ID of a part.
func (e Event) Identity() string {
	if e.Part == "" {
		return e.Category + " " + e.ID
	}
	sum := sha256.Sum256([]byte(e.Part))
	var digits [2 * partHashBytes]byte
	hex.Encode(digits[:], sum[:partHashBytes])
	return e.Category + "#" + string(digits[:]) + " " + e.ID
}

// partHashBytes is the length of a part's hash in an identity. It distinguishes the parts of one group only.
const partHashBytes = 8

// ShownID returns the ID for people, with the part after the ID of its group. It is not unique, unlike Identity.
func (e Event) ShownID() string {
	if e.Part == "" {
		return e.ID
	}
	return e.ID + "/" + e.Part
}

// Resolves reports whether the event ends an earlier event with its key.
func (e Event) Resolves() bool { return e.Status == StatusResolved && e.Key != "" }

// Pair identifies the firing and the resolved events of one key; empty for any other event. A key is local to its category: a producer
// cannot resolve events of another category.
func (e Event) Pair() string {
	if e.Status == "" {
		return ""
	}
	return e.Keyed()
}

// Keyed identifies the events of one key, whatever their status; empty for an event without a key.
func (e Event) Keyed() string {
	if e.Key == "" {
		return ""
	}
	return e.Category + "\n" + e.Key
}

// Message is a stored message, as input for decoding.
type Message struct {
	Subject  string
	Header   map[string][]string // may be nil; names are matched in any letter case
	Data     []byte              // only read
	Stream   string              // name of the stream
	Sequence uint64              // stream sequence, the same at each redelivery
	// Room is the identity that workers added when they stored the event again; nil for messages that producers can write.
	Room *RoomIdentity
}

// RoomIdentity is the identity of an event in the room. It overrides the body and the headers. If ID is empty, the body and the headers
// determine the identity.
type RoomIdentity struct {
	ID      string
	Derived bool
	Part    string
}
