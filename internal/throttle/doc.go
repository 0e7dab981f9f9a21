// Package throttle decides which events may be delivered.
//
// A worker asks the [Limiter]. The Limiter looks in the deny cache, then calls Redis, and applies the failure policy while Redis is
// unavailable. internal/throttle/store owns the calls to Redis, and an in-memory store that decides alike. internal/limits defines the
// limits.
//
// [Limiter.Adopt] changes the limits at run time. If Redis rejects a call because newer limits are in force, the Limiter fetches these
// limits. It decides nothing until it has them.
//
// An admitted event gets a [Grant], a lease on its delivery. The holder of the grant delivers the event. After the delivery it finishes the
// grant, for good. If nothing was sent, it refunds the slots. Otherwise it releases the grant: the slots stay taken, and another worker may
// deliver the event. A grant that is not renewed lapses; the next delivery of the stored message takes the lease over. docs/architecture.md
// has a picture.
//
// A firing event may open a pair. A resolved event takes the pair outside the limits; its [Request] has Resolves set. The Limiter announces
// the pair before the firing event is delivered, so that the resolved event waits for the outcome. After the delivery the pair is open, and
// holds the receipt of the message. Once a resolved event has taken the pair, the pair belongs to that event until the event is delivered.
// One script call finishes or restores a delivery and opens or ends its pair, so that no crash separates the two.
//
// A decision also carries the pauses of channels. The Limiter passes them to internal/pacing.
//
// The package is safe for concurrent use. After an error, the caller must treat nothing as decided. It may repeat the call, which never
// takes a second slot. internal/script defines the error classes.
package throttle
