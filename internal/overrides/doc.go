// Package overrides keeps live overrides of limits in a JetStream key-value bucket. Every worker sees a change at once.
//
// The package owns the bucket: its keys, its history, and mirroring it. It knows nothing of limits: a value is a text. A key
// that does not name a limit is logged and ignored.
//
//	command ── Set, Unset, Rollback ──► bucket ──► Watcher ── apply(Snapshot) ──► worker
//	        ◄── Load, History, At ─────
//
// A [Snapshot] is what the bucket holds at one moment. Snapshots are ordered by generation (when the bucket was created),
// then by revision (how many changes were made), so all workers agree on which of two snapshots is newer. A snapshot holds
// every change that the server confirmed before the reading began.
//
// All methods of a [Bucket] may run at once, in any number of programs. A change names the revision that it replaces: the revision in the
// snapshot that the caller has checked. It fails with [ErrConflict] if that revision is no longer the newest. A [Bucket.Rollback] is
// several changes: it may end half done, says so, and can be repeated.
//
// An override may expire. One header of its change holds the end, and another header the value that follows. The override is in force
// until a change sets that value, so an end has a revision like every other change. The watchers make that change: at each look
// at the bucket, every 2 seconds, they compare the ends with the server's clock, and the first watcher that finds an expired override
// replaces it. No override ends early. Without a watcher, an override ends when the next watcher starts, before its first Refresh
// returns. A later change of the override replaces its end too. A watcher that may not write logs that once and retries.
//
// A message without the mark of package trusted is forged, unless it deletes a key. It changes no override, and the history does not show
// it. The newest change before it stays in force, and the watchers store that change again. A watcher remembers what it has applied, so it
// keeps an override even if forged messages push all its changes out of the bucket. A reader that starts later reports the override as lost
// ([Change.Lost]): it cannot know whether the override was set.
//
// A [Watcher] continues after every failure. While the bucket is unavailable, the last snapshot stays applied. The log has one line when
// that begins and one when it ends. A bucket that went back to an older state, as after a restore, is mirrored too: the caller decides
// whether to use that state.
//
// Purged messages (`nats stream purge`) and expired keys leave no revision behind. Workers notice them with the next change or at their
// next start.
//
// The client library's KeyValue creates the bucket, and a push consumer delivers the changes. The package does not use KeyValue for reading
// and writing, for three reasons. KeyValue does not support headers, which hold the mark, the author and the end of a change. Its watch is
// complete when one replica has delivered all it holds, and a replica may lag behind the leader. After an interruption the watch continues
// with the next revision, which mixes two states if the bucket was restored meanwhile.
package overrides
