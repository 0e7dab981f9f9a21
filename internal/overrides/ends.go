package overrides

import (
	"context"
	"errors"
	"strconv"
	"time"
)

const (
	// endTimeout bounds the ending of overrides. No change is applied meanwhile.
	endTimeout = 2 * time.Second

	// endPause is the time to the next attempt after one that failed.
	endPause = 30 * time.Second
)

// due tells whether an override has an end and the end has passed.
func (c Change) due(now time.Time) bool { return !c.Until.IsZero() && !c.Until.After(now) }

// lasting is the value that stays when what ends by itself has ended, "" for none.
func (c Change) lasting() string {
	if c.Until.IsZero() {
		return c.Value
	}
	return c.Then
}

// headers are the headers of a change. An empty value stands for no header.
func (c Change) headers(by string) map[string]string {
	headers := map[string]string{headerBy: cleanName(by), headerThen: c.Then}
	if c.Deleted {
		headers[headerOperation] = operationDelete
	}
	if !c.Until.IsZero() {
		headers[headerUntil] = c.Until.UTC().Format(time.RFC3339Nano)
	}
	if c.Ended != 0 {
		headers[headerEnded] = strconv.FormatUint(c.Ended, 10)
		headers[headerBy] = c.By
	}
	return headers
}

// endDue ends the overrides of a state whose end has passed by the server's clock, each with a change that sets what follows. It
// returns the newest revision of such a change, or 0. Every watcher of the bucket does that, and one of them succeeds: each end
// names the revision that it replaces.
func (w *Watcher) endDue(ctx context.Context, s *state, now time.Time) (revision uint64) {
	var due []Change
	for _, entry := range s.entries {
		if entry.due(now) {
			due = append(due, entry)
		}
	}
	o := w.bucket.o
	if len(due) == 0 || time.Now().Before(w.endAgain) || o.Outdated != nil && o.Outdated(ctx, s.snapshot()) {
		return 0
	}
	storing, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for _, entry := range due {
		next := Change{key: entry.key, Value: entry.Then, Deleted: entry.Then == "", Ended: entry.Revision, By: entry.By}
		stored, err := w.bucket.store(storing, next, entry.Revision)
		switch {
		case ctx.Err() != nil:
			return revision
		case errors.Is(err, ErrConflict): // another watcher has ended it, or somebody has changed it
		case err != nil:
			if w.endAgain.IsZero() {
				o.Logger.Warn("live limits that have ended stay in force, since their end cannot be stored",
					"bucket", o.Name, "level", entry.Name.String(), "until", entry.Until, "error", err)
			}
			w.endAgain = time.Now().Add(endPause)
			return revision
		default:
			revision, w.endAgain = max(revision, stored), time.Time{}
		}
	}
	return revision
}
