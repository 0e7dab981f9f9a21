package algorithm

import "time"

// Tolerance is TOLERANCE of lib/prelude.lua: a time further ahead than this was written by a clock that was wrong, and is ignored.
const Tolerance = time.Minute

// State is the content of one bucket. The Lua file of its algorithm keeps an equal state in Redis. The limits passed to the methods are all
// limits of the bucket: several if the algorithm is PerNode, otherwise one.
type State interface {
	// Wait returns 0 if the event's cost fits now. Otherwise it returns the time until the cost fits and the index of the full limit.
	Wait(e Event, limits []Limit) (full int, wait int64)

	// Take takes the event's slots.
	Take(e Event, limits []Limit)

	// GiveBack returns the slots of an undelivered event that was admitted at a time. For a [Following] state, it ends the delivery.
	GiveBack(e Event, at int64, limits []Limit)

	// Used returns the number of slots in use, given the length of a lease.
	Used(now, lease int64, limit Limit) int64
}

// Following is a state that holds slots as long as deliveries last.
type Following interface {
	State

	// Holds reports whether a delivery under way still has its slots.
	Holds(e Event, limit Limit) bool

	// Extend keeps the slots of a delivery as long as its lease.
	Extend(e Event, limit Limit)
}

// Event holds what a bucket needs to know about an event.
type Event struct {
	Now        int64
	Lease      int64
	Message    string // unique for the stored message; "" if no bucket follows deliveries
	Cost       int64
	Guarantee  string      // path of the guarantee that it belongs to; "" for none
	Guarantees []Guarantee // all guarantees of the tree, for the global log
	InShares   bool        // limits and guarantees are one instance's shares
}

// isAheadOfTolerance reports whether a time was written by a clock that ran too far ahead.
func isAheadOfTolerance(at, now int64) bool { return at > now+Tolerance.Microseconds() }
