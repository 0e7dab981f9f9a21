// Package overrides keeps live overrides of limits in a JetStream key-value bucket. Every worker sees a change at once.
//
// The package owns the bucket: its keys, its history, and mirroring it. It knows nothing of limits: a value is a text. A key
// that names no limit is logged and ignored.
//
//	command ── Set, Unset, Rollback ──► bucket ──► Watcher ── apply(Snapshot) ──► worker
//	        ◄── Load, History, At ─────
//
// A [Snapshot] is what the bucket holds at one moment. Snapshots are ordered by generation (when the bucket was created),
// then by revision (how many changes were made), so all workers agree on which of two snapshots is newer. A snapshot holds
// every change that the server confirmed before the reading began.
//
// All methods of a [Bucket] may run at once, in any number of programs. A change names the revision that it replaces, and
// fails with [ErrConflict] if that is no longer the newest. A [Bucket.Rollback] is several changes: it may end half done,
// says so, and can be repeated.
//
// An override may have an end, which stands in a header of its change, with the value that follows. The override is in force
// until a change sets that value, so an end has a revision like every other change. The watchers make that change: at each look
// at the bucket, every 2 seconds, they compare the ends with the server's clock, and the first watcher that finds one passed
// replaces the override. No end comes early. Without a watcher, an end comes when the next one starts, before its first Refresh
// returns. A later change of the override replaces its end too. A watcher that may not write says so once and tries again.
//
// A message without the mark of package trusted is forged, unless it deletes a key: it changes no override and has no place in the history. The
// newest change before it stays in force, and the watchers store that change again, as they do with an end. A watcher remembers what it has applied, so
// messages that push all changes of an override out of the bucket take nothing from it. A reader that comes later finds the override lost
// ([Change.Lost]): it cannot know whether one was set.
//
// A [Watcher] goes on through every failure. While the bucket is unavailable, the last snapshot stays applied. The log has
// one line when that begins and one when it ends. A bucket that went back to an older state, as after a restore, is
// mirrored too: the caller decides whether to use that state.
//
// Messages that somebody removes from the stream (`nats stream purge`), and keys that expire, leave no revision behind.
// Workers notice them with the next change or when they start.
//
// The client library's KeyValue creates the bucket, and the library's push consumer delivers the changes. KeyValue does not
// read or write them, for three reasons. It neither writes nor returns headers, and the mark, the author and the end of a change stand there. Its
// watch is complete when one replica has delivered all it holds, and a replica may lag behind the leader. After an
// interruption the watch goes on with the next revision, which mixes two states if the bucket was restored meanwhile.
package overrides
