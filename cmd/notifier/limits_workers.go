package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// workersLimits are the limits of running workers. The zero value says that no worker answers.
type workersLimits struct {
	reports  []status.Report
	settings config.Limits // of the worker with the newest limits
}

func askWorkersLimits(ctx context.Context, connection *consume.Connection, settings config.Config) (workersLimits, error) {
	reports, err := status.Workers(ctx, connection.Conn, settings.Redis.Prefix, 0)
	if err != nil || len(reports) == 0 {
		return workersLimits{}, err
	}
	newest := status.Newest(reports)
	theirs, err := settings.Limits.WithShared(newest.Settings)
	if err != nil {
		return workersLimits{}, fmt.Errorf("reading the limits of the worker %s: %w", newest.Name, err)
	}
	return workersLimits{reports: reports, settings: theirs}, nil
}

// plan is what these workers have in force: the limits of their settings, and the live limits over them.
func (w workersLimits) plan(connection *consume.Connection, settings config.Config) limits.Plan {
	settings.Limits = w.settings
	options := overridesOptions(settings, slog.New(slog.DiscardHandler))
	options.Provision = false
	live := limits.NewLive(w.settings.Plan(), w.settings.ShadowLimits, earlierValues(jetStream(connection), options), options.Logger)
	var entries []limits.LiveEntry
	for _, change := range status.Newest(w.reports).Changes {
		entries = append(entries, limits.LiveEntry{Level: change.Path, Shadow: change.Shadow, Limits: change.Limit, Revision: 1})
	}
	return live.Plan(entries)
}

// String says how many workers have these limits, and their revision: "3 workers (revision 12)".
func (w workersLimits) String() string {
	text := numbered(len(w.reports), "worker", "workers")
	if _, revision, known := strings.Cut(status.Newest(w.reports).Revision, ":"); known {
		text += " (revision " + revision + ")"
	}
	return text
}
