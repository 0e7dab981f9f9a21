package throttle

import "github.com/seed-4578ace9/notifier/internal/limits"

// algorithm is what the stores know of a [limits.Algorithm]. Its name in the grammar is also that of its file in
// lua/algorithms, and part of keys. Adding one takes a name in the grammar, a file in lua/algorithms, a file here with its
// inMemory, a line in this table, and a case of the conformance suite.
type algorithm struct {
	inMemory func() inMemory // an unused state
	// perNode: one bucket counts for all limits of a node.
	perNode bool
	// firm: the time of the next slot never turns out to be later than necessary, unless slots are returned.
	firm bool
	// timesAdmissions: slots are returned only of events whose time of admission is known.
	timesAdmissions bool
	// followsDelivery: the slots come back when the delivery ends.
	followsDelivery bool
}

// algorithms are indexed by [limits.Algorithm].
var algorithms = []algorithm{
	limits.SlidingLog:     {inMemory: func() inMemory { return &logBucket{} }, perNode: true, firm: true},
	limits.SlidingCounter: {inMemory: func() inMemory { return &counterBucket{} }, firm: true, timesAdmissions: true},
	limits.FixedWindow:    {inMemory: func() inMemory { return &fixedBucket{} }, firm: true, timesAdmissions: true},
	limits.TokenBucket:    {inMemory: func() inMemory { return &tokenBucket{} }, firm: true, timesAdmissions: true},
	limits.LeakyBucket:    {inMemory: func() inMemory { return &leakyBucket{} }, firm: true, timesAdmissions: true},
	limits.InFlight:       {inMemory: func() inMemory { return &inFlightBucket{} }, followsDelivery: true},
}

// inMemory is one bucket's state in the in-memory store, as the Lua file of its algorithm keeps it in Redis. Times are
// microseconds. It is not safe for concurrent use.
type inMemory interface {
	// wait is 0 if the event's cost fits, else the time until it does, and the limit that is full.
	wait(e memoryEvent, limits []limits.Limit) (full int, wait int64)
	take(e memoryEvent, limits []limits.Limit)
	// giveBack returns the slots of an event that was admitted at a time and not delivered, or ends its delivery.
	giveBack(e memoryEvent, at int64, limits []limits.Limit)
	// used is how many slots are taken, in a call of that time and lease.
	used(now, lease int64, limit limits.Limit) int64
	// idle tells that the state is that of an unused bucket.
	idle(now int64, limits []limits.Limit) bool
}

// follower is an inMemory whose slots follow deliveries.
type follower interface {
	// holds tells whether a delivery that is taken over still has its slots.
	holds(e memoryEvent, limits []limits.Limit) bool
	// extend keeps the slots as long as the event's lease.
	extend(e memoryEvent, limits []limits.Limit)
}

// memoryEvent is an event in a call of the in-memory store.
type memoryEvent struct {
	now        int64
	lease      int64
	message    string // unique for the stored message
	cost       int64
	guarantee  string             // the path whose guarantee it belongs to, "" for none
	guarantees []limits.Guarantee // of the tree, for the global log
	inShares   bool               // limits and guarantees are those of one instance among several
}

// aheadOfTolerance tells that a time comes from a clock that had run too far ahead, and counts for nothing.
func aheadOfTolerance(at, now int64) bool { return at > now+tolerance.Microseconds() }
