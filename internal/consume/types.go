package consume

import (
	"context"

	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Sink delivers events: a [sink.Sink]. Its methods may be called concurrently.
type Sink interface {
	// Prepare does in advance what Send would do for an event, and returns the delivery for Send.
	Prepare(d sink.Delivery) sink.Delivery

	// Send tries once; a failure is a *sink.Error. The receipt identifies the message for the event that resolves this one.
	Send(ctx context.Context, d sink.Delivery) (receipt string, err error)
	Destination(d sink.Delivery) string

	// Updatable returns the receipts of the messages that d resolves and that can be updated. Update changes one of these messages to show that
	// d has resolved it. Update may be repeated; a failure is a *sink.Error, which is Rejected if the message can never be updated.
	Updatable(d sink.Delivery) []string
	Update(ctx context.Context, d sink.Delivery, receipt string) error

	// Destinations returns the destinations that the settings name.
	Destinations() []string
}

// Metrics count what a worker does. One value may have all these methods.
type Metrics struct {
	Events     EventMetrics
	Deliveries DeliveryMetrics
	Room       RoomMetrics
	Streams    StreamMetrics
	Letters    deadletters.Metrics
}

// levelOf returns the rule of a denial; "" if there is none.
func levelOf(denial *store.Denial) string {
	if denial == nil {
		return ""
	}
	return denial.Level
}
