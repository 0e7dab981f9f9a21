// Package move stores events in the room, where they wait without delaying other events.
//
// A [Mover] stores events, and the parts of split bodies, in the order of their arrival. A [Planner] decides when a denied event comes back. A
// [Replanner] has waiting events planned anew after a change of their limits. [Queues] knows which channels' queues the worker pulls from.
//
// The methods may be called concurrently. While the room does not answer, messages go back to their streams: nobody waits for the room. An event
// that may not stay is dropped, and its slots return unless an attempt may have delivered it.
package move
