// Package pacing decides when a channel takes its next message, and which event of a category may mention people.
//
// All instances of a deployment share one pace for each destination: one message each interval, and a burst after an idle time. A [Pacer]
// makes a [Reservation] for each message, in the order of its calls. A destination can ask for a pause; then all instances stop sending to
// it for a while.
//
// While Redis is unavailable, an instance paces alone. It continues after the last reservation of Redis, and observes the pauses that it
// knows of. All instances together may then exceed the pace. In that case the destination pauses them. During the outage, one event of a
// category may mention people on each instance.
//
// An instance learns of other instances' pauses with each decision of the limits ([Pacer.Learn]), with each reservation, and from
// [Pacer.CheckPause].
//
// No call returns an error of Redis: without Redis the Pacer decides locally. Any number of goroutines may use a Pacer at once.
package pacing
