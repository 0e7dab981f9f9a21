package journal

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Result is the outcome of an event, or a step towards it.
type Result string

// The outcomes, named like the label of notifier_events_total. Every event ends in exactly one outcome.
const (
	Sent      Result = "sent"
	Dropped   Result = "dropped"   // denied by a limit
	Duplicate Result = "duplicate" // another message with the same ID was admitted
	Dead      Result = "dead"      // stored as a dead letter
	Expired   Result = "expired"   // stored too long ago
	Folded    Result = "folded"    // counted in a message of its key
)

// The steps. An event may take any number of them, and has an outcome later.
const (
	Waiting Result = "waiting" // it was moved to the room; Reason says what it waits for
	Failed  Result = "failed"  // a post failed, and is repeated later
	Split   Result = "split"   // the body held several events; each event has its own entries
	Steady  Result = "steady"  // after an outcome: the key of the event flapped, and the report that it is steady was posted
)

// Digest is not about an event: a digest was posted to Channel at Decided. Count is the number of drops in the digest. Stored and LastStored
// are when workers counted the first and the last drop, and Rounds are the workers' rounds.
const Digest Result = "digest"

// Lost is not about an event: a worker lost Count entries that it could not write, with results between Stored and LastStored.
const Lost Result = "lost"

// Ends reports whether the result is an outcome.
func (r Result) Ends() bool {
	switch r {
	case Sent, Dropped, Duplicate, Dead, Expired, Folded:
		return true
	case Waiting, Failed, Split, Steady, Digest, Lost:
	}
	return false
}

func (r Result) ofEvents() bool { return r != Digest && r != Lost }

// Entry is the result of one event or, if Count is set, of Count events: LastID and its neighbours describe the last one, other fields the first.
type Entry struct {
	Result Result `json:"result"` // begins a stored line

	ID       string `json:"id,omitempty"`  // as people see it (event.Event.ShownID); empty if the body was not decoded
	Stream   string `json:"in,omitempty"`  // stream of the producer's message
	Sequence uint64 `json:"seq,omitempty"` // of the producer's message
	Category string `json:"category,omitempty"`
	Title    string `json:"title,omitempty"` // as plain.Title returns it

	Reason string `json:"reason,omitempty"` // Waiting: what for (room.Reason); Dead: why (event.Reason); Failed: class of the error; Dropped: see below

	Level string    `json:"level,omitempty"` // that denied the event; of a Sent event, the shadow limit that would have denied it
	Path  string    `json:"path,omitempty"`  // of the full limit, empty for the global one; of the mute
	Key   string    `json:"key,omitempty"`   // of the event, if the full limit is of each key
	Limit string    `json:"limit,omitempty"` // such as 10/30m
	Cost  int       `json:"cost,omitempty"`  // slots that the event asks for; 0 means 1
	Used  int64     `json:"used,omitempty"`  // slots taken at the decision; 0 if unknown
	Size  int64     `json:"size,omitempty"`  // slots of the limit
	Next  time.Time `json:"next,omitzero"`   // when the next slot opens; of a Waiting event, when it comes back; when the mute was to end

	Revision string    `json:"revision,omitempty"` // of the limits in force: "<generation>:<revision>"
	Stored   time.Time `json:"stored,omitzero"`    // when JetStream stored the producer's message
	Decided  time.Time `json:"decided,omitzero"`   // when the worker came to the result, by the server's clock
	Channel  string    `json:"channel,omitempty"`  // that gets the event or its digest
	Round    int64     `json:"round,omitempty"`    // of a Dropped event: the worker's round that counted it for a digest (summary.Counter)
	Rounds   Rounds    `json:"rounds,omitempty"`   // of a digest
	Mute     string    `json:"mute,omitempty"`     // ID of the mute that denied the event or that the digest reports (limits.Mute)
	Receipt  string    `json:"receipt,omitempty"`  // Slack's channel and timestamp of a firing event that was sent
	Error    string    `json:"error,omitempty"`    // of a failed or rejected post: at most 200 characters, without secrets
	Number   int64     `json:"number,omitempty"`   // of a Folded event in its message
	Message  time.Time `json:"message,omitzero"`   // of a Folded event: the minute in which its message was posted
	Flapping bool      `json:"flapping,omitempty"` // a Folded event is folded because its key is flapping
	Trace    string    `json:"trace,omitempty"`    // trace ID
	By       string    `json:"by,omitempty"`       // the operator who released or dropped the event while it waited

	Count        int       `json:"count,omitempty"` // number of aggregated events; 0: the entry is about one event
	LastID       string    `json:"last_id,omitempty"`
	LastSequence uint64    `json:"last_seq,omitempty"`
	LastStored   time.Time `json:"last_stored,omitzero"`
	LastRound    int64     `json:"last_round,omitempty"`
	Below        bool      `json:"below,omitempty"` // the counted events have categories at and below Category

	Instance string `json:"instance,omitempty"` // the worker; stored in the message's header
}

// Reasons of a Dropped event that could not wait for a slot of the limit that denied it. TooLarge is also the reason of an event of the level
// limits.LevelRoom; that of others of this level is empty. Of an event that a mute denied, Reason is the author and the reason of the mute. Of
// all other Dropped events it is empty.
const (
	TooMany  = "too many events waited already"
	TooLate  = "no slot opened for it within NOTIFIER_DELAY"
	TooLarge = "it is larger with its headers than the messages that the room accepts"
)

// Rounds are rounds of workers: the instance, the first and the last round of each, with blanks between.
type Rounds string

// With adds the rounds of an instance. The name of an instance has no white space.
func (r Rounds) With(instance string, first, last int64) Rounds {
	return Rounds(strings.TrimSpace(fmt.Sprintf("%s %s %d %d", r, instance, first, last)))
}

// Hold reports whether r includes a round of an instance.
func (r Rounds) Hold(instance string, round int64) bool {
	for words := range slices.Chunk(strings.Fields(string(r)), 3) {
		var first, last int64
		if _, err := fmt.Sscan(strings.Join(words[1:], " "), &first, &last); err == nil && words[0] == instance && first <= round && round <= last {
			return true
		}
	}
	return false
}
