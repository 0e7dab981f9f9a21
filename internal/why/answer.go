package why

import (
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
)

// Question selects the events that meet every condition that is set. It needs at least one condition.
type Question struct {
	ID       string    `json:"id,omitempty"`       // the producer's form or the workers' form (see event.Named), with or without the part of a group
	Sequence uint64    `json:"sequence,omitempty"` // of the producer's message
	Category string    `json:"category,omitempty"` // and everything below it
	Title    string    `json:"title,omitempty"`    // part of the title, in any letter case
	Since    time.Time `json:"since,omitzero"`     // earlier results do not count, but present places do; zero: no bound

	// Everywhere looks for the ID in the delivery record of every known category if no other source has events.
	Everywhere bool `json:"-"`
}

// Single reports whether the question is about one event.
func (q Question) Single() bool { return q.ID != "" || q.Sequence != 0 }

// maxEvents is how many events an answer describes individually, the newest ones.
const maxEvents = 20

// Answer describes the results of the selected events, and what would happen to a new event.
type Answer struct {
	Asked   Question `json:"asked"`
	Found   int      `json:"found,omitempty"`   // for a question about many: number of events with an outcome and of waiting events; else of events, if not all are in Events
	Events  []Event  `json:"events"`            // at most maxEvents, the newest last; for a question about one event, some of each first level
	Totals  []Total  `json:"totals,omitempty"`  // for a question about many: events by result, level and limit
	Waiting []string `json:"waiting,omitempty"` // sentences, for a question about many: number of events without an outcome
	Counted []string `json:"counted,omitempty"` // sentences: aggregated events that may include the selected events
	Missing string   `json:"missing,omitempty"` // a sentence, if no source has the events: what the journal covers
	Nearest string   `json:"nearest,omitempty"` // if no source has events of the category: an existing category with a similar name
	Now     []string `json:"now,omitempty"`     // sentences: what would happen to an event of the category now
	Unknown []string `json:"unknown,omitempty"` // sentences: which source could not be read, and why

	timedOut bool // a search of the waiting events ended before it had read all of them
}

// Known reports whether any source has the selected events.
func (a Answer) Known() bool { return len(a.Events) > 0 || len(a.Totals) > 0 }

// Final reports whether a second call would give the same answer: the journal gets the steps of an event about a second late.
func (a Answer) Final() bool {
	if !a.Asked.Single() {
		return true
	}
	return a.Known() && !slices.ContainsFunc(a.Events, func(e Event) bool { return e.State == StateUnknown })
}

// Event is one event with everything that the sources have about it.
type Event struct {
	ID        string          `json:"id"` // as workers show it
	Category  string          `json:"category"`
	Title     string          `json:"title,omitempty"`
	Sequence  uint64          `json:"sequence,omitempty"` // of the producer's message
	Stored    time.Time       `json:"stored,omitzero"`
	State     State           `json:"state"`
	Sentences []string        `json:"sentences"`         // its results, in order
	Reason    string          `json:"reason,omitempty"`  // the sentences without the details of this event, such as times
	Note      string          `json:"note,omitempty"`    // a detail that Reason leaves out: until when the event waits, its number in a message, the number of its dead letter
	Entries   []journal.Entry `json:"entries,omitempty"` // of the journal

	waits   waits
	letters []Letter
}

// waits is what the streams have of an event.
type waits struct {
	event   *Pending  // the event itself; nil: no stream has it
	updates []Pending // of messages that the event resolves
}

// State is the name of an event's outcome. An event without an outcome has one of the states below.
type State string

// The states of an event without an outcome.
const (
	StateUndecided State = "undecided" // in the producers' stream
	StateWaiting   State = "waiting"   // in the room
	StateAdmitted  State = "admitted"  // it has its slots, and is being delivered
	StateSplit     State = "split"     // a body whose parts are events
	StateUnknown   State = "unknown"   // it existed, and no source has it now
)

// Total counts events of one result, level and limit.
type Total struct {
	Result journal.Result `json:"result"`
	Level  string         `json:"level,omitempty"`
	Limit  string         `json:"limit,omitempty"` // such as 10/30m; empty if the level has none
	Count  int            `json:"count"`
}

// What describes the result, such as "dropped by category 10/30m".
func (t Total) What() string {
	by := strings.TrimSpace(t.Level + " " + t.Limit)
	what := string(t.Result)
	switch t.Result {
	case journal.Waiting:
		if what = "began to wait"; by != "" {
			return what + " for a slot of " + by
		}
	case journal.Failed:
		what = "failed and tried again"
	case journal.Split:
		what = "split into their alerts"
	case journal.Sent:
		if by != "" { // in shadow mode
			return what + ", though denied by " + by
		}
	case journal.Steady:
		what = "reported as steady"
	}
	if by != "" {
		what += " by " + by
	}
	return what
}

// Group is a group of events with equal reasons.
type Group struct {
	Reason string
	Events []Event // the newest first
}

// Groups groups the events of an answer by reason, the group with the newest event first.
func (a Answer) Groups() []Group {
	var groups []Group
	for _, e := range slices.Backward(a.Events) {
		i := slices.IndexFunc(groups, func(g Group) bool { return g.Reason == e.Reason })
		if i < 0 {
			i = len(groups)
			groups = append(groups, Group{Reason: e.Reason})
		}
		groups[i].Events = append(groups[i].Events, e)
	}
	return groups
}

// Pending is an event without an outcome. It is in the producers' stream or in the room.
type Pending struct {
	ID       string // as workers show it
	Identity string // see event.Event.Identity; "" if the message cannot be decoded
	Derived  bool   // the producer gave no ID
	Category string
	Title    string
	Key      string    // key of a firing or resolved event; "" for other events
	Fires    bool      // it is firing
	Stream   string    // of the producer's message
	Sequence uint64    // of the producer's message
	Stored   time.Time // when the producer's message was stored
	Reason   string    // what it waits for in the room (room.Reason); room.Due: its wait is over; "": it is in the producers' stream
	Since    time.Time // when it arrived there
	Due      time.Time // when its wait ends; zero: unknown
	Channel  string    // token of the channel that it waits for (room.Token); "" for none
	Order    room.Order
}

// Letter is a dead letter.
type Letter struct {
	Number    uint64 // in the dead-letter stream
	ID        string // as workers show it
	Category  string
	Title     string
	Reason    string
	Error     string
	Sequence  uint64    // of the producer's message; 0 if the letter does not have it
	Published time.Time // when the producer's message was stored; zero if the letter does not have it
	Stored    time.Time // when it became a dead letter
}
