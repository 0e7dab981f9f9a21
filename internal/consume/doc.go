// Package consume takes events from JetStream and settles every one of them.
//
// It owns the connection, the streams and consumers, the room and the dead letters. It alone acknowledges, through package settle. For each stored message
// it asks a [Throttle], hands admitted events to a [Sink], and ends with one [Outcome]. It decides nothing about limits and knows
// nothing about Slack: the interfaces declared here use the words of packages throttle, sink and summary.
//
// The file way.go has the way of an event, from top to bottom:
//
//	stream ─┐
//	        ├ receive ─► decode ─► decide ─► its channel's turn ─► deliver ─► settle
//	room ───┘              │         │               │                │
//	 ▲                     │         │               │                │
//	 ├─ part ◄─────────────┤         │               │                │
//	 ├─ slot, pair, redis ◄──────────┤               │                │
//	 ├─ channel ◄──────────┼─────────┼───────────────┴────────────────┤  the slot kept
//	 │  dropped ◄──────────┼─────────┘                                │
//	 │  dead letter ◄──────┴──────────────────────────────────────────┘  the slot returned
//	 └── replay
//
// # Trust
//
// Of a message in the producers' stream the subject, the body and the producer's headers count, and nothing else. Only workers and
// operators may publish to the room (package room), so its headers say who an event is, where it comes from, and since when it waits.
// A stream in which publishers could command the server is [ErrUnfit], and so is a server that is too old.
//
// # Leases
//
// A message is this instance's for the acknowledgement wait, counted from before the message was asked for. Only the server's
// confirmation renews this lease. On a lease that may have run out nothing is posted, and no nak or termination is sent. A late
// acknowledgement does no harm and is sent.
//
// # The room
//
// Events that have to wait for longer than a few seconds wait in the room, where they hold up no other event. Every move has the same
// steps: ask the throttle whether one more event of the first-level category may stay, end the event's lease, store the event under
// the name of its message, acknowledge the message. A redelivery has the same name, so the event is stored once, whatever fails in
// between, and keeps its slots and its identity. An event that may not stay is dropped. Its slot is returned unless an attempt may
// have delivered it. While the room cannot be written, messages are returned to their stream.
//
// Events that wait for a slot, for the event that they resolve, or for Redis are message schedules, and so are heavy bodies that wait to be
// decoded. Events that wait for a channel
// stand in its queue in the order of their arrival. Each queue has a consumer of its own. A fresh event goes behind the queue, as
// far as this instance knows of it.
//
// # Outcomes
//
// Each event is counted once in the whole deployment: when the server has confirmed its settlement, or, if it is sent, when its
// delivery is recorded first. A message has no outcome of its own if its event goes on in the room or was counted before. If a server
// forgets confirmed acknowledgements, or a consumer is made anew and delivers to another worker what this worker is settling, those events are
// counted again, except for those that were sent.
//
// # Running
//
// One [Worker] pulls from the stream, from the room, and from each channel's queue, in a goroutine each. One goroutine settles for each
// consumer, one decides, one decodes heavy bodies in turns of their first levels, one moves, one watches the consumers, and one removes what
// reappears. The goroutine that decides waits for batches and never for a single event. The bytes of the messages in hand are bounded, and
// by an estimate the bytes that are asked for. Deliveries run beside them: to each channel as many posts at once as configured or, where
// channels are paced, as its pace asks for, in the order of their decisions.
//
// When its context ends, a worker asks for no more messages, returns what is not decided or waits to the stream, finishes the
// deliveries under way, and returns. It waits out failures of NATS without end, and acknowledges no event before its outcome is safe.
package consume
