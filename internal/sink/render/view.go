package render

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// View is what a template renders.
type View struct {
	sink.Delivery
	// Resolved is the receipt of the firing event that this event resolves, or into which it is folded; nil for any other event.
	Resolved *sink.Receipt
	// Rewrite renders the message of Resolved again, instead of the event's own message.
	Rewrite bool
	Ended   time.Time // time of a resolved event; the time of the delivery if the event has none
}

// NewView returns the view of d. opened is nil if the firing event is unknown.
func NewView(d sink.Delivery, opened *sink.Receipt, now time.Time) View {
	v := View{Delivery: d}
	if d.Event.Status != event.StatusResolved {
		v.Resolved = opened
		return v
	}
	v.Resolved, v.Ended = opened, d.Event.Time
	if v.Ended.IsZero() {
		v.Ended = now.UTC()
	}
	return v
}

// Duration returns the time between the firing event and this event; 0 if it is unknown.
func (v View) Duration() time.Duration {
	if v.Resolved == nil || v.Ended.IsZero() || v.Resolved.Time.IsZero() {
		return 0
	}
	return max(0, v.Ended.Sub(v.Resolved.Time))
}
