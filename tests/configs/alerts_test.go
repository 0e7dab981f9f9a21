package configs_test

import (
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

// scrape is the result of a scrape: a sample of up.
type scrape struct {
	minute int
	up     float64
}

func (s scrape) T() int64 {
	return time.UnixMilli(0).Add(time.Duration(s.minute) * time.Minute).UnixMilli()
}
func (s scrape) ST() int64                     { return 0 }
func (s scrape) F() float64                    { return s.up }
func (s scrape) H() *histogram.Histogram       { return nil }
func (s scrape) FH() *histogram.FloatHistogram { return nil }
func (s scrape) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s scrape) Copy() chunks.Sample           { return s }

// target is what scrapes of a target found, once a minute from the first one on.
type target struct {
	job, instance string
	up            float64
	minutes       int
}

func (target target) series() storage.Series {
	var scrapes []chunks.Sample
	for minute := range target.minutes {
		scrapes = append(scrapes, scrape{minute, target.up})
	}
	return storage.NewListSeries(labels.FromStrings("__name__", "up", "job", target.job, "instance", target.instance), scrapes)
}

// found is a storage of these targets.
func found(targets []target) storage.Queryable {
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
			var matching []storage.Series
			for _, target := range targets {
				series := target.series()
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

// TestIngestDown evaluates the rule for a dead ingest: it fires if no target answers or none is left, and not where ingest has never run.
func TestIngestDown(t *testing.T) {
	t.Parallel()
	expression := ""
	for _, rule := range rules(t) {
		if rule.Alert == "NotifierIngestDown" {
			expression = rule.Expr
		}
	}
	const job = "notifier-ingest"
	for name, test := range map[string]struct {
		targets []target
		fires   bool
	}{
		"one of two answers": {[]target{{job, "a", 1, 120}, {job, "b", 0, 120}}, false},
		"none answers":       {[]target{{job, "a", 0, 120}, {job, "b", 0, 120}}, true},
		"none is left":       {[]target{{job, "a", 1, 30}}, true},
		"it never ran":       {[]target{{"notifier", "a", 1, 120}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
			query := testkit.Must(engine.NewInstantQuery(t.Context(), found(test.targets), nil, expression, time.UnixMilli(0).Add(119*time.Minute)))(t)
			defer query.Close()
			result := query.Exec(t.Context())
			testkit.NoError(t, result.Err)
			testkit.Equal(t, len(testkit.Must(result.Vector())(t)) > 0, test.fires, "it fires: %v;", result)
		})
	}
}
