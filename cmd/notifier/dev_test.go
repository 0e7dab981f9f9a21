//go:build !nodev

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// counted makes a tally with events of two categories. told has an entry for each dead letter.
func counted(t *testing.T) (all *tally, told *[]bool) {
	t.Helper()
	told = new([]bool)
	all = newTally(func(_ string, isFirst bool) { *told = append(*told, isFirst) })
	all.Metrics = telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 10, Levels: []string{"global", "category"}})
	all.Event("payments", string(consume.Sent), 3)
	all.Event("payments", string(consume.Dropped), 5)
	all.Dropped("payments", "global", 1, "")
	all.Dropped("payments", "category", 4, "")
	all.Event("", string(consume.Dead), 2)
	all.DeadLetter("bad_json")
	all.DeadLetter("bad_json")
	all.RoomPending("slot", 2)
	all.RoomPending("channel", 1)
	all.RoomPending("slot", 1)
	return all, told
}

func situationOf(all *tally, states ...throttle.Explanatory) situation {
	s := situation{limits: states}
	s.counts, s.waiting = all.now()
	return s
}

var (
	globalFree   = stateOf("", 30, 29, 0)
	globalFull   = stateOf("", 30, 30, 11*time.Second+1)
	paymentsFull = stateOf("payments", 6, 6, 20*time.Second)
	errorsFull   = stateOf("errors", 6, 6, 7*time.Second)
	mutedFull    = stateOf("debug", 0, 0, 0)
)

// stateOf is what is used of a limit, which exceeds it if it has no slots.
func stateOf(path string, size, used int64, wait time.Duration) throttle.Explanatory {
	limit := limits.Limit{Count: size, Window: 30 * time.Second}
	return throttle.Explanatory{Node: limits.Node{Path: path}, Limit: limit, Used: used, Wait: wait, Exceeds: size == 0}
}

func TestTotals(t *testing.T) {
	t.Parallel()
	all, told := counted(t)
	testkit.EqualSlices(t, *told, []bool{true, false}, "the first dead letter is told as such")
	s := situationOf(all, globalFree)
	testkit.Equal(t, s.outcomes(painter{}), "events 10  sent 3  dropped 5 (category 4, global 1)  duplicate 0  dead 2  expired 0  waiting 2", "outcomes")
	testkit.Equal(t, s.outcomes(painter{colour: true}), "events 10  \x1b[32msent 3\x1b[0m  \x1b[33mdropped 5 (category 4, global 1)\x1b[0m"+
		"  duplicate 0  dead 2  expired 0  waiting 2", "outcomes in colours")
	for want, states := range map[string][]throttle.Explanatory{
		"slots are free":                                       {globalFree},
		"full: global, next slot in 12s":                       {globalFull, paymentsFull},
		"full: payments, errors, next slot in 7s":              {globalFree, paymentsFull, errorsFull, errorsFull},
		"full: debug, no slot opens":                           {globalFree, mutedFull},
		"full: debug, payments, errors, next slot in 7s":       {mutedFull, paymentsFull, errorsFull},
		"full: a, debug, payments and 1 more, next slot in 7s": {stateOf("a", 0, 0, 0), mutedFull, paymentsFull, errorsFull},
	} {
		testkit.Equal(t, situationOf(all, states...).slots(), want, "slots")
	}
	testkit.Equal(t, situation{unknown: true}.slots(), "the limits cannot be asked", "slots without Redis")
}

// Totals are printed when a count changes and when a limit becomes full or opens. The time to the next slot is no change.
func TestTotalsOnlyOfChanges(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := &lines{out: &out}
	all, _ := counted(t)
	later := globalFull
	later.Wait -= time.Second
	printed := 0
	for i, step := range []struct {
		state throttle.Explanatory
		event bool
		lines int
	}{{state: globalFull, lines: 1}, {state: later}, {state: globalFree, lines: 1}, {state: globalFree}, {state: globalFree, event: true, lines: 1}} {
		if step.event {
			all.Event("payments", string(consume.Duplicate), 1)
		}
		l.show(situationOf(all, step.state))
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
	all, _ := counted(t)
	testkit.NoError(t, all.printTable(&out, 1500*time.Millisecond))
	testkit.Equal(t, fields(out.String()), "\n10 events in 2s\n"+
		"CATEGORY EVENTS SENT DROPPED DEAD DROPPED BY\n"+
		"payments 8 3 5 0 category 4, global 1\n"+
		"(none) 2 0 0 2\n"+
		"all 10 3 5 2 category 4, global 1\n"+
		"2 events were still waiting", "the table")

	out.Reset()
	testkit.NoError(t, newTally(nil).printTable(&out, time.Second))
	testkit.Equal(t, out.String(), "\n0 events in 1s\n", "a table of nothing")
}

// The number of named categories and the number of rows are bounded.
func TestDevTableIsBounded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	all, _ := counted(t)
	for i := range maxTallied + 10 {
		all.Event(strings.Repeat("a", i+1), string(consume.Sent), 1)
	}
	testkit.NoError(t, all.printTable(&out, time.Second))
	testkit.Equal(t, strings.Count(out.String(), "\n"), maxTableRows+6, "lines")
	if !strings.Contains(out.String(), otherCategories+"  ") || !strings.Contains(out.String(), "971 categories are not shown") {
		t.Errorf("got\n%s\nwant the other categories and their number", &out)
	}
}

// A limit may be full before it has denied an event.
func TestLimitsNow(t *testing.T) {
	t.Parallel()
	d := &dev{}
	d.tally, _ = counted(t)
	global := stateOf("", 30, 7, 0)
	explain := func(_ context.Context, request throttle.Request) (throttle.Explanation, error) {
		known := throttle.Explanation{Limits: []throttle.Explanatory{global}}
		if request.Category != "" {
			known.Limits = append(known.Limits, stateOf(request.Category, 6, 6, 20*time.Second))
		}
		return known, nil
	}
	states, unknown := d.limitsNow(t.Context(), explain)
	if want := []throttle.Explanatory{global, paymentsFull}; !reflect.DeepEqual(states, want) {
		t.Errorf("limits: got %v, want %v", states, want)
	}
	testkit.Equal(t, unknown, false, "unknown")

	gone := func(context.Context, throttle.Request) (throttle.Explanation, error) {
		return throttle.Explanation{}, errors.New("redis is unavailable")
	}
	if states, unknown := d.limitsNow(t.Context(), gone); states != nil || !unknown {
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
			d := dev{storm: test.storm}
			settings, _, err := config.Load(d.options())
			testkit.NoError(t, err)
			got := []string{settings.Limits.Global.String(), settings.Limits.Category.String(), settings.SummaryInterval.String()}
			testkit.EqualSlices(t, got, []string{test.global, test.category, test.interval}, "global, category and interval")
			testkit.Equal(t, d.demo, test.global == demoGlobalLimit, "it is a demonstration")
		})
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := &lines{out: &out}
	testkit.AtOnce(10, func(int) {
		for range 100 {
			_, _ = io.WriteString(l, "a whole line\n")
		}
	})
	if out.String() != strings.Repeat("a whole line\n", 1000) {
		t.Errorf("got %q, want whole lines", &out)
	}
}
