package throttle

import "github.com/seed-4578ace9/notifier/internal/limits"

// algorithm is what the stores know of a [limits.Algorithm]. Its name in the grammar is also the name of its file in
// lua/algorithms, and a part of keys.
type algorithm struct {
	inMemory func() inMemory // makes an unused state
	// perNode: one bucket counts for all limits of a node.
	perNode bool
	// firm: the next slot never opens before the time that a denial tells, unless slots are returned.
	firm bool
	// timesAdmissions: a return of slots needs the time of admission.
	timesAdmissions bool
	// followsDelivery: the slots return when the delivery ends. The state is an inFlightBucket.
	followsDelivery bool
	// freed is how slots become free for events that wait behind each other.
	freed freeing
}

// freeing names how a limit frees slots. delay.lua plans by it when an event comes back behind those ahead of it, and refuses another name.
type freeing string

const (
	withTheWindow freeing = "window"   // each admission's slots, one window after it
	atBoundaries  freeing = "boundary" // all slots, where a window ends
	bySpacing     freeing = "spacing"  // at the count's rate, as many as the admission before took
	byRate        freeing = "rate"     // at the count's rate
	byEstimate    freeing = "estimate" // at about the count's rate: an event may come back too early, and then waits again
	onDelivery    freeing = "delivery" // when a delivery ends
)

// algorithms are indexed by [limits.Algorithm].
var algorithms = []algorithm{
	limits.SlidingLog:     {inMemory: func() inMemory { return &logBucket{} }, freed: withTheWindow, perNode: true, firm: true},
	limits.SlidingCounter: {inMemory: func() inMemory { return &counterBucket{} }, freed: byEstimate, firm: true, timesAdmissions: true},
	limits.FixedWindow:    {inMemory: func() inMemory { return &fixedBucket{} }, freed: atBoundaries, firm: true, timesAdmissions: true},
	limits.TokenBucket:    {inMemory: func() inMemory { return &tokenBucket{} }, freed: byRate, firm: true, timesAdmissions: true},
	limits.LeakyBucket:    {inMemory: func() inMemory { return &leakyBucket{} }, freed: bySpacing, firm: true, timesAdmissions: true},
	limits.InFlight:       {inMemory: func() inMemory { return &inFlightBucket{} }, freed: onDelivery, followsDelivery: true},
}

// inMemory is the state of one bucket in [Memory]. The Lua file of its algorithm keeps the same in Redis. Times are microseconds.
// It is not safe for concurrent use.
type inMemory interface {
	// wait is 0 if the event's cost fits. Else it is the time until the cost fits, and full is the index of the full limit.
	wait(e memoryEvent, limits []limits.Limit) (full int, wait int64)
	take(e memoryEvent, limits []limits.Limit)
	// giveBack returns the slots of an event that was admitted at a time and not delivered, or ends its delivery.
	giveBack(e memoryEvent, at int64, limits []limits.Limit)
	// used counts the slots that are taken, in a call of that time and lease.
	used(now, lease int64, limit limits.Limit) int64
}

// memoryEvent is an event in a call of [Memory].
type memoryEvent struct {
	now        int64
	lease      int64
	message    string // unique for the stored message
	cost       int64
	guarantee  string             // the path whose guarantee it belongs to, "" for none
	guarantees []limits.Guarantee // of the tree, for the global log
	inShares   bool               // limits and guarantees are those of one instance among several
}

// aheadOfTolerance tells whether a time comes from a clock that ran too far ahead. Such a time counts for nothing.
func aheadOfTolerance(at, now int64) bool { return at > now+tolerance.Microseconds() }
