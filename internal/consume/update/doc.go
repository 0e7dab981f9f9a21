// Package update changes posted messages: one that is resolved, one into which events are folded, and the report that a flapping key is steady.
//
// Each update is an entry of the room, which survives the death of a worker. A newer state of the same message takes the place of an older one.
// No event waits for an update: a [FoldSettler] settles folded events once the room has the updates that show them.
//
// The methods may be called concurrently. An update that Slack rejects for good is given up, and the message keeps its state.
package update
