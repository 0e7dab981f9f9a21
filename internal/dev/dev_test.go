package dev

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// gathered returns the counts of metrics with the events of two categories.
func gathered() counts {
	m := telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 10, Levels: []string{"global", "category"}})
	m.Events.Event("payments", string(journal.Sent), 3)
	m.Events.Event("payments", string(journal.Dropped), 5)
	m.Events.Dropped("payments", "global", 1, "")
	m.Events.Dropped("payments", "category", 4, "")
	m.Events.Event("deploys", string(journal.Dead), 2)
	return countsOf(m.Registry())
}

// The table has a row for each category, the busiest first.
func TestTable(t *testing.T) {
	t.Parallel()
	c := gathered()
	testkit.EqualSlices(t, c.categories(), []string{"payments", "deploys"}, "categories")
	var rows []string
	for _, row := range c.table(c.categories()...) {
		rows = append(rows, strings.Join(row, "|"))
	}
	testkit.EqualSlices(t, rows, []string{
		"CATEGORY|EVENTS|SENT|DROPPED|DUPLICATE|DEAD|EXPIRED|FOLDED|DROPPED BY",
		"payments|8|3|5|0|0|0|0|category 4, global 1",
		"deploys|2|0|0|0|2|0|0|",
		"all|10|3|5|0|2|0|0|category 4, global 1",
	}, "rows")
	testkit.Equal(t, len(counts{}.table()), 2, "rows without events")
}

// A large terminal shows totals, the status and the guide. A small one leaves out the guide first.
func TestFrame(t *testing.T) {
	t.Parallel()
	guide := []string{"notifier dev --storm 50", "limits: global 30/30s", "  export NOTIFIER_NATS_URL=nats://127.0.0.1:41234"}
	s := status.Status{
		Workers: []status.Worker{{Name: "host", Ready: true}},
		Limits:  []status.Limit{{Use: limits.Use{Path: "payments", Limit: "6/30s", Used: 6, Size: 6}}},
	}
	shown := func(height int) string { return strings.Join(frame(guide, gathered().table(), s, 120, height), "\n") }
	testkit.Contains(t, "24 rows", shown(24), "notifier dev --storm 50\n", "nats://127.0.0.1:41234", "\nall       10 ", "payments  6/30s  6 of 6")
	for height := range 20 {
		testkit.AtMost(t, 1+strings.Count(shown(height), "\n"), max(1, height), "rows in %d", height)
	}
	testkit.Contains(t, "4 rows", shown(4), "notifier dev --storm 50\n", "\nall       10 ")
	testkit.Lacks(t, "4 rows", shown(4), "nats://")
}

// The guide has the limits, and commands with the settings that they need, but no password.
func TestGuide(t *testing.T) {
	testkit.SetSettings(t, map[string]string{"NATS_URL": "nats://a", "REDIS_URL": "redis://b:1?addr=a:2&addr=b:3"})
	settings, _, err := config.Load(options(50))
	testkit.NoError(t, err)
	at := Running{Admin: "127.0.0.1:41", Page: "127.0.0.1:42", Ingest: "http://127.0.0.1:43"}
	testkit.Contains(t, "guide", strings.Join(guide(settings, 50, at), "\n"), "notifier dev --storm 50   Ctrl-C",
		"\nlimits: global 30/30s, each category 6/30s, deploys@key 1/30s, 3 slots for uplinks, a digest every 15s\n",
		"\n  export NOTIFIER_NATS_URL=nats://a\n  export NOTIFIER_REDIS_URL='redis://b:1?addr=a:2&addr=b:3'\n", ` publish payments "card declined"`, " limits\n",
		"\n  curl -d 'card declined' http://127.0.0.1:43/v1/events/payments\n", "curl -s http://127.0.0.1:41/metrics | grep notifier_dropped\n",
		"  http://127.0.0.1:42/ in a browser: the live page")

	settings.Redis.URL, settings.Ingest.TokensFile = config.NewSecret("redis://:secret@localhost:1/0"), "tokens"
	rows := strings.Join(guide(settings, 50, at), "\n")
	testkit.Lacks(t, "guide", rows, "secret", "NOTIFIER_REDIS_URL")
	testkit.Contains(t, "guide", rows, `curl -H "Authorization: Bearer $TOKEN" -d`)
}

// A worker accepts each event of the storm.
func TestStormKinds(t *testing.T) {
	t.Parallel()
	testkit.Equal(t, len(story.Kinds), 20, "categories")
	decoder := event.Decoder{Prefix: "notify", MaxBytes: 1 << 18}
	for range 1000 {
		category, body := drawStormEvent()
		_, err := decoder.Decode(event.Message{Subject: "notify." + category, Data: []byte(body), Stream: "s", Sequence: 1})
		testkit.Require(t, err == nil, "%s: got %v, want an event that a worker accepts", body, err)
	}
	testkit.Check(t, slices.IsSortedFunc(story.Incidents, func(a, b incident) int { return cmp.Compare(a.At, b.At) }),
		"got incidents in another order than that of their times")
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
