package page

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// outline prints the paths of a list in one line, each with the numbers of its limits and changes. A bar stands before the folded paths.
func outline(l limitList) string {
	var all []string
	for i, p := range slices.Concat(l.First, l.Rest) {
		if i == len(l.First) {
			all = append(all, "|")
		}
		text := fmt.Sprintf("%s:%d", p.Path, len(p.Limits))
		if len(p.Changes) > 0 {
			text += fmt.Sprintf("+%d", len(p.Changes))
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func TestLimits(t *testing.T) {
	t.Parallel()
	used := func(path string, n, size int64) status.Limit {
		return status.Limit{Use: limits.Use{Path: path, Limit: fmt.Sprintf("%d/1m", size), Used: n, Size: size}}
	}
	tests := []struct {
		name    string
		limits  []status.Limit
		changes []status.Change
		filter  string
		want    string
	}{
		{"nothing", nil, nil, "", ""},
		{"the global one and the fullest first", []status.Limit{used("", 1, 10), used("a", 1, 10), used("b", 9, 10), used("c", 5, 10)}, nil, "", ":1 b:1 c:1 a:1"},
		{"a path below another one", []status.Limit{used("a", 1, 10), used("a.x", 10, 10), used("b", 9, 10)}, nil, "", "a.x:1 b:1 a:1"},
		{"two limits of one path", []status.Limit{used("a", 1, 10), used("b", 2, 10), used("a", 4, 5)}, nil, "", "a:2 b:1"},
		{"no slots", []status.Limit{used("a", 9, 10), used("b", 0, 0)}, nil, "", "b:1 a:1"},
		{"filtered, with what is above", []status.Limit{used("", 1, 9), used("a", 1, 9), used("a.x", 1, 9), used("b", 1, 9)}, nil, "a.x", ":1 a:1 a.x:1"},
		{"filtered away", []status.Limit{used("", 1, 9), used("a", 1, 9)}, nil, "x", ""},
		{"muted and not used", []status.Limit{used("a", 1, 9)}, []status.Change{{Path: "debug.noise"}}, "", "a:1 debug.noise:0+1"},
		{"the global one changed", []status.Limit{used("", 1, 9), used("a", 1, 9)}, []status.Change{{Path: "global"}}, "", ":1+1 a:1"},
		{"the global one changed and not used", []status.Limit{used("a", 1, 9)}, []status.Change{{Path: "global"}, {Path: "global", Shadow: true}}, "", ":0+2 a:1"},
	}
	for _, test := range tests {
		testkit.Equal(t, outline(listLimits(test.limits, test.changes, test.filter)), test.want, "%s", test.name)
	}
	var many []status.Limit
	for i := range 10_000 {
		many = append(many, used(fmt.Sprintf("c%d", i), int64(i), 10_000))
	}
	cut := listLimits(many, nil, "")
	testkit.Equal(t, len(cut.First), topLimits, "paths that are shown at once")
	testkit.Equal(t, len(cut.First)+len(cut.Rest)+cut.Hidden, 10_000, "paths")
	testkit.Equal(t, len(cut.Rest), maxLimits-topLimits, "paths that are folded away")
	testkit.Equal(t, cut.First[0].Path, "c9999", "the fullest")
	testkit.Equal(t, len(listLimits(many, nil, "c99").First), 111, "paths that the reader asks for")
}

// A minute has its width, the first one too. A minute without events is a step at the bottom, and before the first minute nothing is known.
func TestChart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)
	minute := func(ago int, sent, dropped int64) status.Minute {
		return status.Minute{At: now.Truncate(time.Minute).Add(time.Duration(-ago) * time.Minute), Sent: sent, Dropped: dropped}
	}
	for _, test := range []struct {
		name    string
		minutes []status.Minute
		top     int64
		sent    string
		dropped string
		sum     int64
	}{
		{"nothing", nil, 2, "", "", 0},
		{"the first minute", []status.Minute{minute(0, 2, 0)}, 2, "M590 0.0V0.0H600", "M590 120.0V120.0H600", 2},
		{"a gap", []status.Minute{minute(2, 5, 10), minute(0, 10, 0)}, 10, "M570 60.0V60.0H580V120.0H590V0.0H600", "M570 0.0V0.0H580V120.0H590V120.0H600", 15},
		{"nothing lately", []status.Minute{minute(1, 1, 0)}, 2, "M580 60.0V60.0H590V120.0H600", "M580 120.0V120.0H590V120.0H600", 1},
		{"more than an hour ago", []status.Minute{minute(60, 9, 9), minute(59, 30, 0)}, 40, "M0 30.0V30.0H10V120.0H20", "M0 120.0V120.0H10V120.0H20", 30},
	} {
		state := status.Status{At: now, Minutes: test.minutes, Workers: []status.Worker{{}, {}}}
		if n := len(test.minutes); n > 0 && test.minutes[n-1].At.Equal(now.Truncate(time.Minute)) {
			for i := range state.Workers { // half of the last sixty seconds each
				state.Workers[i].PerMinute = status.Rates{Sent: test.minutes[n-1].Sent / 2, Dropped: test.minutes[n-1].Dropped / 2}
			}
		}
		c := draw(state)
		testkit.Equal(t, c.Top, test.top, "%s: the top of the axis", test.name)
		testkit.Equal(t, strings.HasPrefix(c.Lines[0].Path, test.sent), true, "%s: sent %s", test.name, c.Lines[0].Path)
		testkit.Equal(t, strings.HasPrefix(c.Lines[1].Path, test.dropped), true, "%s: dropped %s", test.name, c.Lines[1].Path)
		testkit.Equal(t, c.Lines[0].Sum, test.sum, "%s: sent in all", test.name)
		testkit.Equal(t, test.sent == "", c.Lines[0].Path == "", "%s: there is no line", test.name)
	}
	// Half a minute ago a minute began. The last sixty seconds have three of the events of the minute before.
	overlap := draw(status.Status{
		At: now, Minutes: []status.Minute{minute(1, 6, 0), minute(0, 4, 0)}, Workers: []status.Worker{{PerMinute: status.Rates{Sent: 7}}},
	})
	testkit.Equal(t, overlap.Lines[0].Sum, 10, "sent in all, of two minutes")
	testkit.Equal(t, overlap.Lines[0].Last, 7, "sent in the last sixty seconds")
	for n, want := range map[int64]int64{0: 2, 2: 2, 3: 4, 5: 10, 11: 20, 590: 1000, 1 << 62: 1 << 62} {
		testkit.Equal(t, roundUp(n), want, "the top of an axis for %d", n)
	}
}

// The page never says "normal" while something keeps all events from being sent.
func TestState(t *testing.T) {
	t.Parallel()
	now := time.Now()
	worker := status.Worker{Ready: true}
	for _, test := range []struct {
		name   string
		change func(*status.Status)
		want   string
		isBad  bool
	}{
		{"nothing", func(*status.Status) {}, "normal", false},
		{"the global limit", func(s *status.Status) {
			s.Limits = []status.Limit{{Use: limits.Use{Limit: "100/30m", Used: 100, Size: 100}}}
		}, "the global limit 100/30m is full; 1 limit full", true},
		{"a category", func(s *status.Status) { s.Limits = []status.Limit{{Use: limits.Use{Path: "a", Used: 1, Size: 1}}} }, "1 limit full", false},
		{"a channel", func(s *status.Status) { s.Channels = []status.Channel{{PausedUntil: now.Add(time.Minute)}} }, "1 channel paused", false},
		{"a consumer", func(s *status.Status) { s.Backlog.Paused = []stream.Pause{{Consumer: "notifier"}} }, "consumer notifier is paused", true},
		{"everything", func(s *status.Status) { s.Mutes = []status.Mute{{Path: ">", Until: now.Add(time.Minute)}} }, "all events are muted", true},
		{"nearly everything", func(s *status.Status) {
			s.Mutes = []status.Mute{{Path: ">", Except: "critical", Until: now.Add(time.Minute)}}
		}, "all events are muted except critical", true},
		{"a path", func(s *status.Status) {
			s.Mutes = []status.Mute{{Path: "a", Until: now.Add(time.Minute)}, {Path: "a", Every: "daily 01:00-02:00 UTC"}, {Path: ">", Every: "Tue 01:00-02:00 UTC"}}
		}, "1 path muted", false},
		{"no worker", func(s *status.Status) { s.Workers = nil }, "no worker answers", true},
		{"a worker", func(s *status.Status) { s.Workers = append(s.Workers, status.Worker{}) }, "1 of 2 workers not ready", true},
		{"slack", func(s *status.Status) { s.Workers[0].Failing = "connection refused" }, "1 of 1 worker failing", true},
		{"the journal", func(s *status.Status) { s.Workers[0].Journal = &journal.Health{Error: "no responders"} }, "1 of 1 worker cannot write the journal", true},
		{"a journal that is written again", func(s *status.Status) { s.Workers[0].Journal = &journal.Health{Lost: 7} }, "normal", false},
		{"shadow mode", func(s *status.Status) { s.Workers[0].Settings = map[string]string{"NOTIFIER_SHADOW": "true"} }, "shadow mode, limits deny no event", false},
		{"shadow mode during a rollout", func(s *status.Status) {
			s.Workers = append(s.Workers, status.Worker{Ready: true, Settings: map[string]string{"NOTIFIER_SHADOW": "true"}})
		}, "shadow mode, limits deny no event on 1 of 2 workers", false},
		{"redis", func(s *status.Status) { s.Workers[0].Degraded = "local" }, "degraded: Redis is unavailable, policy local", true},
	} {
		s := status.Status{At: now, Workers: []status.Worker{worker}}
		test.change(&s)
		state, isBad := stateOf(s)
		testkit.Equal(t, state, test.want, "%s", test.name)
		testkit.Equal(t, isBad, test.isBad, "%s is bad", test.name)
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		testkit.Equal(t, count(n), want, "count")
	}
}
