//go:build !nodev

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

func TestRoundedUp(t *testing.T) {
	t.Parallel()
	for wait, want := range map[time.Duration]time.Duration{
		1: time.Second, time.Second - 1: time.Second, time.Second: time.Second, time.Second + 1: 2 * time.Second,
		59*time.Second + 500*time.Millisecond: time.Minute, 30 * time.Minute: 30 * time.Minute,
	} {
		testkit.Equal(t, roundedUp(wait), want, "%v is shown as", wait)
	}
}

// The line of totals says what came, what was sent and dropped, by limit, and when the next slot opens.
func TestTotals(t *testing.T) {
	limiter := newTestLimiter(t, "1/1h")
	counted := newTally()
	metrics := counted.over(telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 10, Levels: []string{"global", "category"}}))
	plain, coloured := painter{}, painter{colour: true}
	if got, want := counted.line(plain, limiter), "totals  events 0  sent 0  dropped 0  slots are free"; got != want {
		t.Errorf("at first: %q, want %q", got, want)
	}

	ask := func(id string) throttle.Request {
		return throttle.Request{ID: "payments " + id, Category: "payments", Cost: 1, Message: throttle.Message{Stream: "EVENTS", Stored: time.Now()}}
	}
	testkit.Must(limiter.Decide(t.Context(), []throttle.Request{ask("first"), ask("second")}))(t)
	metrics.Event("payments", string(consume.Sent), 3)
	metrics.Event("payments", string(consume.Dropped), 5)
	metrics.Event("payments", string(consume.Dead), 1)
	metrics.Dropped("payments", "global", 1)
	metrics.Dropped("payments", "category", 4)
	line := counted.line(plain, limiter)
	prefix := "totals  events 9  sent 3  dropped 5 (category 4, global 1)  next free slot (category) in "
	rest, found := strings.CutPrefix(line, prefix)
	if wait, err := time.ParseDuration(rest); !found || err != nil || wait <= 0 || wait > time.Hour {
		t.Errorf("%q, want %q and at most an hour", line, prefix)
	}
	line = counted.line(coloured, limiter)
	for _, want := range []string{"\x1b[1mtotals\x1b[0m", "\x1b[32msent 3\x1b[0m", "\x1b[33mdropped 5 (category 4, global 1)\x1b[0m"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q, want %q in it", line, want)
		}
	}
}

func TestPainter(t *testing.T) {
	t.Parallel()
	for colour, want := range map[bool]string{true: "\x1b[2mtext\x1b[0m", false: "text"} {
		testkit.Equal(t, (painter{colour}).faint("text"), want, "colour %t", colour)
	}
	file := testkit.Must(os.Create(t.TempDir() + "/file"))(t)
	defer func() { _ = file.Close() }()
	for _, out := range []io.Writer{&bytes.Buffer{}, file} {
		if isTerminal(out) {
			t.Errorf("a %T is taken for a terminal", out)
		}
	}
}

// Lines of several writers do not run into each other.
func TestLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := &lines{out: &out}
	var writers sync.WaitGroup
	for range 10 {
		writers.Go(func() {
			for range 100 {
				_, _ = io.WriteString(l, "a whole line\n")
			}
		})
	}
	writers.Wait()
	if out.String() != strings.Repeat("a whole line\n", 1000) {
		t.Error("lines have run into each other")
	}
}

// The command that needs nothing installed: with a storm it prints notifications and totals, says how to publish and where
// the metrics are, and ends in good order.
func TestDev(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	setenv(t, map[string]string{"GLOBAL_LIMIT": "5/1h", "CATEGORY_LIMIT": "2/1h"})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const totals = "  sent 5  dropped "
	out := ""
	for length := 2500 * time.Millisecond; length < patience && !strings.Contains(out, totals); length *= 3 { // a busy machine starts later
		var err error
		if out, _, err = execute(ctx, "", "dev", "--storm", "200", "--for", length.String()); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		"notifier dev limits: global 5/1h, each category 2/1h", "publish an event:", "publish payments", "/metrics",
		"\ntotals  events ", totals, "global ", "next free slot (global) in ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not print %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "\x1b[") {
		t.Errorf("it prints colours, though not on a terminal:\n%s", out)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}
