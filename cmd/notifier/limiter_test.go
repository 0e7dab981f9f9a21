package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// newTestLimiter is a limiter with a limit of one an hour for each category, which runs until the test ends.
func newTestLimiter(t *testing.T, perCategory string) *throttle.Limiter {
	t.Helper()
	server := servertest.StartRedis(t)
	settings := config.Config{Redis: config.Redis{
		URL: config.NewSecret(server.URL()), Prefix: "notifier", Timeout: patience, Failure: config.FailureHold,
	}}
	settings.Limits.DenyCacheTTL = time.Minute
	var err error
	if settings.Limits.Global, err = limits.Parse("100/1h"); err != nil {
		t.Fatal(err)
	}
	if settings.Limits.Category, err = limits.Parse(perCategory); err != nil {
		t.Fatal(err)
	}
	tree := testkit.Must(limits.NewTree(settings.Limits.Plan()))(t)
	w := &worker{settings: settings, logger: slog.New(slog.DiscardHandler)}
	client := testkit.Must(newRedisClient(settings.Redis, w.logger))(t)
	metrics := telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 10, Levels: levels(tree, config.FailureHold), Policy: config.FailureHold})
	runner := newRunner(client, settings.Redis)
	store := throttle.NewRedis(runner, throttle.Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour, PairTTL: time.Hour})
	limiter, _ := w.newLimiter(runner, store, func() int { return 1 }, nil, metrics)
	life := &lifecycle{timeout: patience}
	life.add("redis", func(context.Context) error { return client.Close() })
	life.background("the limiter", limiter.Run)
	t.Cleanup(func() {
		if err := life.stop(); err != nil {
			t.Error(err)
		}
	})
	testkit.NoError(t, limiter.Await(t.Context()))
	return limiter
}
