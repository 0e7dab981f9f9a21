// Package throttle decides which events may be delivered.
//
// It owns the stores that count ([Redis], shared by all instances, and [Memory], private to one), and the [Limiter] through which
// a worker asks: deny cache in front, Redis behind it, and the failure policy for the time that Redis is unavailable. Which
// limits there are is the matter of internal/limits; here each tree gets its routes, which say what counts for a category.
//
// A sliding log admits an event of cost c at time t if the slots taken in (t − window, t] and c together do not
// exceed the limit's count; other algorithms say in lua/algorithms what they promise. An event has to fit in every limit
// of every node on its path. It takes its slots in all of them or in none. Guarantees keep slots of the global logs for
// some paths. Shadow limits are evaluated beside, in the same call, without any effect.
//
// Limits may change while all this is used: [Limiter.Adopt]. Each call carries the revision of its limits, and Redis turns
// it away ([script.ErrStale]) once one with a newer revision has been made: no two instances decide by different limits.
//
// An admitted event gets a [Grant], a lease on its delivery. Whoever holds the grant delivers the event and then
// finishes it (done, for good), refunds it (the slots are free again, nothing was sent), or releases it (the slots
// stay taken, someone else may deliver). A grant that nobody renews lapses; the next delivery of the same stored
// message takes it over.
//
//	         Decide                    Finish
//	(none) ─────────► leased ──────────────────► done
//	   ▲                │  ▲                       │
//	   └── Refund ──────┘  └─ lapse, Release,      └─ forgotten after Retention
//	                          then Decide again
//
// A firing event may open a pair, which a resolved one takes, outside the limits: such a [Request] says Resolves. The pair is
// announced before the firing event is delivered, so that what resolves it waits for the outcome; open from its delivery on,
// with the receipt of the message; and the resolved event's own until that is delivered. Pairing has no package of its own: one
// script call finishes or restores a delivery and opens or ends its pair, so that no crash comes between the two.
//
// How fast a channel takes messages is the matter of internal/pacing. A decision brings the pauses of channels with it, which the
// Limiter hands on. The scripts are run by internal/script, whose classes of errors are those of this package.
//
// Everything here may be used by any number of goroutines at once. On an error from a store nothing is known to be
// decided: the same call may be made again and never takes a second slot.
package throttle
