package overrides

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"
)

const (
	// tendTimeout bounds the storing of changes by a watcher. No change is applied meanwhile.
	tendTimeout = 2 * time.Second

	// tendPause is the time to the next attempt after one that failed.
	tendPause = 30 * time.Second

	// mostLogged bounds the levels in one line of the log.
	mostLogged = 20
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
	headers := map[string]string{headerBy: cleanName(cmp.Or(c.By, by)), headerThen: c.Then}
	if c.Deleted {
		headers[headerOperation] = operationDelete
	}
	if !c.Until.IsZero() {
		headers[headerUntil] = c.Until.UTC().Format(time.RFC3339Nano)
	}
	if c.Ended != 0 {
		headers[headerEnded] = strconv.FormatUint(c.Ended, 10)
	}
	return headers
}

// tend stores what follows the overrides of a state that have ended by the server's clock, and again the changes that were overwritten. It
// returns the newest revision that it stored, or 0. Every watcher of the bucket does that, and one of them succeeds: each change names
// the revision that it replaces.
func (w *Watcher) tend(ctx context.Context, s *state, now time.Time) (revision uint64) {
	var next []Change
	for _, entry := range s.entries {
		switch {
		case entry.Lost:
		case entry.due(now):
			next = append(next, Change{
				Name: entry.Name, key: entry.key, Value: entry.Then, Deleted: entry.Then == "", Ended: entry.Revision, By: entry.By,
			})
		case entry.overwritten:
			next = append(next, entry.again())
		}
	}
	o := w.bucket.o
	if len(next) == 0 || time.Now().Before(w.tendAgain) || o.Outdated != nil && o.Outdated(ctx, s.snapshot()) {
		return 0
	}
	storing, cancel := context.WithTimeout(ctx, tendTimeout)
	defer cancel()
	var again []string
	defer func() {
		if len(again) > 0 {
			o.Logger.Warn("live limits were overwritten by messages that neither a worker nor an operator wrote, and are stored again",
				"bucket", o.Name, "levels", again[:min(len(again), mostLogged)], "count", len(again))
		}
	}()
	for _, change := range next {
		stored, err := w.bucket.store(storing, change, s.entries[change.Name].Revision)
		switch {
		case ctx.Err() != nil:
			return revision
		case errors.Is(err, ErrConflict): // another watcher has stored it, or somebody has changed the override
		case err != nil:
			w.tendFailed(change, err)
			return revision
		default:
			revision, w.tendAgain = max(revision, stored), time.Time{}
			if change.Ended == 0 {
				again = append(again, change.Name.String())
			}
		}
	}
	return revision
}

// tendFailed notes that a change cannot be stored. The log has a line when that begins.
func (w *Watcher) tendFailed(c Change, err error) {
	o := w.bucket.o
	attributes := []any{"bucket", o.Name, "level", c.Name.String(), "error", err}
	switch {
	case !w.tendAgain.IsZero():
	case c.Ended != 0:
		o.Logger.Warn("live limits that have ended stay in force, since their end cannot be stored", attributes...)
	default:
		o.Logger.Warn("live limits were overwritten by messages that neither a worker nor an operator wrote, and cannot be stored again",
			attributes...)
	}
	w.tendAgain = time.Now().Add(tendPause)
}
