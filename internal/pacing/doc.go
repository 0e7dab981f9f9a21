// Package pacing decides when a channel takes its next message, and which event of a category may mention people.
//
// All instances of a deployment share one pace for each destination: one message each interval, and a burst after an idle time. A
// [Pacer] makes a [Reservation] for each message, in the order of its calls. A destination that asks for it is paused
// for a while, on all instances.
//
// While Redis is unavailable, an instance paces alone. It goes on behind the last reservation of Redis, and observes the pauses that it
// knows of. All instances together may then exceed the pace. In that case the destination pauses them. Likewise one event of a category
// mentions people for each instance.
//
// An instance learns of the pauses that others are told: with each decision of the limits ([Pacer.Learn]), with each reservation,
// and when it asks ([Pacer.CheckPause]).
//
// No call returns an error of Redis: what cannot be shared is decided here. A Pacer may be used by any number of goroutines at
// once.
package pacing
