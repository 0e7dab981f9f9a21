package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Outcome is how an event ended: each ends in exactly one.
type Outcome string

// The outcomes.
const (
	Sent      Outcome = "sent"
	Dropped   Outcome = "dropped"   // denied by a limit
	Duplicate Outcome = "duplicate" // another message with its ID was admitted
	Dead      Outcome = "dead"      // stored as a dead letter
	Expired   Outcome = "expired"   // stored too long ago
)

// Throttle decides which events are delivered: [throttle.Limiter]. Its methods may be called at once.
type Throttle interface {
	// Full returns the denial that events of a category are known to get now; nil: none is known.
	Full(category string) *throttle.Denial

	// Decide answers the requests, one decision for each. On an error nothing is known to be decided; Await then returns when
	// it is worth trying again.
	Decide(ctx context.Context, requests []throttle.Request) ([]throttle.Decision, error)
	Await(ctx context.Context) error

	// Records returns a function that tells which events the delivery record had at the time of this call; nil if that is not known.
	Records(ctx context.Context) throttle.Recorded

	// LearnUnpaired notes that a pair was not open when every event was decided that was stored up to a time, by the server's clock.
	// KnownUnpaired reports whether that was found a moment ago for a later time than the given one.
	KnownUnpaired(pair string, after time.Time) bool
	LearnUnpaired(pair string, decidedUpTo time.Time)

	// Delay plans when a denied event comes back.
	Delay(ctx context.Context, p throttle.Postponement) (throttle.DelayVerdict, time.Duration, error)

	// EnterRoom asks for each stay whether the event may wait in the room, where the number of each first-level category is bounded.
	// LeaveRoom ends stays. Both may be repeated.
	EnterRoom(ctx context.Context, stays []throttle.Stay) (mayStay []bool, err error)
	LeaveRoom(ctx context.Context, stays []throttle.Stay) error

	// Passed tells how many messages have vanished from the stream since any instance told the consumer's position last. The position
	// is the sequence of its latest message, and its number of deliveries. The name tells when the consumer was made.
	Passed(ctx context.Context, consumer string, sequence, deliveries uint64) (vanished int64, err error)
}

// Pacer decides when a destination takes a message: [pacing.Pacer]. Its methods may be called at once.
type Pacer interface {
	// Reserve reserves the next post to a destination, unless it lies further away than maxWait.
	Reserve(ctx context.Context, destination string, maxWait time.Duration) pacing.Reservation

	// Pause has a destination take nothing for d, on all instances. Paused is how much of that is left, as far as this instance knows.
	// CheckPause asks anew.
	Pause(ctx context.Context, destination string, d time.Duration)
	Paused(destination string) time.Duration
	CheckPause(ctx context.Context, destination string) time.Duration
}

// Sink delivers events: a [sink.Sink]. Its methods may be called at once.
type Sink interface {
	// Prepare does what Send of an event can do ahead, and returns what is to be sent then.
	Prepare(d sink.Delivery) sink.Delivery

	// Send tries once; a failure is a *sink.Error. The receipt tells whoever resolves the event where its message is.
	Send(ctx context.Context, d sink.Delivery) (receipt string, err error)
	Destination(d sink.Delivery) string

	// Updatable returns those of d.Others whose messages can be updated. Update has one of them show that d has resolved it. It may be
	// repeated; a failure is a *sink.Error.
	Updatable(d sink.Delivery) []string
	Update(ctx context.Context, d sink.Delivery, receipt string) error

	// Destinations lists those that the settings name.
	Destinations() []string
}

// Metrics is told what the worker does. Its methods may be called at once.
type Metrics interface {
	Event(category, outcome string, n int)
	Dropped(category, level string, n int, trace string) // the ID of a trace of one of them, "" for none
	DeadLetter(reason string)
	DeadLettersDiscarded(n int)             // that newer ones pushed out
	EventAge(d time.Duration, trace string) // of one that was sent; the ID of its trace, "" for none
	Redelivered(n int)
	InFlight(delta int)
	Held(delta int)                   // deliveries that wait for their destination in this worker
	Resolved(result string)           // "paired", "unpaired"
	Split()                           // a body that held several events
	Delayed()                         // an event that waits for a slot
	AckPending(n int)                 // messages that all workers together have not acknowledged
	RoomPending(reason string, n int) // events that wait in the room
	RoomRefused(reason string, n int) // events that would have, if fewer others did
	Vanished(n int)                   // messages that left the stream without the workers' doing
	Forged(place string, n int)       // messages that neither a worker nor an operator wrote, in a place of package trusted
}
