package dev

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// gathered returns the counts of metrics with the events of two categories.
func gathered(t *testing.T) (counts, *telemetry.Metrics) {
	t.Helper()
	m := telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 10, Levels: []string{"global", "category"}})
	m.Events.Event("payments", string(journal.Sent), 3)
	m.Events.Event("payments", string(journal.Dropped), 5)
	m.Events.Dropped("payments", "global", 1, "")
	m.Events.Dropped("payments", "category", 4, "")
	m.Events.Event("deploys", string(journal.Dead), 2)
	m.Losses.DeadLetter("bad_json")
	m.Losses.DeadLetter("bad_json")
	m.Waiting.RoomPending("slot", 1, nil)
	m.Waiting.RoomPending("channel", 1, nil)
	return countsOf(m.Registry()), m
}

// statusOf is a status in which the limits of some paths are full.
func statusOf(full ...string) status.Status {
	s := status.Status{Workers: []status.Worker{{Name: "host", Ready: true}}}
	for _, path := range full {
		s.Limits = append(s.Limits, status.Limit{Use: limits.Use{Path: path, Limit: "6/30s", Used: 6, Size: 6}})
	}
	s.Limits = append(s.Limits, status.Limit{Use: limits.Use{Path: "deploys", Limit: "6/30s", Used: 5, Size: 6}})
	return s
}

func TestTotals(t *testing.T) {
	t.Parallel()
	c, m := gathered(t)
	testkit.EqualSlices(t, c.deadSince(counts{}), []string{"bad_json", "bad_json"}, "dead letters")
	m.Losses.DeadLetter("bad_category")
	later := countsOf(m.Registry())
	testkit.EqualSlices(t, later.deadSince(c), []string{"bad_category"}, "dead letters since then")
	testkit.Equal(t, c.totals(screen.Colours{}), "events 10  sent 3  dropped 5 (category 4, global 1)  duplicate 0  dead 2  expired 0  folded 0  waiting 2", "totals")
	testkit.Equal(t, c.totals(screen.Colours{On: true}), "events 10  \x1b[32msent 3\x1b[0m  \x1b[33mdropped 5 (category 4, global 1)\x1b[0m"+
		"  duplicate 0  dead 2  expired 0  folded 0  waiting 2", "totals in colours")
	for want, s := range map[string]status.Status{
		"slots are free":                     statusOf(),
		"full: global":                       statusOf("payments", ""),
		"full: payments, errors":             statusOf("payments", "errors", "errors"),
		"full: a, b, c and 2 more":           statusOf("a", "b", "c", "d", "e"),
		"the limits cannot be asked":         {},
		"the use of the limits is not known": {Workers: []status.Worker{{}}, Unknown: []string{status.LimitsPart + ": no worker has read their use from Redis"}},
	} {
		testkit.Equal(t, slots(s), want, "slots")
	}
}

// Totals are printed when a count changes and when a limit becomes full or opens.
func TestTotalsOnlyOfChanges(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := newDisplay(&out)
	c, m := gathered(t)
	printed := 0
	for i, step := range []struct {
		status status.Status
		event  bool
		lines  int
	}{{status: statusOf(""), lines: 1}, {status: statusOf("")}, {status: statusOf(), lines: 1}, {status: statusOf(), event: true, lines: 1}} {
		if step.event {
			m.Events.Event("payments", string(journal.Duplicate), 1)
			c = countsOf(m.Registry())
		}
		d.update(c, step.status)
		printed += step.lines
		testkit.Equal(t, strings.Count(out.String(), "\n"), printed, "lines after step %d", i)
	}
	if !strings.HasPrefix(out.String(), "totals  events 10  sent 3") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("got %q, want one line of totals without colours", &out)
	}
}

// The table has a row for each category. Columns of zeros are left out.
func TestDevTable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c, _ := gathered(t)
	testkit.NoError(t, c.print(&out, 1500*time.Millisecond))
	fields := regexp.MustCompile(` +(\n?)`).ReplaceAllString(out.String(), " $1")
	testkit.Equal(t, strings.ReplaceAll(fields, " \n", "\n"), "\n10 events in 2s\n"+
		"CATEGORY EVENTS SENT DROPPED DEAD DROPPED BY\n"+
		"payments 8 3 5 0 category 4, global 1\n"+
		"deploys 2 0 0 2\n"+
		"all 10 3 5 2 category 4, global 1\n"+
		"2 events were still waiting\n", "the table")

	out.Reset()
	testkit.NoError(t, (&counts{categories: make(map[string]*count)}).print(&out, time.Second))
	testkit.Equal(t, out.String(), "\n0 events in 1s\n", "a table of nothing")
}

