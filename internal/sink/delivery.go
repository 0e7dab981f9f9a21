package sink

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Delivery is an event together with what its message tells beside it.
type Delivery struct {
	Event event.Event
	// Opened is, for a resolved event, the receipt of the message that it resolves; empty when it
	// is a message of its own.
	Opened  string
	Usage   []Usage // of the limits on the event's path, root first; may be empty
	Mention string  // stands at the top, in Slack's markup such as <!here>; empty for none

	prepared *message // made by Slack.Prepare; nil otherwise
}

// Usage is how full one limit is, the event counted.
type Usage struct {
	Level string // the node of the limit: "global" or a category
	Limit string // as configured, such as 10/30m
	Used  int64
	Size  int64
}

// Summary tells a channel what was suppressed since its last summary.
type Summary struct {
	Channel     string // as Sink.SummaryDestination names it
	Dropped     int64
	AtLeast     bool  // some counts were lost, so Dropped may be too low
	Doubtful    int64 // of Dropped: may have been told before
	Unpaired    int64 // of Dropped: resolved events whose firing one was not posted
	First, Last time.Time
	Paths       []SuppressedPath // the largest, those first

	MorePaths   int // that are not among Paths
	MoreAtLeast bool
	MoreDropped int64

	Changes []LimitChange // since the last summary, the oldest first
}

// SuppressedPath is what was suppressed of one path.
type SuppressedPath struct {
	Path    string
	Rest    bool // of all other paths below this one
	Dropped int64
	Reasons []SuppressedBy // most first
	Title   string         // of one of the events; may be empty
	Opens   time.Time      // when the next slot opens; zero if it is open or not known
}

// SuppressedBy is how many events were suppressed for one reason.
type SuppressedBy struct {
	Text    string // such as category 10/30m
	Dropped int64
}

// LimitChange is a change of a limit while workers ran.
type LimitChange struct {
	At    time.Time
	Limit string // its path, global or category
	Value string // such as 10/30m; empty if it was unset
	By    string // empty if that is not known
}

// firing is what a receipt tells of the message of a firing event: where it is, and enough of the
// event to render it again. Texts may be cut.
type firing struct {
	Version   int            `json:"v"`
	Channel   string         `json:"channel,omitempty"` // as Slack's answer names it
	Timestamp string         `json:"ts,omitempty"`      // of the message; empty where none can be updated
	ID        string         `json:"id,omitempty"`
	Category  string         `json:"category,omitempty"`
	Title     string         `json:"title,omitempty"`
	Text      string         `json:"text,omitempty"`
	Severity  event.Severity `json:"severity,omitempty"`
	Source    string         `json:"source,omitempty"`
	Link      string         `json:"link,omitempty"`
	Fields    []event.Field  `json:"fields,omitempty"`
	Time      time.Time      `json:"time,omitzero"` // of the event, else of the post
}

// view is what a template renders.
type view struct {
	Delivery
	// Resolved is the firing that the event ends; nil for every other event. Its time gives the
	// duration.
	Resolved *firing
	// Rewrite renders the message of Resolved again, now as resolved, instead of the event's own.
	Rewrite bool
	Ended   time.Time // of a resolved event: its time, else that of the delivery
}
