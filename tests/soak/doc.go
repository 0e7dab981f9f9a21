// Package soak runs a whole deployment under random faults for as long as one likes, and then checks every promise of the
// program from what others have noted: the ledger of the publisher, the posts that Slack took, what JetStream still holds,
// and the append-only file of Redis, in which every admission stands that Redis has kept.
//
// All the time a hostile producer, a NATS user who may publish below one subject, attacks the others with what package hostile
// has. When the faults have stopped, the way of one category's events from publish to post is measured twice with those attacks and
// twice without them.
//
// It is a test behind the build tag soak: `make soak`, `make soak DURATION=4h`, `make soak SEED=7`. A seed gives the same
// events and the same faults again, but not the same moments at which they meet.
package soak
