// Package outcome ends messages and reports what became of their events.
//
// It decides when a message is acknowledged, returned or terminated, and counts each event once: when the server has confirmed the settlement of
// its message. It writes dead letters, the journal, the log of outcomes, spans and the drops for digests. [Admission] is what an admitted event
// holds in Redis, and how that ends. [Refusals] are the events that the room refused lately.
//
// The methods may be called concurrently. While JetStream does not confirm a settlement, its event is not counted. While Redis lacks the end of a
// grant, the message is not settled, and its lease is renewed.
package outcome
