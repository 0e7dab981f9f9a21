package telemetry_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Each status has a series at the start. A client has a series once the client is known.
func TestIngestCounting(t *testing.T) {
	t.Parallel()
	registry := telemetry.NewRegistry("v1", "abc")
	m := telemetry.NewIngest(registry, []int{202, 503})
	shown := func() map[string]float64 {
		all := seriesOf(t, registry)
		maps.DeleteFunc(all, func(name string, _ float64) bool { return !strings.HasPrefix(name, "notifier_ingest_") })
		return all
	}
	want := map[string]float64{
		`notifier_ingest_requests_total{code="202"}`: 0, `notifier_ingest_requests_total{code="503"}`: 0, `notifier_ingest_bytes_total`: 0,
		`notifier_ingest_evicted_connections_total`: 0, `notifier_ingest_connections`: 0, `notifier_ingest_publish_duration_seconds`: 0,
	}
	testkit.EqualMaps(t, shown(), want, "series at the start")
	for _, client := range []string{"calm", "alerts", "shop"} {
		m.Client(client)
	}
	m.Count("alerts", "refused")
	m.Request(202)
	m.Request(999)
	m.Count("shop", "stored")
	m.Count("shop", "duplicate")
	m.Count("alerts", "limited")
	m.Bytes(17)
	m.Published(time.Millisecond)
	m.Connections(3)
	m.Connections(-1)
	m.Evicted()
	maps.Copy(want, map[string]float64{
		`notifier_ingest_requests_total{code="202"}`: 1, `notifier_ingest_requests_total{code="other"}`: 1, `notifier_ingest_bytes_total`: 17,
		`notifier_ingest_evicted_connections_total`: 1, `notifier_ingest_connections`: 2, `notifier_ingest_publish_duration_seconds`: 1,
		`notifier_ingest_events_total{client="shop",result="stored"}`: 1, `notifier_ingest_events_total{client="shop",result="duplicate"}`: 1,
		`notifier_ingest_events_total{client="alerts",result="stored"}`: 0, `notifier_ingest_events_total{client="alerts",result="duplicate"}`: 0,
		`notifier_ingest_events_total{client="calm",result="stored"}`: 0, `notifier_ingest_events_total{client="calm",result="duplicate"}`: 0,
		`notifier_ingest_refused_total{client="calm"}`: 0, `notifier_ingest_refused_total{client="alerts"}`: 1, `notifier_ingest_refused_total{client="shop"}`: 0,
		`notifier_ingest_limited_total{client="calm"}`: 0, `notifier_ingest_limited_total{client="shop"}`: 0, `notifier_ingest_limited_total{client="alerts"}`: 1,
		`notifier_ingest_unstored_total{client="calm"}`: 0, `notifier_ingest_unstored_total{client="shop"}`: 0, `notifier_ingest_unstored_total{client="alerts"}`: 0,
	})
	testkit.EqualMaps(t, shown(), want, "series")
	isBuild := func(name string) bool { return strings.HasPrefix(name, "notifier_build_info") }
	names := slices.Collect(maps.Keys(seriesOf(t, registry)))
	testkit.Check(t, slices.ContainsFunc(names, isBuild), "got the series %q, want the build among them", names)
}
