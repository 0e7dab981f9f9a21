package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// What was delivered is remembered for longer than its message can be delivered again and be sent.
func TestRetention(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ streamAge, maxAge, want time.Duration }{
		{0, time.Hour, 2 * time.Hour},
		{24 * time.Hour, time.Hour, 25 * time.Hour},
		{time.Hour, 24 * time.Hour, 25 * time.Hour},
		{24 * time.Hour, 0, 25 * time.Hour},
		{0, 0, 7*24*time.Hour + time.Hour},
		{time.Minute, time.Minute, time.Hour + time.Minute},
	} {
		if got := retention(test.streamAge, test.maxAge); got != test.want {
			t.Errorf("for a stream's age of %v and a maximum age of %v it is %v, want %v", test.streamAge, test.maxAge, got, test.want)
		}
	}
}

// The error that an orderly end leaves behind is dropped, and no other one.
func TestEnded(t *testing.T) {
	t.Parallel()

	other, cause := errors.New("other"), errors.New("cause")
	over, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	for name, test := range map[string]struct {
		ctx  context.Context
		err  error
		want error
	}{
		"no error, no end":              {context.Background(), nil, nil},
		"no error":                      {over, nil, nil},
		"the context's":                 {over, cause, nil},
		"the context's, wrapped":        {over, fmt.Errorf("waiting: %w", cause), nil},
		"another one":                   {over, other, other},
		"the context's, before its end": {context.Background(), cause, cause},
		"of cancelling, with a cause":   {over, context.Canceled, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ended(test.ctx, test.err); !errors.Is(got, test.want) || (got == nil) != (test.want == nil) {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	parse := func(text string) limits.Limits {
		return testkit.Must(limits.Parse(text))(t)
	}
	rules, faults := limits.ParseRules("payments.*=5/10m,security=none")
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	tree := testkit.Must(limits.NewTree(limits.Plan{Global: parse("100/30m"), Category: parse("10/30m"), Rules: rules}))(t)
	for policy, closed := range map[string]bool{config.FailureHold: false, config.FailureLocal: false, config.FailureOpen: false, config.FailureClosed: true} {
		got := levels(tree, policy)
		for _, level := range []string{"global", "category", "payments.*"} {
			if !slices.Contains(got, level) {
				t.Errorf("%s: the levels %q lack %s", policy, got, level)
			}
		}
		if slices.Contains(got, throttle.LevelClosed) != closed {
			t.Errorf("%s: the levels are %q, with the policy's own: %t", policy, got, closed)
		}
	}
}
