package sink

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Delivery is an event together with what its message tells beside it.
type Delivery struct {
	Event   event.Event
	Opened  string         // of a resolved event: the receipt of the message that it resolves; empty without one
	Others  []string       // likewise: receipts of further messages that Send leaves alone; see Sink.Update
	Usage   []limits.Usage // of the limits on the event's path, root first; may be empty
	Mention string         // stands at the top, in Slack's markup such as <!here>; empty for none

	prepared  *message // made by Slack.Prepare; nil otherwise
	annotated bool     // nobody has to be asked for what the message tells
}

// view is what a template renders.
type view struct {
	Delivery
	// Resolved is the receipt of the firing event that this one ends; nil for every other event.
	Resolved *receipt
	// Rewrite renders the message of Resolved again, now as resolved, instead of the event's own.
	Rewrite bool
	Ended   time.Time // of a resolved event: its time, else that of the delivery
}

// newView returns what is to be rendered of d, whose firing event may be known or not.
func newView(d Delivery, opened *receipt, now time.Time) view {
	v := view{Delivery: d}
	if d.Event.Status != event.StatusResolved {
		return v
	}
	v.Resolved, v.Ended = opened, d.Event.Time
	if v.Ended.IsZero() {
		v.Ended = now.UTC()
	}
	return v
}

// duration is the time between the firing event and this one; 0 if it is not known.
func (v view) duration() time.Duration {
	if v.Resolved == nil || v.Resolved.Time.IsZero() {
		return 0
	}
	return max(0, v.Ended.Sub(v.Resolved.Time))
}
