package overrides

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"
)

const (
	// tendTimeout bounds how long a watcher stores changes. It applies no change during that time.
	tendTimeout = 2 * time.Second

	// tendPause is the time between a failed attempt and the next attempt.
	tendPause = 30 * time.Second

	// mostLogged bounds the number of levels in one log line.
	mostLogged = 20
)

func (c Change) due(now time.Time) bool { return !c.Until.IsZero() && !c.Until.After(now) }

// lasting returns the value after the end of the override, or the override's value if it has no end; "": unset.
func (c Change) lasting() string {
	if c.Until.IsZero() {
		return c.Value
	}
	return c.Then
}

// headers returns the headers of a change. An empty value means that the header is absent.
func (c Change) headers(by string) map[string]string {
	headers := map[string]string{headerBy: cleanName(cmp.Or(c.By, by)), headerThen: c.Then, headerEvery: c.Muting.Every, headerSpare: c.Muting.Spare}
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

// due returns the changes to store at a time. Mutes that begin come first. If the restored end of an earlier mute of the same name were
// stored first, it would look like the end of the new mute.
func (w *Watcher) due(s *state, now time.Time) []Change {
	var begin, others []Change
	for _, entry := range s.entries {
		switch {
		case entry.Lost:
		case entry.due(now):
			others = append(others, Change{
				Name: entry.Name, stored: stored{key: entry.stored.key}, Value: entry.Then, Deleted: entry.Then == "", Ended: entry.Revision, By: entry.By,
			})
		case entry.stored.overwritten:
			others = append(others, entry.again())
		case entry.Name.Kind == Recurring && !entry.Deleted:
			begun, begins, err := entry.begin(s.entries, now)
			if begins {
				begin = append(begin, begun)
			} else if err != nil && w.bucket.isNew(entry) {
				w.bucket.o.Logger.Warn("ignoring a recurring mute whose schedule cannot be read",
					"bucket", w.bucket.o.Name, "level", entry.Name.String(), "schedule", entry.Muting.Every, "error", err)
			}
		}
	}
	return slices.Concat(begin, others)
}

// tend stores the values that follow expired overrides, the mutes that begin and overwritten changes. It returns the newest revision that it
// stored; 0: none. Every watcher of the bucket does that, and only one succeeds, since each change names the revision that it replaces.
func (w *Watcher) tend(ctx context.Context, s *state, now time.Time) (revision uint64) {
	next := w.due(s, now)
	o := w.bucket.o
	if len(next) == 0 || time.Now().Before(w.tendAgain) || o.Outdated != nil && o.Outdated(ctx, s.snapshot()) {
		return 0
	}
	storing, cancel := context.WithTimeout(ctx, tendTimeout)
	defer cancel()
	var again []string
	for _, change := range next {
		stored, err := w.bucket.store(storing, change, s.entries[change.Name].Revision)
		if errors.Is(err, ErrConflict) { // stored by another watcher or changed by an operator
			continue
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			w.tendFailed(change, err)
			break
		}
		revision, w.tendAgain = max(revision, stored), time.Time{}
		if change.Ended == 0 && change.Name.Kind != Mute {
			again = append(again, change.Name.String())
		}
	}
	if len(again) > 0 {
		o.Logger.Warn("restored live limits that were overwritten by forged messages",
			"bucket", o.Name, "levels", again[:min(len(again), mostLogged)], "count", len(again))
	}
	return revision
}

// tendFailed handles a change that cannot be stored. It logs the first failure.
func (w *Watcher) tendFailed(c Change, err error) {
	o := w.bucket.o
	attributes := []any{"bucket", o.Name, "level", c.Name.String(), "error", err}
	switch {
	case !w.tendAgain.IsZero():
	case c.Ended != 0:
		o.Logger.Warn("cannot store the end of live limits: expired limits stay in force", attributes...)
	case c.Muting.Every != "":
		o.Logger.Warn("cannot store the start of a recurring mute", attributes...)
	default:
		o.Logger.Warn("cannot restore live limits that were overwritten by forged messages", attributes...)
	}
	w.tendAgain = time.Now().Add(tendPause)
}
