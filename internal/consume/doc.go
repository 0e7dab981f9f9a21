// Package consume takes events from JetStream and settles every one of them.
//
// It owns the connection, the stream, the consumer, the dead letters and the events that wait for a slot, and it alone
// acknowledges. For each stored message it asks a [Throttle], hands admitted events to a [Sink], and ends with one
// [Outcome]. It decides nothing about limits and knows nothing about Slack: both are small interfaces, declared here.
//
//	pull ─► decode ─► decide ─► wait for the channel ─► deliver ─► settle
//	         │  │      │  │               │                │
//	         │  ▼      │  ▼               ▼                ├─► back to JetStream with a delay, the slot kept
//	         │ dead    │ dropped         back to JetStream └─► dead letter, the slot returned
//	         ▼         ▼                 with a delay
//	       split    stored again for when a slot opens
//
// A message is this instance's for as long as its lease: the acknowledgement wait, counted from before the message was
// asked for, and renewed only when the server confirms it. Nothing is posted, given back or terminated on a lease that
// may have run out; a late acknowledgement does no harm and is sent.
//
// A message ends without an outcome where its event goes on in another one: a body that holds several events is split into
// one message for each, and a denied event that may wait is stored as a message schedule. What is stored has a name that
// does not change with a redelivery, so JetStream stores it once.
//
// One [Worker] runs one pull loop, one decision loop and as many deliveries at once as configured. Where destinations are
// paced, deliveries wait in a queue for each, bounded, and one is tried at a time. A few events that come by themselves are
// prepared for their delivery while they are decided about. When its context ends a worker stops asking for messages, gives
// back what is not decided or waits, finishes what is being delivered, and returns. Failures of NATS are waited out for ever;
// an event is never acknowledged before its outcome is safe.
package consume
