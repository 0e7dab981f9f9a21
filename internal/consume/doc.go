// Package consume takes events from JetStream and settles every one of them.
//
// It owns the connection, the streams and consumers, the room and the dead letters, and it alone acknowledges. For each stored
// message it asks a [Throttle], hands admitted events to a [Sink], and ends with one [Outcome]. It decides nothing about limits
// and knows nothing about Slack: both are small interfaces, declared here, in the words of packages throttle (Request, Decision,
// Verdict) and sink (Delivery, Error). What it dropped it tells in those of package summary.
//
// The way of an event is in the file way.go, from top to bottom:
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
// Producers may publish to the stream, so nothing there is believed but the subject, the body, and the headers that producers
// have. Only workers and operators may publish to the room (package room), so its headers are believed: who an event is, where
// it comes from, and since when it waits. A stream in which publishers could command the server is [ErrUnfit].
//
// # Leases
//
// A message is this instance's for as long as its lease: the acknowledgement wait, counted from before the message was
// asked for, and renewed only when the server confirms it. Nothing is posted, given back or terminated on a lease that
// may have run out; a late acknowledgement does no harm and is sent.
//
// # The room
//
// What has to wait for longer than a moment waits in the room, and not among the acknowledgements that all events share. Each move
// has the same steps: ask the throttle whether one more of the first-level category may wait, end the event's lease there, store
// the event under a name that a redelivery of its message repeats, acknowledge the message. So it is stored once, whatever fails in
// between, and keeps its slots and its identity. An event that may not wait is dropped, and its slot returned unless an attempt
// may have delivered it. While the room cannot be written, messages are given back.
//
// Events that wait for a slot, for the event that they resolve, or for Redis are message schedules. Those that wait for a channel
// stand in its queue, which has a consumer of its own, in the order in which they were stored. A fresh event goes behind what
// waits there, as far as this instance knows of it.
//
// # Outcomes
//
// Each event is counted once in the whole deployment, by whoever settles it when the server has confirmed that; one that is sent,
// by whoever records its delivery first. A message ends without an outcome where its event goes on in the room, or was counted
// before. A server that forgets acknowledgements which it has confirmed has events counted again, but not those that were sent.
//
// # Running
//
// One [Worker] pulls from the stream, from the room, and from each channel's queue there, in a goroutine each. One goroutine
// decides, one stores what moves, one settles, one watches the consumers: for the server's clock, by which alone ages are told, for
// what is unacknowledged or waits, and for messages that vanished. Deliveries run beside them, to each channel as many posts at
// once as configured or, where channels are paced, as its pace asks for, in the order of their decisions. A few events that come by
// themselves are prepared for their delivery while they are decided about.
//
// When its context ends a worker stops asking for messages, gives back what is not decided or waits, finishes what is being
// delivered, and returns. Failures of NATS are waited out for ever; an event is never acknowledged before its outcome is safe.
package consume
