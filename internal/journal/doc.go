// Package journal remembers for a day what became of every event.
//
// It owns the journal's stream, the form of its messages, and [Entry]. A [Recorder] gathers the entries of one worker and
// publishes them once a second, in compressed batches of one first-level category each. A [Reader] finds entries. It ignores messages
// that no worker wrote (package trusted).
//
// Up to [SinglesPerCategory] entries per second, category and result are stored individually. The rest is aggregated: one entry per
// category, result and level has the number of events, the first event and the last. A flood therefore costs one entry per second,
// category and level. Further bounds keep one first-level category from using up the entries of its neighbours: see recorder.go.
//
// [Recorder.Record] may be called from any number of goroutines. It never waits for NATS and never fails. Entries that cannot be
// published stay in memory up to a bound. The recorder counts and logs the entries beyond it, and journals the loss when it can publish
// again. [Recorder.Health] reports how far the entries are published. A killed worker loses the entries of its last second. The journal is
// written asynchronously: no event waits for it, and no decision depends on it.
package journal
