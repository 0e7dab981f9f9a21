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

// Summary tells what was suppressed of one path since its last summary.
type Summary struct {
	Path        string
	Dropped     int64
	AtLeast     bool // some counts were lost, so Dropped may be too low
	First, Last time.Time
	Limits      []SuppressedBy // most first
	Titles      []TitleCount   // the most frequent ones, most first
	Opens       time.Time      // when the next slot opens; zero if it is open or not known
}

// SuppressedBy is how many events one limit suppressed.
type SuppressedBy struct {
	Level   string
	Limit   string // as configured, such as 10/30m
	Dropped int64
}

// TitleCount is how many suppressed events had one title.
type TitleCount struct {
	Title string
	Count int64
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
