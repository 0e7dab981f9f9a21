// Package simulate replays events through limits at the events' own times, to show which events would have been sent.
//
// It owns the [History], read from JSON lines or from a JetStream stream; the replay, which asks an [Evaluator] and counts; and the [Report],
// as a table or as JSON. Package event decodes bodies here exactly as in a worker. The caller makes the limits and passes an Evaluator,
// usually a [Limiter], which is the limiter that a worker uses when it is alone. A delivery takes no time and always succeeds, so an inflight
// limit is never full. A resolved event takes no slot: it is sent if its firing event was sent.
//
// The replay does not wait for the time of an event, so a million events take seconds. Reading a stream removes no message and leaves its
// consumers alone.
//
// Unusable lines and messages are counted, the first few with the reason, and the rest is replayed. An error means that there is no result,
// because reading failed, the evaluator failed or the context ended. One goroutine at a time may use a value of this package.
package simulate
