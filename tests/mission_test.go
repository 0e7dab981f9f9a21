package tests

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestMission is what the notifier is for: a flood over many categories, several workers, one budget.
func TestMission(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(3)
	categories := twentyCategories()
	d.publishEvents(categories, 30)
	workers.awaitEvents(600)
	d.awaitEmpty()

	posts := d.slack.Posts()
	if len(posts) != 100 || len(d.slack.Accepted()) != 100 || repeats(posts) != 0 {
		t.Errorf("%d posts, %d accepted, %d of them repeated; want 100, 100, 0", len(posts), len(d.slack.Accepted()), repeats(posts))
	}
	wantWithinLimits(t, posts, 100, 10)

	workers.awaitSum(100, "notifier_events_total", "outcome", "sent")
	workers.awaitSum(500, "notifier_events_total", "outcome", "dropped")
	workers.awaitSum(100, "notifier_decisions_total", "verdict", "admitted")
	workers.awaitSum(500, "notifier_decisions_total", "verdict", "denied")
	workers.awaitSum(100, "notifier_slack_requests_total", "result", "ok")
	workers.awaitSum(100, "notifier_slack_requests_total")
	workers.awaitSum(0, "notifier_inflight")
	workers.awaitSum(0, "notifier_degraded")
	workers.awaitSum(500, "notifier_dropped_total")
	byCategory := workers.sum("notifier_dropped_total", "level", "category")
	byGlobal := workers.sum("notifier_dropped_total", "level", "global")
	if byCategory+byGlobal != 500 || byGlobal == 0 {
		t.Errorf("%d dropped by category and %d by the global limit, want 500 together, and some by the global one", byCategory, byGlobal)
	}
	posted := count(posts, "category")
	for _, category := range categories {
		workers.awaitSum(posted[category], "notifier_events_total", "category", category, "outcome", "sent")
		workers.awaitSum(30-posted[category], "notifier_events_total", "category", category, "outcome", "dropped")
		if n := workers.sum("notifier_dropped_total", "category", category, "level", "category"); n > 0 && posted[category] < 10 {
			t.Errorf("%d events of %s were dropped by its own limit, of which %d of 10 slots are taken", n, category, posted[category])
		}
	}

	root := d.log(rootLog)
	if got, want := slices.Sorted(maps.Keys(root)), slices.Sorted(maps.Keys(count(posts, "id"))); !slices.Equal(got, want) {
		t.Errorf("the root log holds %q, posted were %q", got, want)
	}
	inCategories := make(map[string]string)
	for _, category := range categories {
		for id, at := range d.log(rootLog + ":" + category) {
			if !strings.HasPrefix(id, category+"-") {
				t.Errorf("the log of %s holds %s", category, id)
			}
			inCategories[id] = at
		}
	}
	if !maps.Equal(root, inCategories) {
		t.Errorf("the root log and those of the categories differ: %v and %v", root, inCategories)
	}
	for key := range strings.SplitSeq(d.redis.CLI("keys", "*"), "\n") {
		if !strings.HasPrefix(key, "{notifier}:") {
			t.Errorf("key %q is not one of the deployment's", key)
		}
		if d.redis.CLI("pttl", key) == "-1" {
			t.Errorf("key %q has no expiry", key)
		}
	}
}
