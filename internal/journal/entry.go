package journal

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Result is what became of an event: its outcome, or a step on its way there.
type Result string

// The outcomes, named as the label of notifier_events_total. Every event ends in exactly one.
const (
	Sent      Result = "sent"
	Dropped   Result = "dropped"
	Duplicate Result = "duplicate"
	Dead      Result = "dead"
	Expired   Result = "expired"
)

// The steps. An event may take any number of them, and has an outcome later.
const (
	Waiting Result = "waiting" // it was moved to the room; Reason says what it waits for
	Failed  Result = "failed"  // a post failed, and is repeated later
	Split   Result = "split"   // a body that held several events, each of which has entries of its own
)

// Told is of no event: a digest was posted to Channel at Decided. Count is how many drops it told of, Stored and LastStored are when
// the first and the last of them were counted, Rounds are those of the workers that counted them.
const Told Result = "told"

// Lost is of no event: a worker could not write Count entries, and lost them. They were of results between Stored and LastStored.
const Lost Result = "lost"

// Ends tells whether the result is an outcome.
func (r Result) Ends() bool {
	switch r {
	case Sent, Dropped, Duplicate, Dead, Expired:
		return true
	case Waiting, Failed, Split, Told, Lost:
	}
	return false
}

// ofEvents tells whether entries of the result are of events.
func (r Result) ofEvents() bool { return r != Told && r != Lost }

// Entry tells what became of one event, or of Count events of which it names the first and the last.
type Entry struct {
	ID       string `json:"id,omitempty"`  // as people are shown it: event.Event.ShownID; empty if the body was not decoded
	Stream   string `json:"in,omitempty"`  // in which the producer's message was stored
	Sequence uint64 `json:"seq,omitempty"` // of that message
	Category string `json:"category,omitempty"`
	Title    string `json:"title,omitempty"` // as plain.Title returns it

	Result Result `json:"result"`
	Reason string `json:"reason,omitempty"` // Waiting: what for (room.Reason); Dead: why (event.Reason); Failed: class of the error

	Level string    `json:"level,omitempty"` // that denied the event; of a Sent one, that would have without shadow mode
	Path  string    `json:"path,omitempty"`  // of the full limit; empty for the global one
	Limit string    `json:"limit,omitempty"` // such as 10/30m
	Cost  int       `json:"cost,omitempty"`  // slots that the event asks for; 0 means 1
	Used  int64     `json:"used,omitempty"`  // slots taken then; 0 if that is not known
	Size  int64     `json:"size,omitempty"`  // slots of the limit
	Next  time.Time `json:"next,omitzero"`   // when the next slot opens, or when a waiting event comes back

	Revision string    `json:"revision,omitempty"` // of the limits in force: "<generation>:<revision>"
	Stored   time.Time `json:"stored,omitzero"`    // when JetStream stored the producer's message
	Decided  time.Time `json:"decided,omitzero"`   // when the worker came to the result, by the server's clock
	Channel  string    `json:"channel,omitempty"`  // where the event goes, or would be told of
	Round    int64     `json:"round,omitempty"`    // of a Dropped one: in which its worker counted it for a digest (summary.Counter)
	Rounds   Rounds    `json:"rounds,omitempty"`   // of a digest
	Receipt  string    `json:"receipt,omitempty"`  // Slack's channel and timestamp of a firing event that was sent
	Code     string    `json:"code,omitempty"`     // Slack's error code
	Trace    string    `json:"trace,omitempty"`    // trace ID

	Count        int       `json:"count,omitempty"` // above 0: the entry counts so many events, and what stands above is of the first
	LastID       string    `json:"last_id,omitempty"`
	LastSequence uint64    `json:"last_seq,omitempty"`
	LastStored   time.Time `json:"last_stored,omitzero"`
	LastRound    int64     `json:"last_round,omitempty"`
	Below        bool      `json:"below,omitempty"` // the counted events have categories at and below Category

	Instance string `json:"instance,omitempty"` // the worker; stands in the message's header
}

// Counts is how many events the entry tells of.
func (e Entry) Counts() int { return max(1, e.Count) }

// holds tells whether an event of a category may be among those that the entry tells of.
func (e Entry) holds(category string) bool {
	return e.Category == category || e.Below && isBelow(category, e.Category)
}

// isBelow tells whether a category is the given path or lies below it. Every category lies below the empty path.
func isBelow(category, path string) bool {
	return path == "" || category == path || strings.HasPrefix(category, path+".")
}

// Rounds are rounds of workers: the instance, the first and the last round of each, with blanks between.
type Rounds string

// With adds the rounds of an instance, whose name holds no white space.
func (r Rounds) With(instance string, first, last int64) Rounds {
	return Rounds(strings.TrimSpace(fmt.Sprintf("%s %s %d %d", r, instance, first, last)))
}

// Hold tells whether a round of an instance is among these.
func (r Rounds) Hold(instance string, round int64) bool {
	for words := range slices.Chunk(strings.Fields(string(r)), 3) {
		var first, last int64
		if _, err := fmt.Sscan(strings.Join(words[1:], " "), &first, &last); err == nil && words[0] == instance && first <= round && round <= last {
			return true
		}
	}
	return false
}
