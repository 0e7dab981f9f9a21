package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// crowdedStatus has long and hostile texts, and more rows than a screen.
func crowdedStatus() status.Status {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	next := now.Add(90 * time.Minute)
	long := strings.Repeat("long\x1b[2J\n", 40)
	s := status.Status{
		At: now, Revision: "7:12",
		Workers: []status.Worker{{Name: long, Version: long, Started: now.Add(-50 * time.Hour), NotReady: long, InHand: 1 << 20,
			PerMinute: status.Rates{Sent: 1 << 20, Dropped: 1 << 20, Waiting: 1 << 20, Other: 1 << 20}}},
		Mismatches:  []status.Mismatch{{Variable: "NOTIFIER_GLOBAL_LIMIT", Values: map[string][]string{"1/1m": {long}, "": {"b"}}}},
		Backlog:     status.Backlog{InRoom: map[string]int64{"slot": 3, "pair": 0, "channel": 2}, Bytes: 1536, Capacity: 1 << 30},
		Redis:       status.Redis{Role: "primary", Version: "7.2.4", SlowestCall: 3 * time.Millisecond},
		NATS:        status.NATS{Server: long, Version: "2.12.0", Cluster: long, Replicas: 3, Lagging: 1},
		Channels:    []status.Channel{{Name: long, PausedUntil: next, Rate: 0.25, LastDigest: now.Add(-time.Minute)}, {Name: "#open"}},
		Changes:     []status.Change{{Path: long, Limit: long, By: long, Shadow: true, At: now}},
		DeadLetters: []status.DeadLetter{{Reason: "bad_json", Count: 7}},
		Unknown:     []string{long},
	}
	for range 3 * mostRows {
		s.Limits = append(s.Limits, status.Limit{Level: long, Path: long, Limit: "10/30m", Used: 10, Size: 10, PerMinute: 7, Next: &next})
	}
	return s
}

// The output is bounded in width and height, and has no escape sequences.
func TestStatusFitsAScreen(t *testing.T) {
	t.Parallel()
	shown := statusText(crowdedStatus())
	for line := range strings.Lines(shown) {
		line = strings.TrimSuffix(line, "\n")
		if width := utf8.RuneCountInString(strings.TrimRight(line, " ")); width > 110 && !strings.HasPrefix(line, strings.Repeat("long", 3)) {
			t.Errorf("got a line of %d characters, want 110 at most: %s", width, line)
		}
	}
	if strings.ContainsRune(shown, '\x1b') {
		t.Error("got an escape sequence, want none")
	}
	testkit.Contains(t, "status", shown,
		"2d2h", "not ready", "1048576", "settings differ: NOTIFIER_GLOBAL_LIMIT is", "not set on b", "2 channel, 3 slot;", "1.5 KiB of 1 GiB",
		"slowest call of the last minute 3ms", "replicas: 3 (1 lagging)", "7 bad_json", "10 of 10", "in 1h30m", "and 40 more", "paused for 1h30m",
		"0.25/s", "1m0s ago", "shadow long", "not known: long", "limits of revision 12",
	)
}

// A status is drawn over the last one and clears the rest of it.
func TestRedrawnStatus(t *testing.T) {
	t.Parallel()
	drawn := redrawn(statusText(crowdedStatus()))
	if !strings.HasPrefix(drawn, "\x1b[H") || !strings.HasSuffix(drawn, "\x1b[J") {
		t.Errorf("got %q, want it from the top, and the rest cleared", drawn)
	}
	testkit.Equal(t, strings.Count(drawn, "\n\x1b[K"), strings.Count(drawn, "\n"), "lines that begin with clearing what was there")
}

func TestStatusShowsTheFullestLimits(t *testing.T) {
	t.Parallel()
	var s status.Status
	for range 9 {
		s.Limits = append(s.Limits, status.Limit{Path: "payments", Level: "category", Limit: "10/30m", Used: 1, Size: 10})
	}
	shown := statusText(s)
	testkit.Equal(t, strings.Count(shown, "1 of 10"), fewLimits, "limits that are shown")
	testkit.Contains(t, "status", shown, "no worker answers")
}
