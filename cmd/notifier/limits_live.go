package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// awaitLimitsFor bounds the wait for live limits at the start. A worker that has not read them begins with those of the
// settings, and is turned away by Redis where newer ones are in force.
const awaitLimitsFor = 2 * time.Second

func overridesOptions(settings config.Config) overrides.Options {
	return overrides.Options{Name: settings.Limits.Bucket, Provision: settings.NATS.Provision, Replicas: settings.NATS.Replicas}
}

// newLimitsWatcher makes a watcher that puts the limits in force which the bucket holds.
func (w *worker) newLimitsWatcher(conn *nats.Conn) (*overrides.Watcher, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("preparing for live limits: %w", err)
	}
	options := overridesOptions(w.settings)
	options.Logger = w.logger
	earlier := func(level string, shadow bool) []string { return earlierValues(js, options, level, shadow) }
	live := limits.NewLive(w.settings.Limits.Plan(), w.settings.Limits.ShadowLimits, earlier, w.logger)
	return overrides.NewWatcher(js, options, func(s overrides.Snapshot) {
		rules, err := live.Ruleset(s.Generation, s.Revision, liveEntries(s))
		if err != nil {
			w.logger.Error("live limits do not go together, the last ones stay", "revision", s.Revision, "error", err)
			return
		}
		w.limiter.Load().Adopt(rules)
		w.logger.Info("limits in force", "revision", s.Revision, "overrides", len(s.Entries))
	}), nil
}

// earlierValues reads an override's history, the newest value first, as far as it was set.
func earlierValues(js jetstream.JetStream, options overrides.Options, level string, shadow bool) []string {
	ctx, cancel := context.WithTimeout(context.Background(), awaitLimitsFor)
	defer cancel()
	bucket, err := overrides.Open(ctx, js, options)
	if err != nil {
		return nil
	}
	history, err := bucket.History(ctx)
	if err != nil {
		return nil
	}
	var values []string
	for _, change := range slices.Backward(history) {
		if change.Name != (overrides.Name{Pattern: level, Shadow: shadow}) {
			continue
		}
		if change.Deleted {
			break
		}
		values = append(values, change.Value)
	}
	return values
}

// changesOf returns a function that lists which live limits were changed since a time, the oldest first; none if that cannot be
// read. Shadow limits drop nothing, so they are left out.
func changesOf(limits *overrides.Watcher) func(ctx context.Context, since time.Time) []summary.Change {
	return func(ctx context.Context, since time.Time) []summary.Change {
		history, err := limits.Changes(ctx, since)
		if err != nil {
			return nil
		}
		var changes []summary.Change
		for _, change := range history {
			if !change.Name.Shadow {
				changes = append(changes, summary.Change{At: change.Changed, Limit: change.Name.Pattern, Value: change.Value, By: change.By})
			}
		}
		return changes
	}
}

func liveEntries(s overrides.Snapshot) []limits.LiveEntry {
	entries := make([]limits.LiveEntry, len(s.Entries))
	for i, e := range s.Entries {
		entries[i] = limits.LiveEntry{Level: e.Name.Pattern, Shadow: e.Name.Shadow, Limits: e.Value, Revision: e.Revision}
	}
	return entries
}

func awaitLimits(ctx context.Context, limits *overrides.Watcher) {
	ctx, cancel := context.WithTimeout(ctx, awaitLimitsFor)
	defer cancel()
	_ = limits.Refresh(ctx) // the watcher says it if they cannot be read
}
