package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// crowdedStatus has long and hostile texts, and more rows than a screen.
func crowdedStatus() status.Status {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	next := now.Add(90 * time.Minute)
	long := strings.Repeat("long\x1b[2J\n", 40)
	s := status.Status{
		At: now, Revision: "7:12",
		Workers: []status.Worker{{Name: long, Version: long, Settings: map[string]string{"NOTIFIER_SHADOW": "true"}, Up: 50 * time.Hour, NotReady: long, InHand: 1 << 20,
			PerMinute: status.Rates{Sent: 1 << 20, Dropped: 1 << 20, Delayed: 1 << 20, Folded: 1 << 20, Other: 1 << 20}}},
		Mismatches:  []status.Mismatch{{Variable: "NOTIFIER_GLOBAL_LIMIT", Values: map[string][]string{"1/1m": {long}, "": {"b"}}}},
		Backlog:     status.Backlog{InRoom: map[string]int64{"slot": 3, "pair": 0, "channel": 2}, Bytes: 1536, Capacity: 1 << 30},
		Redis:       status.Redis{Role: "primary", Version: "7.2.4", SlowestCall: 3 * time.Millisecond},
		NATS:        status.NATS{Server: long, Version: "2.12.0", Cluster: long, Replicas: 3, Lagging: 1},
		Channels:    []status.Channel{{Name: long, PausedUntil: next, Rate: 0.25, LastDigest: now.Add(-time.Minute)}, {Name: "#open", Queue: new(int64(1 << 20)), Held: 1 << 20}, {Name: "#paced", PacedUntil: next}},
		Budgets:     []status.Budget{{Name: "workspace", Limit: "5/1s", Used: 4, Size: 5, Waiting: 12, PausedUntil: next}, {Name: "updates", Limit: "50/1m", Waiting: 3}, {Name: "lookups", Limit: "50/1m", Waiting: 2}},
		Changes:     []status.Change{{Path: long, Limit: long, By: long, Shadow: true, At: now}},
		DeadLetters: []status.DeadLetter{{Reason: "bad_json", Count: 7}},
		Unknown:     []string{long},
	}
	for range 3 * mostRows {
		s.Limits = append(s.Limits, status.Limit{Use: limits.Use{Level: long, Path: long, Limit: "10/30m", Used: 10, Size: 10, Next: &next}, PerMinute: 7})
	}
	return s
}

// The output is bounded in width and in rows of each table, and has no escape sequences.
func TestStatusFitsALine(t *testing.T) {
	t.Parallel()
	shown := statusText(crowdedStatus(), statusWidth)
	for line := range strings.Lines(shown) {
		width := utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))
		testkit.Check(t, width <= statusWidth, "got a line of %d characters, want %d at most: %s", width, statusWidth, line)
	}
	testkit.Check(t, !strings.ContainsRune(shown, '\x1b'), "got an escape sequence, want none")
	testkit.Contains(t, "status", shown,
		"2d2h", "not ready", "1048576", "settings differ: NOTIFIER_GLOBAL_LIMIT is", "not set on b", "shadow mode: limits deny no event", "2 for channel, 3 for slot;", "1.5 KiB of 1 GiB",
		"slowest call of the last minute 3ms", "replicas: 3 (1 lagging)", "7 bad_json", "10 of 10", "in 1h30m", "not shown: limits: 40;",
		"paused for 1h30m", "at its pace for 1h30m", "4 of 5/1s", "12 channels", "3 updates", "0.25/s", "1m0s ago", "shadow long", "not known: long", "limits of revision 12",
	)
}

// A problem that many workers have for the same reason is one line.
func TestStatusOfManyWorkersWithOneProblem(t *testing.T) {
	t.Parallel()
	var s status.Status
	for i := range 40 {
		s.Workers = append(s.Workers, status.Worker{Name: fmt.Sprint("pod-", i), NotReady: "redis is gone"})
	}
	s.Workers[7].NotReady, s.Workers[8].NotReady = "nats is gone", "nats is gone"
	shown := statusText(s, statusWidth)
	testkit.Contains(t, "status", shown, "not ready: pod-0 and 37 more: redis is gone\n", "not ready: pod-7, pod-8: nats is gone\n")
	testkit.Equal(t, strings.Count(shown, "is gone"), 2, "lines about the problems")
}