// A large terminal shows totals, the status and the guide. A small one leaves out the guide first.
func TestRows(t *testing.T) {
	t.Parallel()
	d := newDisplay(new(bytes.Buffer))
	d.introduce([]string{"notifier dev --storm 50", "limits   global 30/30s", "NATS     nats://127.0.0.1:41234"})
	c, _ := gathered(t)
	d.update(c, statusOf("", "payments"))
	testkit.Contains(t, "24 rows", strings.Join(d.rows(120, 24), "\n"),
		"notifier dev --storm 50   running 0s   Ctrl-C ends it with a table\n", "nats://127.0.0.1:41234", "events 10  sent 3", "payments  6/30s  6 of 6",
	)
	for height := range 20 {
		testkit.AtMost(t, len(d.rows(120, height)), max(1, height), "rows in %d", height)
	}
	small := strings.Join(d.rows(120, 4), "\n")
	if strings.Contains(small, "nats://") || !strings.Contains(small, "events 10  sent 3") {
		t.Errorf("got\n%s\nwant totals without a guide", small)
	}
}

// A URL with a password is not shown. A URL without one is shown as the assignment of its setting.
func TestServersOfSettings(t *testing.T) {
	t.Parallel()
	secret := named("NOTIFIER_REDIS_URL", config.NewSecret("redis://:secret@localhost:1/0"))
	testkit.Equal(t, secret.shown+secret.assignment, "as set in NOTIFIER_REDIS_URL", "a URL with a password")
	open := named("NOTIFIER_REDIS_URL", config.NewSecret("redis://localhost:1?addr=a&addr=b"))
	testkit.Equal(t, open.assignment, "NOTIFIER_REDIS_URL='redis://localhost:1?addr=a&addr=b'", "a URL without")
}

// The guide has the limits, and for each address a command with the settings that it needs.
func TestGuide(t *testing.T) {
	testkit.SetSettings(t, nil)
	settings, _, err := config.Load(options(50))
	testkit.NoError(t, err)
	at := Running{Admin: "127.0.0.1:41", Page: "127.0.0.1:42", Ingest: "http://127.0.0.1:43"}
	rows := guide(settings, 50, at, address{"nats://a", "NOTIFIER_NATS_URL=nats://a"}, address{"redis://b", ""})
	testkit.Contains(t, "guide", strings.Join(rows, "\n"), "notifier dev --storm 50\nlimits   global 30/30s, each category 6/30s, deploys@key 1/30s, 3 slots for uplinks, a digest every 15s\n",
		"short, so that the effect is visible", "NATS     nats://a\n         NOTIFIER_NATS_URL=nats://a \\\n", ` publish payments "card declined"`,
		"curl -d 'card declined' http://127.0.0.1:43/v1/events/payments",
		"metrics  http://127.0.0.1:41/metrics (127.0.0.1:8080 is taken)", "page     http://127.0.0.1:42/  the live page")
}

// A worker accepts each event of the storm.
func TestStormKinds(t *testing.T) {
	t.Parallel()
	testkit.Equal(t, len(story.Kinds), 20, "categories")
	decoder := event.Decoder{Prefix: "notify", MaxBytes: 1 << 18}
	for range 1000 {
		category, body := drawStormEvent()
		if _, err := decoder.Decode(event.Message{Subject: "notify." + category, Data: []byte(body), Stream: "s", Sequence: 1}); err != nil {
			t.Fatalf("%s: got %v, want an event that a worker accepts", body, err)
		}
	}
	if !slices.IsSortedFunc(story.Incidents, func(a, b incident) int { return cmp.Compare(a.At, b.At) }) {
		t.Error("got incidents in another order than that of their times")
	}
	testkit.Equal(t, incidentAt(2*len(story.Incidents)-1), incidentRound+6*time.Second, "the last incident of the second round")
}

// A storm has short limits and frequent digests, unless the settings name others.
func TestDemoLimits(t *testing.T) {
	for name, test := range map[string]struct {
		storm                      int
		set                        map[string]string
		global, category, interval string
	}{
		"no storm":        {0, nil, "100/30m", "10/30m", "30m0s"},
		"nothing set":     {50, nil, "30/30s", "6/30s", "15s"},
		"a limit":         {50, map[string]string{"GLOBAL_LIMIT": "20/1m"}, "20/1m", "10/30m", "15s"},
		"a path's limit":  {50, map[string]string{"LIMITS": "payments=1/1m"}, "100/30m", "10/30m", "15s"},
		"a guarantee":     {50, map[string]string{"GUARANTEES": "security=50"}, "100/30m", "10/30m", "15s"},
		"an interval":     {50, map[string]string{"SUMMARY_INTERVAL": "1m"}, "30/30s", "6/30s", "1m0s"},
		"digests are off": {50, map[string]string{"SUMMARY_INTERVAL": "0"}, "30/30s", "6/30s", "0s"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.SetSettings(t, test.set)
			settings, _, err := config.Load(options(test.storm))
			testkit.NoError(t, err)
			got := []string{settings.Limits.Global.String(), settings.Limits.Category.String(), settings.SummaryInterval.String()}
			testkit.EqualSlices(t, got, []string{test.global, test.category, test.interval}, "global, category and interval")
		})
	}
}
