package dev

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// gathered returns the counts of metrics with the events of two categories.
func gathered(t *testing.T) (counts, *telemetry.Metrics) {
	t.Helper()
	m := telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 10, Levels: []string{"global", "category"}})
	m.Events.Event("payments", string(consume.Sent), 3)
	m.Events.Event("payments", string(consume.Dropped), 5)
	m.Events.Dropped("payments", "global", 1, "")
	m.Events.Dropped("payments", "category", 4, "")
	m.Events.Event("deploys", string(consume.Dead), 2)
	m.Losses.DeadLetter("bad_json")
	m.Losses.DeadLetter("bad_json")
	m.Waiting.RoomPending("slot", 1)
	m.Waiting.RoomPending("channel", 1)
	return countsOf(m.Registry()), m
}

func situationOf(t *testing.T, states ...limits.Use) situation {
	t.Helper()
	c, _ := gathered(t)
	return situation{counts: c, limits: states, at: asked}
}

var (
	globalFree   = stateOf("", 30, 29, 0)
	globalFull   = stateOf("", 30, 30, 11*time.Second+1)
	paymentsFull = stateOf("payments", 6, 6, 20*time.Second)
	errorsFull   = stateOf("errors", 6, 6, 7*time.Second)
	mutedFull    = stateOf("debug", 0, 0, 0)
)

// asked is when the limits were asked.
var asked = testkit.Start

// stateOf is what is used of a limit, which exceeds it if it has no slots.
func stateOf(path string, size, used int64, wait time.Duration) limits.Use {
	use := limits.UseOf(limits.Node{Path: path}, limits.Limit{Count: size, Window: 30 * time.Second}, used)
	if wait > 0 {
		next := asked.Add(wait)
		use.Next = &next
	}
	return use
}

func TestTotals(t *testing.T) {
	t.Parallel()
	s := situationOf(t, globalFree)
	testkit.EqualSlices(t, s.dead, []string{"bad_json", "bad_json"}, "dead letters")
	testkit.Equal(t, s.outcomes(screen.Colours{}), "events 10  sent 3  dropped 5 (category 4, global 1)  duplicate 0  dead 2  expired 0  folded 0  waiting 2", "outcomes")
	testkit.Equal(t, s.outcomes(screen.Colours{On: true}), "events 10  \x1b[32msent 3\x1b[0m  \x1b[33mdropped 5 (category 4, global 1)\x1b[0m"+
		"  duplicate 0  dead 2  expired 0  folded 0  waiting 2", "outcomes in colours")
	for want, states := range map[string][]limits.Use{
		"slots are free":                                       {globalFree},
		"full: global, next slot in 12s":                       {globalFull, paymentsFull},
		"full: payments, errors, next slot in 7s":              {globalFree, paymentsFull, errorsFull, errorsFull},
		"full: debug, no slot opens":                           {globalFree, mutedFull},
		"full: debug, payments, errors, next slot in 7s":       {mutedFull, paymentsFull, errorsFull},
		"full: a, debug, payments and 1 more, next slot in 7s": {stateOf("a", 0, 0, 0), mutedFull, paymentsFull, errorsFull},
	} {
		testkit.Equal(t, (&situation{limits: states, at: asked}).slots(), want, "slots")
	}
	testkit.Equal(t, (&situation{unknown: true}).slots(), "the limits cannot be asked", "slots without Redis")
}

// Totals are printed when a count changes and when a limit becomes full or opens. The time to the next slot is no change.
func TestTotalsOnlyOfChanges(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := newDisplay(&out)
	c, m := gathered(t)
	later := globalFull
	next := later.Next.Add(-time.Second)
	later.Next = &next
	printed := 0
	for i, step := range []struct {
		state limits.Use
		event bool
		lines int
	}{{state: globalFull, lines: 1}, {state: later}, {state: globalFree, lines: 1}, {state: globalFree}, {state: globalFree, event: true, lines: 1}} {
		if step.event {
			m.Events.Event("payments", string(consume.Duplicate), 1)
			c = countsOf(m.Registry())
		}
		d.update(situation{counts: c, limits: []limits.Use{step.state}, at: asked})
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

// A large terminal shows counts, limits and the guide. A small one leaves out the guide first.
func TestRows(t *testing.T) {
	t.Parallel()
	d := newDisplay(new(bytes.Buffer))
	d.introduce([]string{"notifier dev --storm 50", "limits   global 30/30s", "NATS     nats://127.0.0.1:41234"})
	d.update(situationOf(t, globalFull, paymentsFull))
	testkit.Contains(t, "20 rows", strings.Join(d.rows(120, 20), "\n"),
		"notifier dev --storm 50   running 0s   Ctrl-C ends it with a table\n", "nats://127.0.0.1:41234", "events 10  sent 3",
		"full: global, next slot in 12s", "payments 6/30s    [####################] 6 of 6, full, next slot in 20s",
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

// A limit may be full before it has denied an event.
func TestLimitsNow(t *testing.T) {
	t.Parallel()
	global := stateOf("", 30, 7, 0)
	explain := func(_ context.Context, request store.Request) (store.Explanation, error) {
		known := store.Explanation{Limits: []limits.Use{global}}
		if request.Category != "" {
			known.Limits = append(known.Limits, stateOf(request.Category, 6, 6, 20*time.Second))
		}
		return known, nil
	}
	states, unknown := limitsNow(t.Context(), explain, []string{"payments"})
	if want := []limits.Use{global, paymentsFull}; !reflect.DeepEqual(states, want) {
		t.Errorf("limits: got %v, want %v", states, want)
	}
	testkit.Equal(t, unknown, false, "unknown")

	gone := func(context.Context, store.Request) (store.Explanation, error) {
		return store.Explanation{}, errors.New("redis is unavailable")
	}
	if states, unknown := limitsNow(t.Context(), gone, nil); states != nil || !unknown {
		t.Errorf("without Redis: got %v, %t, want no limits and true", states, unknown)
	}
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
