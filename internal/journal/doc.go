// Package journal remembers for a day what became of every event.
//
// It owns the journal's stream, the form of its messages, and [Entry]. A [Recorder] gathers the entries of one worker and
// publishes them once a second, in compressed batches of one first-level category each. A [Reader] finds entries again. It ignores messages
// that no worker wrote (package trusted).
//
// Up to [SinglesPerCategory] entries a second of a category and result stand singly. One entry for each category, result and level
// counts the others of that second, with the first and the last of them. A flood therefore costs one entry a second for each
// category and level. Further bounds keep one first-level category from taking the entries of its neighbours: see recorder.go.
//
// [Recorder.Record] may be called from any number of goroutines. It never waits for NATS and never fails. Entries that cannot be
// published are kept for a while, then they are lost: the recorder counts them, logs that, and adds an entry about them when it can
// publish again. [Recorder.Health] says how far the entries are published. A worker that is killed takes the entries of its last
// second with it. The journal is beside the way of an event: nothing waits for it, and no decision depends on it.
package journal
