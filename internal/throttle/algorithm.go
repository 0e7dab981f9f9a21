package throttle

// algorithm is what the limiters know of an Algorithm. Adding one is a file in lua/algorithms, a file here with its
// inMemory, a line in this table, and a case of the conformance suite.
type algorithm struct {
	name     string          // in the grammar, of the file in lua/algorithms, and in keys
	inMemory func() inMemory // an unused state
	// perNode: one meter counts for all limits of a node.
	perNode bool
	// firm: the time of the next slot never turns out to be later than necessary, unless slots are returned.
	firm bool
	// timesAdmissions: slots are returned only of events whose time of admission is known.
	timesAdmissions bool
	// followsDelivery: the slots come back when the delivery ends.
	followsDelivery bool
}

// algorithms are indexed by Algorithm.
var algorithms = []algorithm{
	SlidingLog:     {name: "log", inMemory: func() inMemory { return &logMeter{} }, perNode: true, firm: true},
	SlidingCounter: {name: "counter", inMemory: func() inMemory { return &counterMeter{} }, firm: true, timesAdmissions: true},
	FixedWindow:    {name: "fixed", inMemory: func() inMemory { return &fixedMeter{} }, firm: true, timesAdmissions: true},
	TokenBucket:    {name: "token", inMemory: func() inMemory { return &tokenMeter{} }, firm: true, timesAdmissions: true},
	LeakyBucket:    {name: "leaky", inMemory: func() inMemory { return &leakyMeter{} }, firm: true, timesAdmissions: true},
	InFlight:       {name: "inflight", inMemory: func() inMemory { return &inFlightMeter{} }, followsDelivery: true},
}

// inMemory is one meter's state in the in-memory limiter, as the Lua file of its algorithm keeps it in Redis. Times are
// microseconds. It is not safe for concurrent use.
type inMemory interface {
	// wait is 0 if the event's cost fits, else the time until it does, and the limit that is full.
	wait(e memoryEvent, limits []Limit) (full int, wait int64)
	take(e memoryEvent, limits []Limit)
	// giveBack returns the slots of an event that was admitted at a time and not delivered, or ends its delivery.
	giveBack(e memoryEvent, at int64, limits []Limit)
	// used is how many slots are taken, in a call of that time and lease.
	used(now, lease int64, limit Limit) int64
	// idle tells that the state is that of an unused meter.
	idle(now int64, limits []Limit) bool
}

// follower is an inMemory whose slots follow deliveries.
type follower interface {
	// holds tells whether a delivery that is taken over still has its slots.
	holds(e memoryEvent, limits []Limit) bool
	// extend keeps the slots as long as the event's lease.
	extend(e memoryEvent, limits []Limit)
}

// memoryEvent is an event in a call of the in-memory limiter.
type memoryEvent struct {
	now        int64
	lease      int64
	message    string // unique for the stored message
	cost       int64
	guarantee  string      // the path whose guarantee it belongs to, "" for none
	guarantees []Guarantee // of the tree, for the global log
	inShares   bool        // limits and guarantees are those of one instance among several
}

// aheadOfTolerance tells that a time comes from a clock that had run too far ahead, and counts for nothing.
func aheadOfTolerance(at, now int64) bool { return at > now+tolerance.Microseconds() }
