package tests

import (
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestMission floods twenty categories through three workers with the default limits, and compares posts, metrics and logs.
func TestMission(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(3)
	categories := twentyCategories()
	d.publishEvents(categories, 30)
	workers.awaitOutcomes(map[string]int{"sent": 100, "dropped": 500})
	d.awaitEmpty()

	testkit.Equal(t, len(d.slack.Posts()), 100, "posts")
	testkit.Equal(t, d.slack.Calls(slacktest.MethodHistory)+d.slack.Calls(slacktest.MethodReplies), 0, "look-ups")
	d.wantDefaultLimits()
	d.wantLogged()

	workers.awaitSum(100, "notifier_decisions_total", "verdict", "admitted")
	workers.awaitSum(500, "notifier_decisions_total", "verdict", "denied")
	workers.awaitSum(100, "notifier_sink_requests_total", "result", "ok")
	workers.awaitSum(100, "notifier_sink_requests_total")
	workers.awaitSum(0, "notifier_inflight")
	workers.awaitSum(0, "notifier_degraded")
	workers.awaitSum(500, "notifier_dropped_total")
	byCategory := workers.sum("notifier_dropped_total", "level", "category")
	byGlobal := workers.sum("notifier_dropped_total", "level", "global")
	testkit.Check(t, byCategory+byGlobal == 500 && byGlobal != 0,
		"%d dropped by category and %d by the global limit, want 500 together, and some by the global one", byCategory, byGlobal)
	posted := count(d.slack.Posts(), "category")
	for _, category := range categories {
		workers.awaitEvents(posted[category], "category", category, "outcome", "sent")
		workers.awaitEvents(30-posted[category], "category", category, "outcome", "dropped")
		if n := workers.sum("notifier_dropped_total", "category", category, "level", "category"); n > 0 && posted[category] < 10 {
			t.Errorf("%d events of %s were dropped by its own limit, of which %d of 10 slots are taken", n, category, posted[category])
		}
	}

	inCategories := make(map[string]string)
	for _, category := range categories {
		for id, at := range d.log(rootLog + ":" + category) {
			testkit.Equal(t, strings.HasPrefix(id, category+"-"), true, "the log of %s may hold %s", category, id)
			inCategories[id] = at
		}
	}
	testkit.EqualMaps(t, inCategories, d.log(rootLog), "admissions in the logs of the categories")
	for key := range strings.SplitSeq(d.redis.CLI("keys", "*"), "\n") {
		testkit.Equal(t, strings.HasPrefix(key, "{notifier}:"), true, "the key %q is one of the deployment's", key)
		testkit.Equal(t, d.redis.CLI("pttl", key) == "-1", false, "the key %q has no expiry", key)
	}
}
