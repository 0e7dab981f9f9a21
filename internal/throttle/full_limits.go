package throttle

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// fullLimits logs when limits become full, and when they have slots again. Per minute, it writes at most one line of each kind about a
// level, however many paths the level has. The next line counts the limits that got no line of their own.
type fullLimits struct {
	logger *slog.Logger
	some   atomic.Bool // whether full has any; admissions read it without the lock

	mu     sync.Mutex
	full   byPath[[]*fullLimit]
	levels map[string]*levelLines // by level, from its first line on
}

// fullLimit is a limit that was full at its latest denial.
type fullLimit struct {
	store.LimitKey
	level  string
	since  time.Time
	opens  time.Time // the next slot. If an event was admitted since the denial, the time of that request
	learnt time.Time // when this instance got the latest denial from Redis
	denied int64     // since it is full
	logged bool      // the log has a line about it
}

// levelLines records what was logged about the limits of one level.
type levelLines struct {
	full, opened time.Time // when the latest line of that kind was written
	unlogged     opened    // limits that opened since the latest line
}

// opened sums up limits that are no longer full.
type opened struct {
	limits int
	denied int64     // while they were full
	one    fullLimit // the limit with the most denials
}

func (o *opened) add(full *fullLimit) {
	o.limits++
	o.denied += full.denied
	if o.limits == 1 || full.denied > o.one.denied {
		o.one = *full
	}
}

const (
	fullLimitsEvery = time.Second // how often due lines are logged
	levelLineEvery  = time.Minute // between two lines of one kind about a level
)

func newFullLimits(logger *slog.Logger) *fullLimits {
	return &fullLimits{logger: logger, full: newByPath[[]*fullLimit](), levels: make(map[string]*levelLines)}
}

// unlock ends a change of f.full.
func (f *fullLimits) unlock() {
	f.some.Store(len(f.full.values) > 0)
	f.mu.Unlock()
}

// find returns the state of a full limit. It returns nil if the limit is not known to be full.
func (f *fullLimits) find(key store.LimitKey) *fullLimit {
	for _, full := range f.full.values[key.Path] {
		if full.LimitKey == key {
			return full
		}
	}
	return nil
}

// denied records a denial by Redis.
func (f *fullLimits) denied(key store.LimitKey, d *store.Decision, asked time.Time) {
	f.mu.Lock()
	defer f.unlock()
	full := f.find(key)
	if full == nil {
		full = &fullLimit{LimitKey: key, level: d.Node.Level, since: asked}
		if !f.full.put(key.Path, append(f.full.values[key.Path], full)) {
			return
		}
	}
	full.opens, full.learnt = asked.Add(d.Wait), time.Now()
	full.denied++
}

// deniedAgain records a denial from the deny cache.
func (f *fullLimits) deniedAgain(key store.LimitKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if full := f.find(key); full != nil {
		full.denied++
	}
}

// admitted records that each of these limits had a slot for an event. An admission that was requested before the
// latest denial arrived proves nothing: Redis may have decided it before the denial.
func (f *fullLimits) admitted(keys []store.LimitKey, asked time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		if full := f.find(key); full != nil && !asked.Before(full.learnt) && asked.Before(full.opens) {
			full.opens = asked
		}
	}
}

// opensAt returns when the next slot of a limit opens, as of the latest denial. It returns a time in the past if the limit is not known to be
// full.
func (f *fullLimits) opensAt(key store.LimitKey) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if full := f.find(key); full != nil {
		return full.opens
	}
	return time.Time{}
}

// takeOut removes full limits.
func (f *fullLimits) takeOut(isOut func(*fullLimit) bool) {
	for path, all := range f.full.values {
		if kept := slices.DeleteFunc(all, isOut); len(kept) > 0 {
			f.full.put(path, kept)
		} else {
			f.full.remove(path)
		}
	}
}

// adopt logs and forgets full limits that are no longer in force.
func (f *fullLimits) adopt(tree *limits.Tree) {
	f.mu.Lock()
	defer f.unlock()
	changed := make(map[string]*opened)
	f.takeOut(func(full *fullLimit) bool {
		inForce := slices.ContainsFunc(tree.Path(full.Path), func(n limits.Node) bool {
			return n.Path == full.Path && n.Level == full.level && slices.Contains(n.Limits, full.Limit)
		})
		if !inForce {
			changed[full.level] = cmp.Or(changed[full.level], new(opened))
			changed[full.level].add(full)
		}
		return !inForce
	})
	for _, limit := range changed {
		f.logger.Info("limit was changed while it was full", limit.attributes(time.Now())...)
	}
}

// keepLogging writes lines when they are due, until the context ends.
func (f *fullLimits) keepLogging(ctx context.Context) {
	for await.For(ctx, fullLimitsEvery) {
		f.logDue(time.Now())
	}
}

// logDue writes the lines that are due.
func (f *fullLimits) logDue(now time.Time) {
	f.mu.Lock()
	defer f.unlock()
	unlogged := make(map[string][]*fullLimit) // by level
	f.takeOut(func(full *fullLimit) bool {
		isOpen := !now.Before(full.opens)
		if isOpen {
			f.linesOf(full.level).unlogged.add(full)
		} else if !full.logged {
			unlogged[full.level] = append(unlogged[full.level], full)
		}
		return isOpen
	})
	for level, full := range unlogged {
		if lines := f.linesOf(level); now.Sub(lines.full) >= levelLineEvery {
			f.logFull(lines, full, now)
		}
	}
	for level, lines := range f.levels {
		// If another limit of the level is full but not logged yet, the last line must not say that a limit has slots again.
		if lines.unlogged.limits > 0 && len(unlogged[level]) == 0 && now.Sub(lines.opened) >= levelLineEvery {
			f.logger.Info("limit has slots again", lines.unlogged.attributes(now)...)
			lines.opened, lines.unlogged = now, opened{}
		}
	}
}

func (f *fullLimits) linesOf(level string) *levelLines {
	f.levels[level] = cmp.Or(f.levels[level], new(levelLines))
	return f.levels[level]
}

// logFull writes the line about limits of one level that have become full. It names the limit that became full first.
func (f *fullLimits) logFull(lines *levelLines, all []*fullLimit, now time.Time) {
	for _, full := range all {
		full.logged = true
	}
	first := slices.MinFunc(all, func(a, b *fullLimit) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.Path, b.Path))
	})
	attributes := append(first.attributes(), "next_slot", first.opens.Sub(now).Round(time.Millisecond).String())
	if len(all) > 1 {
		attributes = append(attributes, "limits", len(all))
	}
	if lines.unlogged.limits > 0 {
		attributes = append(attributes, "opened_meanwhile", lines.unlogged.limits, "denied_meanwhile", lines.unlogged.denied)
	}
	f.logger.Info("limit is full", attributes...)
	lines.full, lines.unlogged = now, opened{}
}

// attributes returns the attributes that name the limit. The level is called limit_level, because a log line has its own level.
func (l *fullLimit) attributes() []any {
	attributes := []any{"limit_level", l.level, "path", cmp.Or(l.Path, limits.LevelGlobal), "limit", l.Limit.String()}
	if l.Guarantee != "" {
		attributes = append(attributes, "guarantee", l.Guarantee)
	}
	return attributes
}

func (o *opened) attributes(now time.Time) []any {
	attributes := append(o.one.attributes(), "full_for", now.Sub(o.one.since).Round(time.Second).String(), "denied", o.denied)
	if o.limits > 1 {
		attributes = append(attributes, "limits", o.limits)
	}
	return attributes
}
