// Package store keeps what counts against the limits, and the record of deliveries.
//
// It owns every call to Redis about events: decisions and leases, pairs, queues of waiting events, the position of the limits in force, and
// readings. [Redis] is shared by all instances. [Memory] is private to one process and decides in the same way: while Redis is
// unavailable, in simulate, in fast tests, and as the model that the scripts are compared with. One conformance suite runs over both.
// Each tree of limits gets [Routes] here, which list what counts for a category.
//
// A sliding log admits an event of cost c at time t if the slots taken in (t − window, t] and c together do not exceed the limit's count.
// internal/algorithm describes the other algorithms. An event has to fit in every limit of every node on its path. It takes its slots in
// all of them or in none. Guarantees keep slots of the global logs for some paths. Shadow limits are evaluated in the same call, without
// any effect.
//
// Each call carries the position of its limits. Redis rejects a call ([script.ErrStale]) once it has seen one with newer limits, so no two
// instances decide by different limits.
//
// The package is safe for concurrent use. After an error, the caller must treat nothing as decided. It may repeat the call, which never
// takes a second slot. internal/script runs the scripts and defines the error classes.
package store
