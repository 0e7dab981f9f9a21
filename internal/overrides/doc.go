// Package overrides keeps live overrides of limits in a JetStream key-value bucket, where every worker sees a change at
// once.
//
// It owns the bucket: its keys, its history, and following it. It knows nothing of limits: a value is a text, and
// whoever uses it says what the text means. A key that it does not understand is logged and left alone.
//
//	command ── Set, Unset, Rollback ──► bucket ──► Watcher ── apply(Snapshot) ──► worker
//	        ◄── Load, History, At ─────
//
// What a bucket holds at one moment is a [Snapshot]. Snapshots are ordered by generation, which is when the bucket was
// created, and then by revision, which counts its changes; so all workers agree on which of two is the newer one. Each is
// read from the stream behind the bucket in one way: a short-lived consumer delivers what is stored, and the reading is
// complete when it reaches what the stream's leader had before it began. A change that the server has confirmed is
// therefore in every snapshot that is read after it.
//
// All methods of a [Bucket] may run at once, in any number of programs: a change names the revision that it replaces,
// and the one that comes too late fails with [ErrConflict] and changes nothing. Only a [Bucket.Rollback], which is
// several changes, may end half done; it says so, and can be repeated.
//
// A [Watcher] is never given up. While the bucket or NATS is away, is deleted, or may not be read, what was applied last
// stays applied; the log says so once, and once when it is over. A bucket that went back to an older state, as after a
// restore, is followed all the same: whether that state may be used is for others to say.
//
// Whoever removes messages from the stream by hand (`nats stream purge`), or lets the bucket expire its keys, leaves no
// revision behind, so workers notice it only with the next change or when they start.
package overrides
