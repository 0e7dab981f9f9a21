// Package received owns the messages that a worker has received: where a message is stored, how long it certainly belongs to the worker, what is
// known of its event, and how many bytes of all messages the worker has in hand.
//
// A message has one owner at a time, the stage that handles it. Only its lease and its place in the hand may be used concurrently. The package
// sends nothing to JetStream: package outcome settles messages.
package received
