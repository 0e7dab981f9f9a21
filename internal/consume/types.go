package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
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

// Throttle decides which events are delivered. Its methods may be called at once.
type Throttle interface {
	// Full tells whether events of a category are known to be denied now, and by which rule.
	Full(category string) (level string, full bool)

	// Decide judges the candidates and gives one decision for each. On an error nothing is known to be decided; Await
	// then returns when it is worth trying again.
	Decide(ctx context.Context, candidates []Candidate) ([]Decision, error)
	Await(ctx context.Context) error

	// Pause lets a destination rest, on all instances; Paused is how long it still does.
	Pause(ctx context.Context, destination string, d time.Duration)
	Paused(destination string) time.Duration
}

// MaxBatch is the most candidates of one call of Decide.
const MaxBatch = 256

// Candidate is an event that asks to be delivered.
type Candidate struct {
	Event    event.Event
	Stream   string
	Sequence uint64
	Stored   time.Time
	LookUp   bool // only asks what is known of the event: it is too old to be delivered
}

// Verdict is what a Throttle decided.
type Verdict int

// The verdicts.
const (
	Undecidable Verdict = iota // this event cannot be judged now
	Admit                      // deliver it, and end its grant
	Deny                       // a limit is full; with a grant: deliver it all the same
	Wait                       // someone else is delivering it
	Done                       // this very message was delivered
	Repeat                     // another message with its ID was admitted
	Unknown                    // nothing is known of it (LookUp)
)

// Decision answers a Candidate.
type Decision struct {
	Verdict Verdict
	Level   string        // Deny: the rule
	Wait    time.Duration // Wait: how long the other one's lease lasts
	Grant   Grant         // of an event to deliver, else nil
}

// Grant is the right to deliver an event. It is ended once, by Finish, Refund or Release.
type Grant interface {
	Finish(ctx context.Context)      // the event was delivered
	Refund(ctx context.Context)      // it definitely was not and will not be: its slots are free again
	Release(ctx context.Context)     // it was not, but whoever gets the message next may do it
	Extend(ctx context.Context) bool // false: someone else may be delivering it by now
}

// Sink delivers events. Its methods may be called at once.
type Sink interface {
	// Send tries once. nil means that the message is out.
	Send(ctx context.Context, e event.Event) *Failure
	Destination(e event.Event) string
}

// FailureClass tells what to do about a delivery that did not succeed.
type FailureClass int

// The classes of failures.
const (
	Transient     FailureClass = iota // certainly not delivered; try again
	Uncertain                         // perhaps delivered; try again
	RateLimited                       // certainly not delivered; the destination wants rest
	Rejected                          // the message's fault; it never will be delivered
	Misconfigured                     // the setup's fault; nothing will be delivered until someone mends it
)

// Failure is a delivery that did not succeed. Its texts hold no secrets.
type Failure struct {
	Class      FailureClass
	Code       string        // in the destination's words, "" if it had none
	RetryAfter time.Duration // RateLimited
	Err        error
}

// Metrics is told what the worker does. Its methods may be called at once.
type Metrics interface {
	Event(category, outcome string, n int)
	Dropped(category, level string, n int)
	DeadLetter(reason string)
	EventAge(d time.Duration) // of one that was sent
	Redelivered(n int)
	InFlight(delta int)
}
