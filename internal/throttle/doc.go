// Package throttle decides which events may be delivered.
//
// It owns the stores that count: [Redis], which all instances share, and [Memory], which is private to one. A worker asks through the
// [Limiter]: deny cache in front, Redis behind it, and the failure policy for the time that Redis is unavailable. Which limits there are is
// the matter of internal/limits. Here each tree gets its routes, which say what counts for a category.
//
// A sliding log admits an event of cost c at time t if the slots taken in (t − window, t] and c together do not exceed the limit's count.
// lua/algorithms says what the other algorithms promise. An event has to fit in every limit of every node on its path. It takes its slots
// in all of them or in none. Guarantees keep slots of the global logs for some paths. Shadow limits are evaluated in the same call, without
// any effect.
//
// [Limiter.Adopt] changes the limits while all this is used. Each call carries the position of its limits. Redis turns a call away
// ([script.ErrStale]) once it has had one with newer limits: no two instances decide by different limits.
//
// An admitted event gets a [Grant], a lease on its delivery. Whoever holds the grant delivers the event. Then the holder finishes it (done,
// for good), refunds it (the slots are free again, nothing was sent), or releases it (the slots stay taken, someone else may deliver). A
// grant that nobody renews lapses; the next delivery of the same stored message takes the lease over. docs/architecture.md has a picture.
//
// A firing event may open a pair, which a resolved event takes, outside the limits: such a [Request] says Resolves. The pair is announced
// before the firing event is delivered, so that the resolved event waits for the outcome. From the delivery on the pair is open, with the
// receipt of the message. Then it belongs to the resolved event until that is delivered. One script call finishes or restores a delivery
// and opens or ends its pair, so that no crash comes between the two.
//
// A decision brings the pauses of channels with it, which the Limiter hands on to internal/pacing. internal/script runs the scripts; its
// classes of errors are those of this package.
//
// Any number of goroutines may use everything here at once. After an error of a store nothing is known to be decided: the same call may
// be made again and never takes a second slot.
package throttle