// On a terminal the status fits its height and width. What is faulty or full is shown first, and the last line says what is left out.
func TestStatusFitsATerminal(t *testing.T) {
	t.Parallel()
	s := crowdedStatus()
	s.Workers = append(s.Workers, status.Worker{Name: "second", Ready: true, Failing: "connection refused"}, status.Worker{Name: "third", NotReady: "redis is gone"})
	s.Suppressed = []status.Suppressed{{Category: "payments", Level: "category", Count: 1204}}
	for _, size := range []struct {
		width, height int
		want          []string
	}{
		{200, 200, []string{"second", "third", "#open", "in 1h30m", "1204", "not shown: limits: 40;"}},
		{80, 24, []string{"not ready: third: redis is gone", "failing: second: connection refused", "SUPPRESSED", "10 of 10", "not shown: "}},
		{60, 12, []string{"not ready: long", "10 of 10", "not shown: "}},
		{20, 3, []string{"not shown: "}},
		{1, 1, nil},
	} {
		rows := StatusRows(s, size.width, size.height)
		testkit.Check(t, len(rows) <= size.height, "got %d lines on a terminal of %d", len(rows), size.height)
		for _, row := range rows {
			width := utf8.RuneCountInString(row)
			testkit.Check(t, width <= size.width, "got a line of %d characters on a terminal of %d: %s", width, size.width, row)
		}
		testkit.Contains(t, "status", strings.Join(rows, "\n"), size.want...)
	}
	for height := range 40 { // full limits stand before workers that are ready, and these before limits beyond the first
		shown := strings.Join(StatusRows(s, 100, height+1), "\n")
		if strings.Contains(shown, "\nsecond") && !strings.Contains(shown, "10 of 10") {
			t.Errorf("got in %d lines a sound worker and no full limit:\n%s", height+1, shown)
		}
	}
}

// Two long paths that begin alike differ on a terminal. Without a terminal they are whole.
func TestStatusOfLongPaths(t *testing.T) {
	t.Parallel()
	const begin = "infrastructure.kubernetes.europe-west.production.cluster-seven.namespace-payments"
	var s status.Status
	for _, end := range []string{".refunds", ".orders"} {
		s.Limits = append(s.Limits, status.Limit{Use: limits.Use{Path: begin + end, Level: "infrastructure.kubernetes.*.production", Limit: "10/30m", Used: 10, Size: 10}})
	}
	testkit.Contains(t, "status for a file", statusText(s, 0), begin+".refunds ", begin+".orders ", "infrastructure.kubernetes.*.production")
	testkit.Contains(t, "status on a terminal", statusText(s, 80), "infras", "…s.refunds ", "…ts.orders ", "10 of 10")
}

// A narrow terminal shows the first columns whole: a number without its middle is another number.
func TestStatusOnANarrowTerminal(t *testing.T) {
	t.Parallel()
	s := status.Status{Limits: []status.Limit{{Use: limits.Use{Path: "payments", Level: "category", Limit: "1000/30m", Used: 31, Size: 1000}}}}
	testkit.Contains(t, "status on a narrow terminal", statusText(s, 40), "payments  1000/30m  31 of 1000  now")
}

func TestStatusShowsTheFullestLimits(t *testing.T) {
	t.Parallel()
	var s status.Status
	for range 9 {
		s.Limits = append(s.Limits, status.Limit{Use: limits.Use{Path: "payments", Level: "category", Limit: "10/30m", Used: 1, Size: 10}})
	}
	shown := statusText(s, statusWidth)
	testkit.Equal(t, strings.Count(shown, "1 of 10"), fewLimits, "limits that are shown")
	testkit.Contains(t, "status", shown, "no worker answers")
}

// A user without the right to ask the workers reads why none answers.
func TestStatusNamesTheMissingRight(t *testing.T) {
	natsServer := servertest.StartNATSProcess(t, `jetstream: enabled, authorization { users: [ { user: u, password: p, permissions { publish { deny: "$SRV.>" } } } ] }`)
	testkit.SetSettings(t, map[string]string{"NATS_URL": natsServer.URL, "NATS_USER": "u", "NATS_PASSWORD": "p", "REDIS_URL": servertest.StartRedis(t).URL()})
	requireFailure(t, Failure, "status", "no worker answers", `Permissions Violation for Publish to "$SRV.`)
}

// A backlog that did not answer has no numbers, which would all be 0.
func TestStatusWithoutTheBacklog(t *testing.T) {
	t.Parallel()
	shown := statusText(status.Status{NATS: status.NATS{Server: "nats-1", Version: "2.12.0"}, Unknown: []string{"backlog: timeout"}}, statusWidth)
	testkit.Contains(t, "status", shown, "not known: backlog: timeout", "nats     nats-1 2.12.0\n")
	testkit.Equal(t, strings.Contains(shown, "not delivered"), false, "the status has a backlog")
}

