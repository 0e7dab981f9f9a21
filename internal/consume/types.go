package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Outcome is how an event ended. Each event has exactly one outcome.
type Outcome string

// The outcomes.
const (
	Sent      Outcome = "sent"
	Dropped   Outcome = "dropped"   // denied by a limit
	Duplicate Outcome = "duplicate" // another message with the same ID was admitted
	Dead      Outcome = "dead"      // stored as a dead letter
	Expired   Outcome = "expired"   // stored too long ago
)

// Throttle decides which events are delivered: [throttle.Limiter]. Its methods may be called concurrently.
type Throttle interface {
	// Full returns a cached denial for the events of a category; nil: none.
	Full(category string) *throttle.Denial

	// Decide answers the requests, one decision for each. After an error, nothing is known to be decided. Await returns when a retry is
	// worthwhile.
	Decide(ctx context.Context, requests []throttle.Request) ([]throttle.Decision, error)
	Await(ctx context.Context) error

	// Records returns a function that reports which events the delivery record had at the time of this call; nil if the record is not
	// known.
	Records(ctx context.Context) throttle.Recorded

	// LearnUnpaired records that a pair was not open when every event stored up to a time of the server's clock was decided. KnownUnpaired
	// reports whether LearnUnpaired recently recorded a later time than the given one.
	KnownUnpaired(pair string, after time.Time) bool
	LearnUnpaired(pair string, decidedUpTo time.Time)

	// Delay plans when a denied event returns.
	Delay(ctx context.Context, p throttle.Postponement) (throttle.DelayVerdict, time.Duration, error)

	// EnterRoom asks for each stay whether the event may wait in the room, where each first-level category has a bound. LeaveRoom ends
	// stays. Both calls may be repeated.
	EnterRoom(ctx context.Context, stays []throttle.Stay) (mayStay []bool, err error)
	LeaveRoom(ctx context.Context, stays []throttle.Stay) error

	// Passed reports the consumer's position: the sequence of its latest message and its number of deliveries. It returns how many messages
	// have vanished from the stream since any instance last reported the position. The name includes the consumer's creation time.
	Passed(ctx context.Context, consumer string, sequence, deliveries uint64) (vanished int64, err error)
}

// Pacer decides when a destination takes a message: [pacing.Pacer]. Its methods may be called concurrently.
type Pacer interface {
	// Reserve asks for the next post. If nothing is reserved, the caller asks again after the wait, or gives up if it expects to wait for
	// too long.
	Reserve(ctx context.Context, ask pacing.Ask) pacing.Reservation

	// Pause stops posts to a destination for d, on all instances. Paused returns the rest of a pause that this instance knows. CheckPause
	// looks it up again.
	Pause(ctx context.Context, destination string, d time.Duration)
	Paused(destination string) time.Duration
	CheckPause(ctx context.Context, destination string) time.Duration
}

// Sink delivers events: a [sink.Sink]. Its methods may be called concurrently.
type Sink interface {
	// Prepare does in advance what Send would do for an event, and returns the delivery for Send.
	Prepare(d sink.Delivery) sink.Delivery

	// Send tries once; a failure is a *sink.Error. The receipt identifies the message for the event that resolves this one.
	Send(ctx context.Context, d sink.Delivery) (receipt string, err error)
	Destination(d sink.Delivery) string

	// Updatable returns the receipts in d.Others whose messages can be updated. Update changes one of these messages to show that d has
	// resolved it. Update may be repeated; a failure is a *sink.Error.
	Updatable(d sink.Delivery) []string
	Update(ctx context.Context, d sink.Delivery, receipt string) error

	// Destinations returns the destinations that the settings name.
	Destinations() []string
}

// Metrics counts what the worker does. Its methods may be called concurrently.
type Metrics interface {
	Event(category, outcome string, n int)
	Dropped(category, level string, n int, trace string) // trace: the trace ID of one of the events, "" for none
	DeadLetter(reason string)
	DeadLettersDiscarded(n int)             // letters that newer letters pushed out
	EventAge(d time.Duration, trace string) // age of a sent event, and its trace ID, "" for none
	Redelivered(n int)
	InFlight(delta int)
	Held(delta int)                   // deliveries that wait for their destination in this worker
	Resolved(result string)           // "paired", "unpaired"
	Split()                           // a body that held several events
	Delayed()                         // an event that waits for a slot
	AckPending(n int)                 // messages that all workers together have not acknowledged
	RoomPending(reason string, n int) // events that wait in the room
	RoomRefused(reason string, n int) // events refused because the room was full for their category
	Vanished(n int)                   // messages that something other than a worker removed from the stream
	Forged(place string, n int)       // messages that neither a worker nor an operator wrote, in a place of package trusted
}
