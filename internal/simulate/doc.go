// Package simulate replays events through limits at the events' own times, to see what would have been sent.
//
// It owns the [History], which is read from JSON lines or from a JetStream stream; the
// replay, which asks an [Evaluator] and counts; and the [Report], as a table or as JSON. What a body becomes, how many events
// and of which identities, is up to package event, as in a worker. It does not know how limits are
// made: an Evaluator is handed in, usually a [Limiter], which is the limiter that a worker uses when it is alone. A delivery
// takes no time and always succeeds, so a limit on what is under way at once is never full. A resolved event is outside
// the limits: it is sent where what it resolves was.
//
// Nothing here waits for the time of an event, so a million events take seconds. Reading a stream takes nothing from it
// and leaves its consumers alone.
//
// What cannot be used is counted, a few with the reason, and the rest is replayed. An error means that there is no
// result: the input could not be read, the evaluator failed, or the context ended. None of the types may be used by more
// than one goroutine at once.
package simulate