// A line never ends between the number and the unit of a size, however narrow the terminal is.
func TestStatusKeepsSizesTogether(t *testing.T) {
	t.Parallel()
	s := status.Status{
		Backlog: status.Backlog{Bytes: 3 << 20, Capacity: 1 << 30}, NATS: status.NATS{Server: "nats-1", Version: "2.12.0", Bytes: 7 << 10},
		Redis: status.Redis{Memory: 5 << 20, MaxMemory: 2 << 30, SlowestCall: time.Millisecond},
	}
	for width := 20; width <= statusWidth; width++ {
		shown := statusText(s, width)
		testkit.Contains(t, fmt.Sprintf("status of %d columns", width), shown, "3 MiB", "1 GiB", "7 KiB", "5 MiB", "2 GiB")
	}
}

// Workers of one host have different names, what is suppressed is listed, a next slot is never empty, and what Redis does not report is left out.
func TestStatusTexts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	next := now.Add(4 * time.Minute)
	shown := statusText(status.Status{
		At: now,
		Workers: []status.Worker{
			{Name: "host", Process: 4711, Started: now.Add(3 * time.Hour), Up: time.Hour, Ready: true, PerMinute: status.Rates{Delayed: 3},
				Journal: &journal.Health{Error: "no responders", Complete: now.Add(-3 * time.Second)}},
			{Name: "host", Process: 4712, Started: now.Add(-3 * time.Hour), Up: time.Hour, NotReady: "redis is gone"},
		},
		Backlog: status.Backlog{Waiting: 7, Unacked: 2, Paused: []stream.Pause{{Stream: "EVENTS", Consumer: "notifier", Until: next}}},
		Redis:   status.Redis{SlowestCall: 3 * time.Millisecond},
		Channels: []status.Channel{
			{Name: "#idle", Rate: 1, Queue: new(int64(0))}, {Name: "#slow", Rate: 1.0 / 60, PacedUntil: now.Add(12 * time.Second), Queue: new(int64(4)), Held: 2},
			{Name: "#busy", Rate: 1, PacedUntil: now.Add(-time.Second), Queue: new(int64(90)), Held: 8}, {Name: "#paused", PausedUntil: next, PacedUntil: next},
		},
		Limits: []status.Limit{
			{Use: limits.Use{Path: "opens", Limit: "4/1h", Used: 4, Size: 4, Next: &next}}, {Use: limits.Use{Path: "puzzles", Limit: "4/1h", Used: 4, Size: 4}},
			{Use: limits.Use{Path: "muted", Limit: "0/1h"}}, {Use: limits.Use{Path: "free", Limit: "4/1h", Used: 3, Size: 4}},
		},
		Suppressed: []status.Suppressed{
			{Category: "opens", Level: "category", Count: 1204, Since: now.Add(-time.Hour), Until: next}, {Category: "puzzles", Level: "global", Count: 2, Since: now.Add(-991 * time.Millisecond)},
			{Category: "muted", Level: "muted", Count: 3, Since: now, Never: true}, {Category: "disks", Level: "disks@key", Count: 4, Since: now},
			{Category: "alerts", Level: "unpaired", Count: 5, Since: now},
		},
	}, statusWidth)
	var words []string
	for line := range strings.Lines(shown) {
		words = append(words, strings.Join(strings.Fields(line), " "))
	}
	for _, want := range []string{
		"paused: consumer notifier of stream EVENTS delivers nothing until 2026-03-01T12:04:00Z; nats", "consumer resume EVENTS notifier",
		"not ready: host/4712: redis is gone", "opens 4/1h 4 of 4 in 4m0s 0", "puzzles 4/1h 4 of 4 not known 0", "muted 0/1h 0 of 0 never 0",
		"free 4/1h 3 of 4 now 0", "SUPPRESSED EVENTS SINCE NEXT SLOT BY", "opens 1204 1h0m ago in 4m0s category", "puzzles 2 0s ago not known global",
		"muted 3 0s ago never muted", "disks 4 0s ago of each key disks@key", "alerts 5 0s ago - unpaired",
		"journal: host/4711: not written for 3s: no responders",
		"backlog 7 not delivered, 2 delivered and unacknowledged; in the room: none; stream 0 B", "redis slowest call of the last minute 3ms",
		"WORKER STATE SENT/MIN DROPPED DELAYED FOLDED OTHER IN HAND UP VERSION", "host/4712 not ready 0 0 0 0 0 0 1h0m", "host/4711 ready 0 0 3 0 0 0 1h0m",
		"CHANNEL STATE QUEUE HELD TAKEN/MIN RATE LAST DIGEST", "#idle open 0 0 0 1/s none", "#slow at its pace for 12s 4 2 0 0.0167/s none",
		"#busy at its pace 90 8 0 1/s none", "#paused paused for 4m0s not known 0 0 any rate none",
	} {
		testkit.Check(t, slices.Contains(words, want), "got\n%s\nwant the line %q", shown, want)
	}
}
