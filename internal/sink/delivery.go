package sink

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Delivery is an event together with what its message tells beside it.
type Delivery struct {
	Event event.Event
	// Opened is, for a resolved event, the receipt of the message that it resolves; empty when it
	// is a message of its own.
	Opened  string
	Usage   []limits.Usage // of the limits on the event's path, root first; may be empty
	Mention string         // stands at the top, in Slack's markup such as <!here>; empty for none

	prepared  *message // made by Slack.Prepare; nil otherwise
	annotated bool     // nobody has to be asked for what the message tells
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
