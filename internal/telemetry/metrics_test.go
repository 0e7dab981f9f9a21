package telemetry_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func newMetrics(maxCategories int) *telemetry.Metrics {
	return telemetry.NewMetrics(telemetry.MetricsOptions{
		MaxCategories: maxCategories,
		Levels:        []string{"global", "category", "payments.*"},
		Policy:        "hold",
		Version:       "v1",
		Revision:      "abc",
	})
}

// series returns the notifier's series by name and labels. The value of a histogram is its count.
func series(t *testing.T, m *telemetry.Metrics) map[string]float64 {
	t.Helper()
	return seriesOf(t, m.Registry())
}

func seriesOf(t *testing.T, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families := testkit.Must(registry.Gather())(t)
	all := make(map[string]float64)
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "notifier_") {
			continue
		}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
			}
			name := family.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			all[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// expect compares all series that are not 0.
func expect(t *testing.T, m *telemetry.Metrics, want map[string]float64) {
	t.Helper()
	got := series(t, m)
	for name, value := range got {
		if strings.HasPrefix(name, "notifier_build_info") {
			continue
		}
		testkit.Equal(t, value, want[name], "%s", name)
	}
	for name := range want {
		_, ok := got[name]
		testkit.Check(t, ok, "got no series %s", name)
	}
}

// Names and labels are a public contract, so the test repeats them.
func TestSeriesAtTheStart(t *testing.T) {
	t.Parallel()
	want := []string{
		`notifier_build_info{goversion="` + runtime.Version() + `",revision="abc",version="v1"}`,
		`notifier_decision_duration_seconds`,
		`notifier_dead_letters_discarded_total`,
		`notifier_event_age_seconds`,
		`notifier_forged_messages_total{place="dead_letters"}`,
		`notifier_forged_messages_total{place="journal"}`,
		`notifier_forged_messages_total{place="limits"}`,
		`notifier_forged_messages_total{place="room"}`,
		`notifier_held`,
		`notifier_inflight`,
		`notifier_journal_lost_total`,
		`notifier_redeliveries_total`,
		`notifier_refunds_total`,
		`notifier_resolved_total{result="paired"}`,
		`notifier_resolved_total{result="unpaired"}`,
		`notifier_sink_request_duration_seconds`,
		`notifier_spans_lost_total`,
		`notifier_split_total`,
		`notifier_summaries_total{result="given_up"}`,
		`notifier_summaries_total{result="sent"}`,
		`notifier_vanished_total`,
	}
	add := func(format string, values ...string) {
		for _, value := range values {
			want = append(want, fmt.Sprintf(format, value))
		}
	}
	add(`notifier_room_refused_total{reason=%q}`, "slot", "pair", "redis", "body", "channel", "part", "update", "steady")
	add(`notifier_events_total{category="other",outcome=%q}`, "sent", "dropped", "duplicate", "dead", "expired", "folded")
	add(`notifier_dropped_total{category="other",level=%q}`, "global", "category", "payments.*")
	add(`notifier_delayed_total{level=%q}`, "global", "category", "payments.*")
	for _, reason := range event.Reasons() {
		add(`notifier_dead_letters_total{reason=%q}`, string(reason))
	}
	for _, class := range sink.Classes() {
		add(`notifier_sink_requests_total{result=%q}`, string(class))
	}
	for verdict := store.Admitted; verdict <= store.Deferred; verdict++ {
		add(`notifier_decisions_total{source=%q,verdict="`+verdict.String()+`"}`, "redis", "cache", "local")
	}
	slices.Sort(want)

	var got []string
	for name, value := range series(t, newMetrics(50)) {
		got = append(got, name)
		if value != 0 && !strings.HasPrefix(name, "notifier_build_info") {
			t.Errorf("%s: got %v at the start, want 0", name, value)
		}
	}
	slices.Sort(got)
	testkit.EqualSlices(t, got, want, "series")
	count := testkit.Must(testutil.GatherAndCount(newMetrics(1).Registry(), "go_goroutines", "process_start_time_seconds"))(t)
	testkit.Equal(t, count, 2, "series of the runtime and the process")
}

func TestLint(t *testing.T) {
	t.Parallel()
	var names []string
	for name := range series(t, newMetrics(1)) {
		name, _, _ = strings.Cut(name, "{")
		names = append(names, name)
	}
	problems := testkit.Must(testutil.GatherAndLint(newMetrics(1).Registry(), names...))(t)
	testkit.Equal(t, len(problems), 0, "problems: %v", problems)
}

// counting has the series that each method changes.
var counting = []struct {
	count  func(m *telemetry.Metrics)
	series string
	value  float64
}{
	{func(m *telemetry.Metrics) { m.Events.Event("errors", "sent", 2); m.Events.Event("errors", "sent", 3) }, `events_total{category="errors",outcome="sent"}`, 5},
	{func(m *telemetry.Metrics) {
		m.Events.Event("errors", "dropped", 0)
		m.Events.Event("errors", "dropped", -1)
	}, `events_total{category="errors",outcome="dropped"}`, 0},
	{func(m *telemetry.Metrics) { m.Events.Event("payments.refunds", "expired", 1) }, `events_total{category="payments.refunds",outcome="expired"}`, 1},
	{func(m *telemetry.Metrics) { m.Events.Event("other", "sent", 1) }, `events_total{category="other",outcome="sent"}`, 1},
	{func(m *telemetry.Metrics) { m.Events.Event("", "dead", 1); m.Events.Event("not UTF-8 \xff", "dead", 1) }, `events_total{category="other",outcome="dead"}`, 2},
	{func(m *telemetry.Metrics) { m.Events.Dropped("payments.refunds", "payments.*", 4, "") }, `dropped_total{category="payments.refunds",level="payments.*"}`, 4},
	{func(m *telemetry.Metrics) { m.Events.Dropped("errors", "global", 1, "") }, `dropped_total{category="errors",level="global"}`, 1},
	{func(m *telemetry.Metrics) { m.Losses.DeadLetter("bad_json") }, `dead_letters_total{reason="bad_json"}`, 1},
	{func(m *telemetry.Metrics) { m.Losses.DeadLettersDiscarded(2); m.Losses.DeadLettersDiscarded(0) }, `dead_letters_discarded_total`, 2},
	{func(m *telemetry.Metrics) { m.Decisions.Decision("admitted", "redis", 3) }, `decisions_total{source="redis",verdict="admitted"}`, 3},
	{func(m *telemetry.Metrics) {
		m.Decisions.Decision("denied", "cache", 2)
		m.Decisions.Decision("denied", "cache", 0)
	}, `decisions_total{source="cache",verdict="denied"}`, 2},
	{func(m *telemetry.Metrics) { m.Decisions.DecisionDuration(time.Millisecond) }, `decision_duration_seconds`, 1},
	{func(m *telemetry.Metrics) { m.Events.EventAge(-time.Second, ""); m.Events.EventAge(time.Hour, "") }, `event_age_seconds`, 2},
	{func(m *telemetry.Metrics) { m.Posts.SinkRequest("ok", time.Second) }, `sink_requests_total{result="ok"}`, 1},
	{func(m *telemetry.Metrics) { m.Posts.SinkRequest("unknown", time.Second) }, `sink_requests_total{result="unknown"}`, 1},
	{func(*telemetry.Metrics) {}, `sink_request_duration_seconds`, 2}, // of both requests
	{func(m *telemetry.Metrics) { m.Decisions.LimitUsed("global", 99) }, `limit_used{level="global"}`, 99},
	{func(m *telemetry.Metrics) { m.Decisions.LimitSize("global", 100) }, `limit_size{level="global"}`, 100},
	{func(m *telemetry.Metrics) { m.Decisions.LimitSize("payments.*", math.MaxInt32) }, `limit_size{level="payments.*"}`, math.MaxInt32},
	{func(m *telemetry.Metrics) { m.Events.Redelivered(2); m.Events.Redelivered(-1) }, `redeliveries_total`, 2},
	{func(m *telemetry.Metrics) { m.Decisions.Refunded(1) }, `refunds_total`, 1},
	{func(m *telemetry.Metrics) { m.Waiting.InFlight(5); m.Waiting.InFlight(-2) }, `inflight`, 3},
	{func(m *telemetry.Metrics) { m.Events.Split() }, `split_total`, 1},
	{func(m *telemetry.Metrics) { m.Events.Resolved("paired"); m.Events.Resolved("paired") }, `resolved_total{result="paired"}`, 2},
	{func(m *telemetry.Metrics) { m.Events.Resolved("unpaired") }, `resolved_total{result="unpaired"}`, 1},
	{func(m *telemetry.Metrics) { m.Posts.Summary("sent") }, `summaries_total{result="sent"}`, 1},
	{func(m *telemetry.Metrics) { m.Posts.Summary("given_up") }, `summaries_total{result="given_up"}`, 1},
	{func(m *telemetry.Metrics) { m.Events.Delayed("payments", "category") }, `delayed_total{level="category"}`, 1},
	{func(m *telemetry.Metrics) { m.Waiting.AckPending(7, nil); m.Waiting.AckPending(4, nil) }, `ack_pending`, 4},
	{func(m *telemetry.Metrics) {
		m.Waiting.RoomPending("slot", 7, nil)
		m.Waiting.RoomPending("slot", 4, nil)
	}, `room_pending{reason="slot"}`, 4},
	{func(m *telemetry.Metrics) { m.Waiting.PaceUsed("channels", 6, 5) }, `pace_used{budget="channels"}`, 6},
	{func(m *telemetry.Metrics) { m.Waiting.PaceUsed("channels", 6, 5) }, `pace_waiting{budget="channels"}`, 5},
	{func(m *telemetry.Metrics) { m.Waiting.PaceUsed("updates", 7, 0) }, `pace_used{budget="updates"}`, 7},
	{func(m *telemetry.Metrics) { m.Waiting.PaceUsed("lookups", 9, 0) }, `pace_used{budget="lookups"}`, 9},
	{func(m *telemetry.Metrics) { m.Waiting.PaceUsed("workspace", 0, 3) }, `pace_waiting{budget="workspace"}`, 3},
	{func(m *telemetry.Metrics) { m.Waiting.RoomPending("ready", 0, nil) }, `room_pending{reason="ready"}`, 0},
	{func(m *telemetry.Metrics) { m.Waiting.RoomRefused("slot", 2); m.Waiting.RoomRefused("slot", 0) }, `room_refused_total{reason="slot"}`, 2},
	{func(m *telemetry.Metrics) { m.Losses.Vanished(3); m.Losses.Vanished(-1) }, `vanished_total`, 3},
	{func(m *telemetry.Metrics) { m.Losses.Forged("limits", 3); m.Losses.Forged("limits", 1) }, `forged_messages_total{place="limits"}`, 4},
	{func(m *telemetry.Metrics) { m.Losses.JournalLost(5) }, `journal_lost_total`, 5},
	{func(m *telemetry.Metrics) { m.Losses.SpansLost(5) }, `spans_lost_total`, 5},
	{func(m *telemetry.Metrics) { m.Waiting.Held("#a", 3); m.Waiting.Held("#b", -1) }, `held`, 2},
	{func(m *telemetry.Metrics) { m.Decisions.PolicyActs() }, `degraded{policy="hold"}`, 1},
	{func(m *telemetry.Metrics) { m.SettingsMismatch(2) }, `settings_mismatch`, 1},
}

func TestCounting(t *testing.T) {
	t.Parallel()
	m, want := newMetrics(50), make(map[string]float64)
	for _, row := range counting {
		row.count(m)
		want["notifier_"+row.series] = row.value
	}
	expect(t, m, want)
	m.Decisions.PolicyInactive()
	want[`notifier_degraded{policy="hold"}`] = 0
	expect(t, m, want)
}

// A gauge is absent until it has a value, and while its value cannot be read. A removed limit has no gauge.
func TestGaugesUntilTheyAreKnown(t *testing.T) {
	t.Parallel()
	m := newMetrics(50)
	want := func(want ...string) {
		t.Helper()
		var got []string
		for _, name := range slices.Sorted(maps.Keys(series(t, m))) {
			for _, gauge := range []string{"notifier_limit_", "notifier_degraded", "notifier_settings_mismatch", "notifier_ack_pending", "notifier_room_pending", "notifier_pace_"} {
				if strings.HasPrefix(name, gauge) {
					got = append(got, name)
				}
			}
		}
		testkit.EqualSlices(t, got, want, "gauges")
	}
	want()
	m.Decisions.Levels([]string{"global", "category", "payments.*", "new"}, nil)
	want()
	m.Decisions.LimitSize("category", 10)
	m.Decisions.LimitSize("new", 1)
	m.Decisions.LimitUsed("new", 0)
	want(`notifier_limit_size{level="category"}`, `notifier_limit_size{level="new"}`, `notifier_limit_used{level="new"}`)
	m.Decisions.LimitsUnread()
	want(`notifier_limit_size{level="category"}`, `notifier_limit_size{level="new"}`)
	m.Decisions.LimitUsed("new", 0)
	m.Decisions.Levels([]string{"global", "category"}, nil)
	want(`notifier_limit_size{level="category"}`)
	m.Decisions.PolicyInactive()
	m.Waiting.AckPending(0, nil)
	m.Waiting.RoomPending("pair", 0, nil)
	want(`notifier_ack_pending`, `notifier_degraded{policy="hold"}`, `notifier_limit_size{level="category"}`, `notifier_room_pending{reason="pair"}`)
	m.Waiting.RoomPending("slot", 0, nil)
	m.Waiting.RoomPending("pair", 0, errors.New("unread"))
	m.Waiting.AckPending(0, errors.New("unread"))
	want(`notifier_degraded{policy="hold"}`, `notifier_limit_size{level="category"}`, `notifier_room_pending{reason="slot"}`)
	m.Waiting.AckPending(0, nil)
	want(`notifier_ack_pending`, `notifier_degraded{policy="hold"}`, `notifier_limit_size{level="category"}`, `notifier_room_pending{reason="slot"}`)
}

// All values outside a closed set share one series.
func TestClosedLabels(t *testing.T) {
	t.Parallel()
	m := newMetrics(50)
	for i := range 100 {
		wrong := fmt.Sprintf("wrong %d", i)
		m.Events.Event("errors", wrong, 1)
		m.Events.Dropped("errors", wrong, 1, "")
		m.Events.Delayed("errors", wrong)
		m.Losses.DeadLetter(wrong)
		m.Decisions.Decision(wrong, "redis", 1)
		m.Decisions.Decision("denied", wrong, 1)
		m.Posts.SinkRequest(wrong, 0)
		m.Decisions.LimitUsed(wrong, 1)
		m.Decisions.LimitSize(wrong, 1)
		m.Events.Resolved(wrong)
		m.Posts.Summary(wrong)
		m.Waiting.RoomPending(wrong, 1, nil)
		m.Waiting.RoomRefused(wrong, 1)
		m.Waiting.PaceUsed(wrong, 1, 2)
	}
	expect(t, m, map[string]float64{
		`notifier_events_total{category="errors",outcome="other"}`:  100,
		`notifier_dropped_total{category="errors",level="other"}`:   100,
		`notifier_delayed_total{level="other"}`:                     100,
		`notifier_dead_letters_total{reason="other"}`:               100,
		`notifier_decisions_total{source="redis",verdict="other"}`:  100,
		`notifier_decisions_total{source="other",verdict="denied"}`: 100,
		`notifier_sink_requests_total{result="other"}`:              100,
		`notifier_sink_request_duration_seconds`:                    100,
		`notifier_limit_used{level="other"}`:                        1,
		`notifier_limit_size{level="other"}`:                        1,
		`notifier_resolved_total{result="other"}`:                   100,
		`notifier_summaries_total{result="other"}`:                  100,
		`notifier_room_pending{reason="other"}`:                     1,
		`notifier_room_refused_total{reason="other"}`:               100,
		`notifier_pace_used{budget="other"}`:                        1,
		`notifier_pace_waiting{budget="other"}`:                     2,
	})
}

// A category has its label in each metric or in none. The number of labels is bounded.
func TestCategoryBound(t *testing.T) {
	t.Parallel()
	m := newMetrics(3)
	m.Events.Event("a", "sent", 1)
	m.Events.Event("other", "sent", 1) // takes no label
	m.Events.Dropped("a", "global", 1, "")
	m.Events.Event("b.c", "dropped", 1)
	m.Events.Dropped("b.c", "global", 1, "")
	m.Events.Event("third", "sent", 1)
	for i := range 1000 {
		m.Events.Event(fmt.Sprint("more-", i), "sent", 1)
		m.Events.Dropped(fmt.Sprint("others-", i), "global", 1, "")
	}
	m.Events.Event("too-late", "sent", 1_000_000)
	m.Events.Event("a", "dropped", 1)
	expect(t, m, map[string]float64{
		`notifier_events_total{category="a",outcome="sent"}`:      1,
		`notifier_events_total{category="a",outcome="dropped"}`:   1,
		`notifier_events_total{category="b.c",outcome="dropped"}`: 1,
		`notifier_events_total{category="third",outcome="sent"}`:  1,
		`notifier_events_total{category="other",outcome="sent"}`:  1_001_001,
		`notifier_dropped_total{category="a",level="global"}`:     1,
		`notifier_dropped_total{category="b.c",level="global"}`:   1,
		`notifier_dropped_total{category="other",level="global"}`: 1000,
	})
}

// Configured categories have labels before their first event.
func TestConfiguredCategories(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 5, Categories: []string{"a", "b.c"}, Levels: []string{"global"}})
	labels := func(want ...string) {
		t.Helper()
		got := map[string]bool{}
		for name := range series(t, m) {
			if name, found := strings.CutPrefix(name, `notifier_events_total{category="`); found {
				name, _, _ = strings.Cut(name, `"`)
				got[name] = true
			}
		}
		slices.Sort(want)
		testkit.EqualSlices(t, slices.Sorted(maps.Keys(got)), want, "labels")
	}
	labels("a", "b.c", "other")
	m.Decisions.Levels([]string{"global", "category", "live", "live@key", "p.*", "p.*@key"}, []string{"global", "category"})
	labels("a", "b.c", "live", "other")
	for i := range 1000 {
		m.Events.Event(fmt.Sprint("junk-", i), "sent", 1)
	}
	labels("a", "b.c", "live", "junk-0", "junk-1", "other")
	m.Decisions.Levels([]string{"global", "too-late"}, []string{"as-well"})
	labels("a", "b.c", "live", "junk-0", "junk-1", "other")
	m.Events.Event("b.c", "sent", 1)
	m.Events.Event("too-late", "sent", 1)
	expect(t, m, map[string]float64{
		`notifier_events_total{category="a",outcome="sent"}`:         0,
		`notifier_events_total{category="b.c",outcome="sent"}`:       1,
		`notifier_events_total{category="junk-0",outcome="expired"}`: 0,
		`notifier_events_total{category="live",outcome="dead"}`:      0,
		`notifier_delayed_total{level="live"}`:                       0,
		`notifier_events_total{category="junk-0",outcome="sent"}`:    1,
		`notifier_events_total{category="junk-1",outcome="sent"}`:    1,
		`notifier_events_total{category="other",outcome="sent"}`:     999,
	})
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	const goroutines, rounds, limit = 8, 200, 5
	m := newMetrics(limit)
	testkit.AtOnce(goroutines, func(int) {
		for i := range rounds {
			category := fmt.Sprint("category-", i%20)
			m.Events.Event(category, "dropped", 1)
			m.Events.Dropped(category, "global", 1, "")
			m.Decisions.Decision("denied", "cache", 1)
			m.Posts.SinkRequest("ok", time.Millisecond)
			m.Waiting.InFlight(1)
			if i%50 == 0 {
				series(t, m)
			}
		}
	})
	sums, categories := make(map[string]float64), make(map[string]bool)
	for name, value := range series(t, m) {
		if metric, labels, found := strings.Cut(name, `{category="`); found {
			category, _, _ := strings.Cut(labels, `"`)
			categories[category] = true
			sums[metric] += value
		}
	}
	testkit.EqualMaps(t, sums, map[string]float64{"notifier_events_total": goroutines * rounds, "notifier_dropped_total": goroutines * rounds}, "sums")
	testkit.Check(t, len(categories) <= limit+1 && len(categories) >= limit/2+1 && categories["other"],
		"categories %v, want at most %d and other", categories, limit)
}

// Counting with a known label does not allocate.
func TestHotPathDoesNotAllocate(t *testing.T) { //nolint:paralleltest // allocations of other tests would count
	m := newMetrics(1)
	m.Events.Event("errors", "dropped", 1)
	m.Events.Dropped("errors", "global", 1, "")
	if allocations := testing.AllocsPerRun(100, func() {
		m.Events.Event("errors", "dropped", 1)
		m.Events.Dropped("errors", "global", 1, "")
		m.Events.Event("beyond-the-bound", "dropped", 1)
		m.Decisions.Decision("denied", "cache", 1)
		m.Decisions.DecisionDuration(time.Millisecond)
	}); allocations != 0 {
		t.Errorf("got %v allocations, want none", allocations)
	}
}
