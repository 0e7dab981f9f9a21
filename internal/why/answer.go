package why

import (
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
)

// Question says which events are asked about: those that meet every condition that is set. One has to be.
type Question struct {
	ID       string    `json:"id,omitempty"`       // as its producer gave it or as workers show it (see event.Named), or without the part of a group
	Sequence uint64    `json:"sequence,omitempty"` // of the producer's message
	Category string    `json:"category,omitempty"` // and everything below it
	Title    string    `json:"title,omitempty"`    // part of the title, in any letter case
	Since    time.Time `json:"since,omitzero"`     // what became of events before does not count, where they are now does; zero: since the journal begins
}

// single tells whether one event is asked about, and not what became of many.
func (q Question) single() bool { return q.ID != "" || q.Sequence != 0 }

// maxEvents is how many events an answer tells of singly, the newest ones.
const maxEvents = 20

// Answer says what became of the events that were asked for, and what would happen to one now.
type Answer struct {
	Asked   Question `json:"asked"`
	Found   int      `json:"found,omitempty"`   // of a question about many: how many events with an outcome and events that wait there are
	Events  []Event  `json:"events"`            // at most maxEvents, the newest last
	Totals  []Total  `json:"totals,omitempty"`  // of a question about many: events by result, level and limit
	Waiting []string `json:"waiting,omitempty"` // sentences: of a question about many, how many have no outcome yet
	Counted []string `json:"counted,omitempty"` // sentences: events that may be those asked for, and of which only a count is known
	Missing string   `json:"missing,omitempty"` // a sentence: where nothing is known of the events, what the journal covers
	Nearest string   `json:"nearest,omitempty"` // where nothing is known of the events of a category: a category that exists, with a name that is much alike
	Now     []string `json:"now,omitempty"`     // sentences: what would happen to an event of the category now
	Unknown []string `json:"unknown,omitempty"` // sentences: what could not be asked, and why
}

// Known tells whether anything is known of the events that were asked for.
func (a Answer) Known() bool { return len(a.Events) > 0 || len(a.Totals) > 0 }

// Final tells whether asking again in a second cannot tell more of one event. The journal hears of a step about a second later than the
// event takes it, so an event may be nowhere for that time.
func (a Answer) Final() bool {
	if !a.Asked.single() {
		return true
	}
	return a.Known() && !slices.ContainsFunc(a.Events, func(e Event) bool { return e.State == StateUnknown })
}

// Event is one event with all that is known of it.
type Event struct {
	ID        string          `json:"id"` // as workers show it
	Category  string          `json:"category"`
	Title     string          `json:"title,omitempty"`
	Sequence  uint64          `json:"sequence,omitempty"` // of the producer's message
	Stored    time.Time       `json:"stored,omitzero"`
	State     State           `json:"state"`
	Sentences []string        `json:"sentences"`         // what became of it, in order
	Reason    string          `json:"reason,omitempty"`  // the sentences without what is of this event alone, such as times
	Note      string          `json:"note,omitempty"`    // what Reason leaves out: until when the event waits, the number of its dead letter
	Entries   []journal.Entry `json:"entries,omitempty"` // of the journal

	pending *Pending
	letters []Letter
}

// State is where an event is: the name of its outcome, or one of those below.
type State string

// The states of an event without an outcome.
const (
	StateUndecided State = "undecided" // in the producers' stream
	StateWaiting   State = "waiting"   // in the room
	StateAdmitted  State = "admitted"  // it has its slots, and is being delivered
	StateSplit     State = "split"     // no event of its own: each of its parts is one
	StateUnknown   State = "unknown"   // it was there, and no source says where it is now
)

// Total counts events of one result, level and limit.
type Total struct {
	Result journal.Result `json:"result"`
	Level  string         `json:"level,omitempty"`
	Limit  string         `json:"limit,omitempty"` // such as 10/30m; empty if the level has none
	Count  int            `json:"count"`
}

// What says what became of the counted events, such as "dropped by category 10/30m".
func (t Total) What() string {
	by := strings.TrimSpace(t.Level + " " + t.Limit)
	what := string(t.Result)
	switch t.Result {
	case journal.Waiting:
		if what = "began to wait"; by != "" {
			return what + ", denied by " + by
		}
	case journal.Failed:
		what = "posts that failed, and were tried again"
	case journal.Split:
		what = "split into their alerts"
	case journal.Sent:
		if by != "" { // in shadow mode
			return what + ", though denied by " + by
		}
	case journal.Dropped, journal.Duplicate, journal.Dead, journal.Expired, journal.Told, journal.Lost:
	}
	if by != "" {
		what += " by " + by
	}
	return what
}

// Group is events of an answer that have the same reason.
type Group struct {
	Reason string
	Events []Event // the newest first
}

// Groups gathers the events of an answer by their reasons, the group with the newest event first.
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

// Pending is an event that has no outcome yet: in the producers' stream, or in the room.
type Pending struct {
	ID       string // as workers show it
	Identity string // see event.Event.Identity; "" if the message cannot be decoded
	Derived  bool   // the producer gave no ID
	Category string
	Title    string
	Key      string    // what a firing or resolved event is about; "" for any other
	Fires    bool      // it is firing
	Stream   string    // of the producer's message
	Sequence uint64    // of the producer's message
	Stored   time.Time // when the producer's message was
	Reason   string    // what it waits for in the room (room.Reason); Due: it is back from there; "": it is in the producers' stream
	Since    time.Time // when it came to where it is
	Due      time.Time // when it comes back; zero if that is not known
}

// Due is the reason of an event in the room that has waited long enough: the next worker takes it.
const Due = "due"

// Search says which of the events that have no outcome yet are looked for.
type Search struct {
	Sequence uint64        // of the one message of the producers' stream that may hold them; 0: any
	Take     func(Pending) // is given each event; called by one goroutine at a time
}

// Letter is a dead letter.
type Letter struct {
	Number   uint64 // in the dead-letter stream
	ID       string // as workers show it
	Category string
	Title    string
	Reason   string
	Error    string
	Sequence uint64    // of the producer's message; 0 if the letter does not say
	Stored   time.Time // when it became a dead letter
}
