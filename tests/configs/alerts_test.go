package configs_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// sample is a value that a scrape found.
type sample struct {
	minute int
	value  float64
}

func (s sample) T() int64 {
	return time.UnixMilli(0).Add(time.Duration(s.minute) * time.Minute).UnixMilli()
}
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// scraped is what scrapes found of a series, once a minute.
type scraped struct {
	labels []string  // names and values
	from   int       // the first minute
	values []float64 // NaN: no scrape
}

// steady returns a value that scrapes found for some minutes.
func steady(value float64, minutes int) []float64 { return slices.Repeat([]float64{value}, minutes) }

func (s scraped) series() storage.Series {
	var samples []chunks.Sample
	for i, value := range s.values {
		if !math.IsNaN(value) {
			samples = append(samples, sample{s.from + i, value})
		}
	}
	return storage.NewListSeries(labels.FromStrings(s.labels...), samples)
}

// found is a storage of these series.
func found(all []scraped) storage.Queryable {
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
			var matching []storage.Series
			for _, one := range all {
				series := one.series()
				if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(series.Labels().Get(m.Name)) }) {
					matching = append(matching, series)
				}
			}
			return &seriesSet{series: matching, at: -1}
		},
	}}
}

// seriesSet hands out series one after the other.
type seriesSet struct {
	series []storage.Series
	at     int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *seriesSet) At() storage.Series                { return s.series[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// up returns what scrapes of a target found.
func up(job, instance string, value float64, minutes int) scraped {
	return scraped{[]string{"__name__", "up", "job", job, "instance", instance}, 0, steady(value, minutes)}
}

// counter returns what scrapes of a worker found of a counter with a label.
func counter(name, label, value string, from int, values ...float64) scraped {
	return counterOf("notifier", name, label, value, from, values...)
}

// counterOf is counter for a worker of a job.
func counterOf(job, name, label, value string, from int, values ...float64) scraped {
	return scraped{[]string{"__name__", name, "job", job, label, value, "instance", "a"}, from, values}
}

// alertExpressions returns the expressions of the alerts by their names.
func alertExpressions(t *testing.T) map[string]string {
	t.Helper()
	expressions := make(map[string]string)
	for _, rule := range rules(t) {
		expressions[rule.Alert] = rule.Expr
	}
	return expressions
}

// TestAlertExpressions evaluates rules after two hours. A dead ingest: the rule fires if no target answers or none is left, and not where ingest has never
// run. Workers that are not ready: one ready worker is enough. The global limit: it fires if the limit denies events, however full it is.
// A deployment that works hides no other one.
func TestAlertExpressions(t *testing.T) {
	t.Parallel()
	expressions := alertExpressions(t)
	const ingest, events, dropped, delayed = "notifier-ingest", "notifier_events_total", "notifier_dropped_total", "notifier_delayed_total"
	grows := []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}
	stuck := []scraped{
		counter(events, "outcome", "sent", 0, steady(7, 120)...), counter("notifier_inflight", "kind", "messages", 0, steady(1, 120)...),
	}
	ended := func(category string, at int) scraped {
		return counter(events, "category", category, at, steady(1, 120-at)...)
	}
	failing := counter("notifier_sink_requests_total", "result", "transient", 100, grows...)
	readyOf := func(job, instance string, value float64) scraped {
		return scraped{[]string{"__name__", "notifier_ready", "job", job, "instance", instance}, 0, steady(value, 120)}
	}
	ready := func(instance string, value float64) scraped { return readyOf("notifier", instance, value) }
	const staging = "notifier-staging"
	for _, test := range []struct {
		alert, name string
		found       []scraped
		fires       bool
	}{
		{"NotifierNotReady", "one of two is ready", []scraped{ready("a", 0), ready("b", 1)}, false},
		{"NotifierNotReady", "none is ready", []scraped{ready("a", 0), ready("b", 0)}, true},
		{"NotifierNotReady", "none is reached", []scraped{up("notifier", "a", 0, 120)}, false},
		{"NotifierIngestNotReady", "one of two is ready", []scraped{readyOf(ingest, "a", 0), readyOf(ingest, "b", 1), ready("c", 0)}, false},
		{"NotifierIngestNotReady", "none is ready", []scraped{readyOf(ingest, "a", 0), ready("c", 1)}, true},
		{"NotifierIngestDown", "one of two answers", []scraped{up(ingest, "a", 1, 120), up(ingest, "b", 0, 120)}, false},
		{"NotifierIngestDown", "none answers", []scraped{up(ingest, "a", 0, 120), up(ingest, "b", 0, 120)}, true},
		{"NotifierIngestDown", "none is left", []scraped{up(ingest, "a", 1, 30)}, true},
		{"NotifierIngestDown", "it never ran", []scraped{up("notifier", "a", 1, 120)}, false},
		{"NotifierIngestRefusesTokens", "events are stored", []scraped{counterOf(ingest, "notifier_ingest_requests_total", "code", "202", 100, grows...)}, false},
		{"NotifierExpired", "other outcomes", []scraped{counter(events, "outcome", "sent", 115, steady(9, 5)...)}, false},
		{"NotifierGlobalLimitFull", "it denies nothing", []scraped{counter(delayed, "level", "global", 0, steady(9, 120)...)}, false},
		{"NotifierGlobalLimitFull", "events are dropped", []scraped{counter(dropped, "level", "global", 100, grows...)}, true},
		{"NotifierGlobalLimitFull", "a category's first event is dropped", []scraped{counter(dropped, "level", "global", 115, steady(1, 5)...)}, true},
		{"NotifierGlobalLimitFull", "events wait", []scraped{counter(delayed, "level", "global", 100, grows...)}, true},
		{"NotifierGlobalLimitFull", "events wait for another limit", []scraped{counter(delayed, "level", "category", 100, grows...)}, false},
		{"NotifierStuck", "beside a deployment that works", append(stuck, counterOf(staging, events, "outcome", "sent", 100, grows...)), true},
		{"NotifierStuck", "none has ended yet", []scraped{counter(events, "outcome", "sent", 0, steady(0, 120)...), stuck[1]}, true},
		{"NotifierStuck", "events of new categories end", append(stuck, ended("a", 105), ended("b", 112), ended("c", 117)), false},
		{"NotifierStuck", "events of new categories ended", append(stuck, ended("a", 105), ended("b", 112)), true},
		{"NotifierSinkFailing", "beside a deployment that works", []scraped{
			failing, counterOf(staging, "notifier_sink_requests_total", "result", "ok", 100, grows...), counterOf(staging, "notifier_sink_requests_total", "result", "ok", 99, grows...),
		}, true},
	} {
		t.Run(test.alert+" "+test.name, func(t *testing.T) {
			t.Parallel()
			result := evaluated(t, expressions[test.alert], test.found)
			testkit.Equal(t, len(result) > 0, test.fires, "it fires: %v;", result)
		})
	}
}

// evaluated returns what an expression finds after two hours.
func evaluated(t *testing.T, expression string, in []scraped) promql.Vector {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	query := testkit.Must(engine.NewInstantQuery(t.Context(), found(in), nil, expression, time.UnixMilli(0).Add(119*time.Minute)))(t)
	defer query.Close()
	result := query.Exec(t.Context())
	testkit.NoError(t, result.Err)
	return slices.Clone(testkit.Must(result.Vector())(t))
}

// TestAlertsOfOneFault wants the alerts about faults that may happen once to fire if the fault was counted before the first scrape of the
// worker, and not for faults of long ago.
func TestAlertsOfOneFault(t *testing.T) {
	t.Parallel()
	expressions := alertExpressions(t)
	for alert, of := range map[string][4]string{
		"NotifierDeadLetters":          {"notifier", "notifier_dead_letters_total", "reason", "malformed"},
		"NotifierDeadLettersDiscarded": {"notifier", "notifier_dead_letters_discarded_total", "pod", "x"},
		"NotifierExpired":              {"notifier", "notifier_events_total", "outcome", "expired"},
		"NotifierSummariesGivenUp":     {"notifier", "notifier_summaries_total", "result", "given_up"},
		"NotifierRoomRefuses":          {"notifier", "notifier_room_refused_total", "reason", "slot"},
		"NotifierVanished":             {"notifier", "notifier_vanished_total", "pod", "x"},
		"NotifierForgedMessages":       {"notifier", "notifier_forged_messages_total", "place", "room"},
		"NotifierIngestRefusesClient":  {"notifier-ingest", "notifier_ingest_refused_total", "client", "x"},
		"NotifierIngestRefusesTokens":  {"notifier-ingest", "notifier_ingest_requests_total", "code", "401"},
	} {
		for _, test := range []struct {
			name   string
			from   int
			values []float64
			fires  bool
		}{
			{"none", 0, steady(0, 120), false},
			{"long ago", 0, steady(7, 120), false},
			{"long ago, before a gap", 0, slices.Concat(steady(7, 96), steady(math.NaN(), 8), steady(7, 16)), false},
			{"one more", 110, []float64{0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, true},
			{"one before the first scrape", 115, steady(1, 5), true},
		} {
			t.Run(alert+" "+test.name, func(t *testing.T) {
				t.Parallel()
				result := evaluated(t, expressions[alert], []scraped{counterOf(of[0], of[1], of[2], of[3], test.from, test.values...)})
				testkit.Equal(t, len(result) > 0, test.fires, "it fires: %v;", result)
			})
		}
	}
}
