package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/cli"
	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// ended drops the errors of a context that is over, and no other error.
func TestEnded(t *testing.T) {
	t.Parallel()
	other, cause := errors.New("other"), errors.New("cause")
	over, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	for _, test := range []struct {
		ctx  context.Context
		err  error
		want error
	}{
		{over, cause, nil},
		{over, fmt.Errorf("waiting: %w", cause), nil},
		{over, other, other},
		{context.Background(), cause, cause},
		{over, fmt.Errorf("asking redis: %w", context.Canceled), nil},
		{context.Background(), context.Canceled, context.Canceled},
	} {
		if got := ended(test.ctx, test.err); got != test.want { //nolint:errorlint // the same error, not one that wraps it
			t.Errorf("of %v, with the context at %v, is left %v, want %v", test.err, test.ctx.Err(), got, test.want)
		}
	}
}

// The levels that can deny are the limits, the failure policy, pairs and the room.
func TestLevels(t *testing.T) {
	t.Parallel()
	rules, faults := limits.ParseRules("payments.*=5/10m,security=none")
	testkit.Equal(t, len(faults), 0, "faults of the rules")
	perHour := testkit.Must(limits.Parse("100/1h"))(t)
	tree := testkit.Must(limits.NewTree(limits.Plan{Global: perHour, Category: perHour, Rules: rules}))(t)
	named := []string{"global", "category", "payments.*"}
	others := []string{limits.LevelUnpaired, limits.LevelMute, limits.LevelRoom, limits.LevelOperator}
	testkit.EqualSlices(t, levels(tree, throttle.Local), slices.Concat(named, others), "levels")
	testkit.EqualSlices(t, levels(tree, throttle.Closed), slices.Concat(named, []string{limits.LevelClosed}, others), "levels of a closed policy")
}

// A worker that starts may be asked for its report at once. Nothing changes the report's sources any more: the race detector would see it.
func TestReportOfAStartingWorker(t *testing.T) {
	n := servertest.StartNATS(t)
	testkit.SetSettings(t, map[string]string{"SINK": "console", "NATS_URL": n.URL})
	settings, _, err := cli.Settings(config.Options{})
	testkit.NoError(t, err)
	w := newWorker(settings, setup.SinkOptions{Console: io.Discard}, testkit.NewLog(t).Logger())
	w.report.Ready, w.report.Failing = func() error { return nil }, func() error { return nil }
	metrics := newMetrics(settings, testkit.Must(limits.NewTree(settings.Limits.Plan()))(t))
	conn, reported := servertest.Connect(t, n.URL), make(chan struct{})
	go func() {
		defer close(reported)
		for reports := 0; reports == 0 && t.Context().Err() == nil; {
			answers, _ := fleet.Ask(t.Context(), conn, settings.Redis.Prefix)
			reports = len(answers)
		}
	}()
	testkit.Must(w.connect(t.Context(), metrics))(t)
	defer func() { testkit.NoError(t, w.life.stop()) }()
	<-reported
}
