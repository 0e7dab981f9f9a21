// Package consume takes events from JetStream and settles every one of them.
//
// Only this package and those below it acknowledge messages. For each stored message the worker asks a [Throttle], hands admitted events to a
// [Sink], and ends with one outcome. It makes no decisions about limits and does not depend on Slack: the interfaces declared here use the terms of
// packages throttle, sink, summary and journal.
//
// The file way.go has the way of an event, from top to bottom. docs/architecture.md has a drawing of it.
//
// # Trust
//
// A message in the producers' stream is trusted for its subject, its body and the producer's headers only. Only workers and operators may
// publish to the room (package room), so headers in the room are trusted for the event's identity, its origin, and since when it waits.
//
// # Leases
//
// A message belongs to this instance for the acknowledgement wait, counted from before the message was requested. Only the server's
// confirmation renews this lease. If the lease may have expired, the worker posts nothing and sends no nak or termination. It still sends a
// late acknowledgement, which does no harm.
//
// # The room
//
// Events that have to wait for longer than a few seconds wait in the room, where they do not delay other events. Every move has the same
// steps: ask the throttle whether one more event of the first-level category may stay, end the event's lease, store the event under the
// name of its message, acknowledge the message. A redelivery has the same name, so the event is stored once even if a step fails, and keeps
// its slots and its identity. An event that may not stay is dropped. Its slot is returned unless an attempt may have delivered it. While
// the room cannot be written, messages are returned to their stream.
//
// Events that wait for a slot, for the event that they resolve, or for Redis are message schedules. Heavy bodies that wait to be decoded
// are message schedules, too. Events that wait for a channel are in its queue in the order of their arrival. Each queue has its own
// consumer. A fresh event joins the end of the queue if this instance knows that the queue is not empty.
//
// # Outcomes
//
// Each event is counted once in the whole deployment: a sent event when its delivery is first recorded, any other event when the server has
// confirmed its settlement. A message has no outcome of its own if its event goes on in the room or was counted before. Events are counted
// again, unless they were sent, if a server forgets confirmed acknowledgements, or if a recreated consumer delivers to another worker what
// this worker is settling.
//
// # Owners
//
// Each step has an owner, which is complete when [New] returns. An owner calls the owners below it, and none above it. Those of this package:
//
//	puller     requests messages of the stream, the room and each channel's queue, and bounds the bytes in hand
//	intake     decodes, and ends messages that need no decision; bodies decodes heavy bodies, first levels in turn
//	decider    asks the throttle in batches; pairs knows which resolved events wait
//	deliverer  posts, retries and postpones; leaseRenewer keeps the leases
//
// The other owners are in the packages below, which import each other only downwards:
//
//	update     updates of posted messages, and the settlement of folded events
//	move       storing events in the room, plans of their return, channels' queues
//	outcome    settlements, outcomes, dead letters, what the journal and the log record
//	received   a message in hand: its lease, its event, its bytes
//	stage      contexts, bounds of concurrent work, queues, back-offs
//
// Packages stream, watch, settle, stay, lane, health and openers know nothing of these owners.
//
// # Running
//
// One [Worker] pulls from the stream, from the room, and from each channel's queue, in a goroutine each. One goroutine settles for each
// consumer. Further goroutines decide, decode heavy bodies, plan delays, move events, watch the consumers, and remove messages that
// reappear. The deciding goroutine waits for batches and never for a single event. The bytes of the messages in hand and of a request are
// bounded. Deliveries run concurrently: each channel has as many posts at once as configured. A paced channel has as many as its pace needs,
// in the order of their decisions.
//
// When its context ends, a worker requests no more messages, returns undecided and waiting messages to the stream, finishes the deliveries
// under way, and returns. The type life distinguishes what ends at once and what may finish. A worker waits out failures of NATS for as long as they
// last, and acknowledges no event before its outcome is durable.
package consume
