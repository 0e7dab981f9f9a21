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

// Levels of drops that no limit of the settings makes.
const (
	LevelUnpaired = "unpaired" // a resolved event: nobody was told of what it resolves
	LevelRoom     = "room"     // the event would have to wait, and too many of its first-level category wait already
)

// Throttle decides which events are delivered. Its methods may be called at once.
type Throttle interface {
	// Full tells whether events of a category are known to be denied now, and by which rule.
	Full(category string) (level string, full bool)

	// Decide judges the candidates and gives one decision for each. On an error nothing is known to be decided; Await
	// then returns when it is worth trying again.
	Decide(ctx context.Context, candidates []Candidate) ([]Decision, error)
	Await(ctx context.Context) error

	// Recorded returns a function that tells which events the delivery record has, as it was at the time of this call; nil if that is
	// not known.
	Recorded(ctx context.Context) func(Candidate) bool

	// KnownUnpaired tells of a resolved event, stored at a time, whether its pair was found not to be open a moment ago. LearnUnpaired
	// notes that, and when it was asked. The times are by the server's clock: what was stored later is not known.
	KnownUnpaired(pair string, stored time.Time) bool
	LearnUnpaired(pair string, asked time.Time)

	// Delay plans when a denied event comes back, instead of being dropped; it may wait that much longer. Planned tells
	// whether that was planned for a message before, and in what time it comes back (0: it has).
	Delay(ctx context.Context, c Candidate, d Decision, longest time.Duration) (DelayVerdict, time.Duration, error)
	Planned(ctx context.Context, c Candidate) (in time.Duration, planned bool, err error)

	// EnterRoom asks for each stay whether the event may wait in the room: so many of a first-level category may at once.
	// LeaveRoom ends stays. Both may be repeated.
	EnterRoom(ctx context.Context, stays []Stay) (mayStay []bool, err error)
	LeaveRoom(ctx context.Context, stays []Stay) error

	// Pause lets a destination rest, on all instances. Resting is how long one still rests, as far as this instance knows;
	// Rest asks for it anew.
	Pause(ctx context.Context, destination string, d time.Duration)
	Resting(destination string) time.Duration
	Rest(ctx context.Context, destination string) time.Duration

	// Reserve reserves the next post to a destination: it may go out after wait. One that lies beyond the horizon is not reserved:
	// then ok is false.
	Reserve(ctx context.Context, destination string, horizon time.Duration) (wait time.Duration, ok bool)

	// Passed tells how many messages have vanished from the stream between the last position of the consumer that any
	// instance told and this one.
	Passed(ctx context.Context, at Position) (vanished int64, err error)
}

// Stay is an event that waits in the room.
type Stay struct {
	First  string // the first level of its category
	Member string // names the event
	Weight int    // how much room it takes
	For    time.Duration
}

// Position is how far a consumer has come: the stream's sequence of the latest message that it delivered, and how many
// deliveries it has made, first and later ones.
type Position struct {
	Consumer   string // its name, and when it was made
	Stream     uint64
	Deliveries uint64
}

// DelayVerdict is what becomes of a denied event that may wait for a slot.
type DelayVerdict int

// The verdicts about delays.
const (
	DropIt   DelayVerdict = iota // no slot opens in time
	Refuse                       // too many others wait: drop it
	ComeBack                     // it comes back after a time
	Waiting                      // another message with its ID waits
)

// MaxBatch is the most candidates of one call of Decide.
const MaxBatch = 256

// Candidate is an event that asks to be delivered.
type Candidate struct {
	Event    event.Event
	Stream   string // of the message in which a producer published it, as are sequence and time
	Sequence uint64
	Stored   time.Time
	LookUp   bool // only asks what is known of the event: it is too old to be delivered
	Waited   bool // it waited for a slot, and has come back
}

// Verdict is what a Throttle decided.
type Verdict int

// The verdicts.
const (
	Undecidable Verdict = iota // this event cannot be judged now
	Admit                      // deliver it, and end its grant
	Deny                       // a limit is full; with a grant: deliver it all the same
	Wait                       // someone else is delivering it
	Done                       // this very event was delivered
	Repeat                     // another message with its ID was admitted
	Unknown                    // nothing is known of it (LookUp)
	Unpaired                   // it resolves what nobody was told of
)

// Decision answers a Candidate.
type Decision struct {
	Verdict Verdict
	Level   string        // Deny: the rule
	Wait    time.Duration // Deny: until its next slot opens; Wait: until it is worth asking again
	Denial  any           // Deny: what Throttle.Delay has to know of it
	Opened  string        // of an event that resolves another one: the receipt of that
	InDoubt bool          // Admit: whoever had the event before may have delivered it
	Grant   Grant         // of an event to deliver, else nil
}

// Grant is the right to deliver an event. It is ended once, by Finish, Refund or Release.
type Grant interface {
	// Finish says that the event was delivered; receipt tells where, "" if nothing does. It tells whether that was not
	// known before.
	Finish(ctx context.Context, receipt string) (newly bool)
	Refund(ctx context.Context)                // it definitely was not and will not be: its slots are free again
	Release(ctx context.Context, inDoubt bool) // whoever gets the event next may deliver it; in doubt, it may have been
	Extend(ctx context.Context) bool           // false: someone else may be delivering it by now
}

// Sink delivers events. Its methods may be called at once.
type Sink interface {
	// Send tries once. A nil failure means that the message is out; its receipt tells whoever resolves the event where.
	Send(ctx context.Context, n Notification) (receipt string, failure *Failure)
	Destination(n Notification) string

	// Destinations lists those that the settings name.
	Destinations() []string

	// Prepare does what Send of an event can do ahead without asking anybody, and returns what came of it; nil: nothing.
	Prepare(e event.Event) any
}

// Notification is an event to deliver.
type Notification struct {
	Event  event.Event
	Opened string // of an event that resolves another one: the receipt of that, "" if there is none

	Prepared any // by Sink.Prepare of the event; nil: nothing
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
	DeadLettersDiscarded(n int) // that newer ones pushed out
	EventAge(d time.Duration)   // of one that was sent
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
}

// Drop is a number of events that were dropped, and settled.
type Drop struct {
	Category string
	Level    string // the rule that denied them
	Title    string // of each of them
	Count    int
}
