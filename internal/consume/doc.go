// Package consume takes events from JetStream and settles every one of them.
//
// It owns the connection, the stream, the consumer and the dead letters, and it alone acknowledges. For each stored
// message it asks a [Throttle], hands admitted events to a [Sink], and ends with one [Outcome]. It decides nothing about
// limits and knows nothing about Slack: both are small interfaces, declared here.
//
//	pull ─► decode ─► decide ─► deliver ─► settle
//	          │          │         │
//	          ▼          ▼         ├─► back to JetStream with a delay, the slot kept
//	        dead       dropped     └─► dead letter, the slot returned
//
// A message is this instance's for as long as its lease: the acknowledgement wait, counted from before the message was
// asked for, and renewed only when the server confirms it. Nothing is posted, given back or terminated on a lease that
// may have run out; a late acknowledgement does no harm and is sent.
//
// One [Worker] runs one pull loop, one decision loop and as many deliveries at once as configured. When its context
// ends it stops asking for messages, gives back what is not decided, finishes what is admitted, and returns. Failures of
// NATS are waited out for ever; an event is never acknowledged before its outcome is safe.
package consume
