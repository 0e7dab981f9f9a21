// Package interleave visits every interleaving of the steps of a few workers, a few events and a few faults.
//
// Its tests describe the life of an event as a small explicit state machine: messages and their leases in JetStream, the record of an
// event in Redis with its lease and its doubt, slots, posts, look-ups, updates, the room, dead letters, the revision of the limits, an outage of
// Redis and a failover. A search visits the states breadth first and checks the promises of docs/delivery.md in each of them, so the trace
// to a broken promise has the fewest steps. Every moment at which a worker may be killed has the name of the code's failpoint.
//
// The machine has no clock. A lease may expire at any moment, with one exception: from the begin of a post to its record, its message does
// not go to another worker. The code renews the lease for the longest duration of both before it posts. So a process that is stopped
// between this check and its record, for longer than its lease, is outside of the machine.
package interleave
