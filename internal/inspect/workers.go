package inspect

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// WorkersLimits are the limits of the running workers. In the zero value no worker answers.
type WorkersLimits struct {
	Reports  []status.Report
	Settings config.Config // shared by the worker with the newest limits; they create no bucket
	Failed   error         // of workers without a readable report
}

// Workers asks all running workers for their limits. Settings that the workers do not report come from the settings here. Workers fails if it has an
// answer, but no report.
func Workers(ctx context.Context, connection *stream.Connection, settings config.Config) (WorkersLimits, error) {
	reports, failed := status.Workers(ctx, connection.Conn, settings.Redis.Prefix)
	if len(reports) == 0 {
		return WorkersLimits{}, failed
	}
	newest := status.Newest(reports)
	theirs, err := settings.WithShared(newest.Settings)
	if err != nil {
		return WorkersLimits{}, fmt.Errorf("reading the limits of the worker %s: %w", newest.Name, err)
	}
	theirs.NATS.Provision = false // the workers have the bucket; a new one would replace it
	return WorkersLimits{Reports: reports, Settings: theirs, Failed: failed}, nil
}

// Plan returns the limits that these workers have in force: the limits of their settings, overridden by the live limits.
// Its error is [limits.ErrEarlier].
func (w WorkersLimits) Plan(connection *stream.Connection) (limits.Plan, error) {
	options := setup.Overrides(w.Settings, slog.New(slog.DiscardHandler))
	live := setup.Live(setup.JetStream(connection), w.Settings, options)
	var entries []limits.LiveEntry
	for _, change := range status.Newest(w.Reports).Changes {
		entries = append(entries, limits.LiveEntry{LiveLevel: limits.LiveLevel{Level: change.Path, Shadow: change.Shadow}, Limits: change.Limit, Revision: 1})
	}
	return live.Plan(entries)
}

// String returns how many workers have these limits, and the revision: "3 workers (revision 12)".
func (w WorkersLimits) String() string {
	text := fmt.Sprintf("%d workers", len(w.Reports))
	if len(w.Reports) == 1 {
		text = "1 worker"
	}
	if _, revision, known := strings.Cut(status.Newest(w.Reports).Revision, ":"); known {
		text += " (revision " + revision + ")"
	}
	return text
}

// Retention returns how long workers with these settings remember deliveries.
func Retention(settings config.Config) time.Duration {
	return throttle.Retention(settings.Stream.MaxAge, setup.LongestLife(settings))
}

// StatusOptions returns how to collect the status of the deployment of these settings.
func StatusOptions(settings config.Config, connection *stream.Connection, client redis.UniversalClient) status.Options {
	return status.Options{
		Conn:       connection.Conn,
		Deployment: settings.Redis.Prefix,
		Names:      setup.Names(settings),
		Overrides:  setup.Overrides(settings, slog.New(slog.DiscardHandler)),
		RedisInfo: func(ctx context.Context) (map[string]map[string]string, error) {
			return setup.RedisInfo(ctx, client, settings.Redis)
		},
	}
}

// Mismatches returns the shared settings that differ between the workers of the reports and further workers.
func Mismatches(reports []status.Report, further ...status.Worker) []status.Mismatch {
	workers := further
	for _, report := range reports {
		workers = append(workers, report.Worker)
	}
	return status.Mismatches(workers)
}

// DescribeMismatches returns the mismatches in one line; "" if there is none.
func DescribeMismatches(mismatches []status.Mismatch) string {
	texts := make([]string, len(mismatches))
	for i, m := range mismatches {
		texts[i] = m.String()
	}
	return strings.Join(texts, "; ")
}
