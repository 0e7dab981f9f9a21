package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// awaitLimitsFor bounds the wait for live limits at the start. A worker that has not read them begins with the limits of
// the settings. Redis turns such a worker away where newer limits are in force.
const awaitLimitsFor = 2 * time.Second

func overridesOptions(settings config.Config, logger *slog.Logger) overrides.Options {
	return overrides.Options{
		Name: settings.Limits.Bucket, Provision: settings.NATS.Provision, Replicas: settings.NATS.Replicas, Logger: logger,
	}
}

// newLimitsWatcher makes what puts the limits of the bucket in force.
func (w *worker) newLimitsWatcher(store *throttle.Redis) *overrides.Watcher {
	js, options := jetStream(w.connection), overridesOptions(w.settings, w.logger)
	options.Forged = func(n int) { w.metrics.Forged(trusted.Limits, n) }
	options.Outdated = func(ctx context.Context, s overrides.Snapshot) bool {
		inForce, _, err := store.InForce(ctx)
		return err == nil && position(s).Before(inForce) // without an answer of Redis, no newer limits are known
	}
	live := limits.NewLive(w.settings.Limits.Plan(), w.settings.Limits.ShadowLimits, earlierValues(js, options), w.logger)
	return overrides.NewWatcher(js, options, func(s overrides.Snapshot) {
		rules, err := live.Ruleset(s.Generation, s.Revision, liveEntries(s))
		if unreadable := live.Unreadable(); unreadable != nil {
			w.unreadable.hold(unreadable)
			return
		}
		if err != nil {
			w.logger.Error("live limits do not go together, the last ones stay", "revision", s.Revision, "error", err)
			return
		}
		w.limiter.Load().Adopt(rules)
		if isFirst := w.changes.Swap(&s) == nil; isFirst || !s.Forged {
			w.logLimits(rules, len(s.Entries))
		}
		w.unreadable.end()
	})
}

// unreadable is why a worker does not begin: it cannot read a live limit, and would apply the limit of its environment in its place.
type unreadable struct {
	err   atomic.Pointer[error]
	ended chan struct{} // closed when all live limits were readable
	once  sync.Once
}

func (u *unreadable) hold(err error) { u.err.Store(&err) }

func (u *unreadable) end() {
	u.err.Store(nil)
	u.once.Do(func() { close(u.ended) })
}

// now is the reason, or nil.
func (u *unreadable) now() error {
	if err := u.err.Load(); err != nil {
		return *err
	}
	return nil
}

// awaitReadable waits while a live limit is not readable.
func (w *worker) awaitReadable(ctx context.Context) error {
	reason := w.unreadable.now()
	if reason == nil {
		return nil
	}
	w.logger.Error("no event is taken until a live limit is readable", "error", reason)
	select {
	case <-w.unreadable.ended:
		w.logger.Info("live limits are readable")
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// warnOfPointless tells of limits in the settings that never deny anything.
func (w *worker) warnOfPointless(tree *limits.Tree) {
	var texts []string
	for _, pointless := range tree.Pointless() {
		texts = append(texts, pointless.String())
	}
	if len(texts) > 0 {
		w.logger.Warn("limits without effect", "limits", texts[:min(len(texts), mostLimitsLogged)], "count", len(texts))
	}
}

// mostLimitsLogged bounds the line of the limits in force.
const mostLimitsLogged = 100

func (w *worker) logLimits(rules limits.Ruleset, overrides int) {
	attributes := []any{"revision", rules.Position.Revision, "overrides", overrides, "limits", limitTexts(rules.Tree)}
	if rules.Shadow != nil {
		attributes = append(attributes, "shadow_limits", limitTexts(rules.Shadow))
	}
	w.logger.Info("limits in force", attributes...)
}

// limitTexts are the rules of a tree as they are configured.
func limitTexts(tree *limits.Tree) []string {
	var texts []string
	levels := tree.AllLevels()
	for _, level := range levels[:min(len(levels), mostLimitsLogged)] {
		texts = append(texts, level.Level+"="+level.Limits.String())
	}
	if more := len(levels) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	for _, guarantee := range tree.Guarantees() {
		texts = append(texts, fmt.Sprintf("%s=%d guaranteed", guarantee.Path, guarantee.Slots))
	}
	return texts
}

// earlierValues returns what reads the history of an override, or nothing if that cannot be read.
func earlierValues(js jetstream.JetStream, options overrides.Options) limits.Earlier {
	return func(level string, shadow bool) []string {
		ctx, cancel := context.WithTimeout(context.Background(), awaitLimitsFor)
		defer cancel()
		bucket, err := overrides.Open(ctx, js, options)
		if err != nil {
			return nil
		}
		values, _ := bucket.Earlier(ctx, overrides.Name{Pattern: level, Shadow: shadow})
		return values
	}
}

// limitChanges returns what lists the changes of live limits for digests. It asks NATS again only after a change. Shadow limits are left out:
// they drop nothing.
func (w *worker) limitChanges(live *overrides.Watcher) func(context.Context) summary.LimitChanges {
	var (
		mu    sync.Mutex
		known summary.LimitChanges
	)
	return func(ctx context.Context) summary.LimitChanges {
		mu.Lock()
		defer mu.Unlock()
		applied := w.changes.Load()
		if applied == nil {
			return summary.LimitChanges{}
		}
		if known.Generation == applied.Generation && known.Revision == applied.Revision {
			return known
		}
		history, err := live.Changes(ctx, time.Time{})
		if err != nil {
			return summary.LimitChanges{} // the next digest reports them
		}
		known = summary.LimitChanges{Generation: applied.Generation, Revision: applied.Revision}
		for _, change := range history {
			if !change.Name.Shadow && change.Revision <= applied.Revision {
				known.Changes = append(known.Changes, digestChange(change))
			}
		}
		return known
	}
}

// digestChange is a change as digests tell of it. Nobody makes an end.
func digestChange(c overrides.Change) summary.Change {
	told := summary.Change{Revision: c.Revision, At: c.Changed, Limit: c.Name.Pattern, Value: c.Value, By: c.By}
	switch {
	case !c.Until.IsZero():
		told.Value += " for " + lengthOf(c)
	case c.Ended != 0:
		told.By = ""
		if c.Value != "" {
			told.Value += " again"
		}
	}
	return told
}

func liveEntries(s overrides.Snapshot) []limits.LiveEntry {
	entries := make([]limits.LiveEntry, len(s.Entries))
	for i, e := range s.Entries {
		entries[i] = liveEntry(e)
	}
	return entries
}

func liveEntry(e overrides.Change) limits.LiveEntry {
	return limits.LiveEntry{Level: e.Name.Pattern, Shadow: e.Name.Shadow, Limits: e.Value, Lost: e.Lost, Revision: e.Revision}
}

// awaitLimits waits for live limits, and tells that those of the settings are in force if there are none in time.
func (w *worker) awaitLimits(ctx context.Context, live *overrides.Watcher, fromSettings limits.Ruleset) {
	waiting, cancel := context.WithTimeout(ctx, awaitLimitsFor)
	defer cancel()
	if live.Refresh(waiting) != nil && ctx.Err() == nil { // the watcher logs why
		w.logLimits(fromSettings, 0)
	}
}
