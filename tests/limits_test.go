package tests

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// budgets are limits, with what they admit of a batch and which level denies the rest.
var budgets = []struct {
	name     string
	settings []string
	publish  map[string]int // category -> events
	sent     map[string]int
	dropped  map[string]int // by level
}{
	{"of categories", []string{"GLOBAL_LIMIT", "none", "LIMITS", "debug=0/1h,security=none,a.b=2/1h,a.*=1/1h,*.c=3/1h"},
		map[string]int{"debug": 5, "debug.deep": 2, "security": 50, "errors": 20, "a.b": 5, "a.c": 5, "z.c": 5},
		map[string]int{"security": 50, "errors": 10, "a.b": 2, "a.c": 1, "z.c": 3},
		map[string]int{"debug": 7, "category": 10, "a.b": 3, "a.*": 4, "*.c": 2}},
	{"shadow", []string{"GLOBAL_LIMIT", "4/30m", "SHADOW", "true"},
		map[string]int{"errors": 12}, map[string]int{"errors": 12}, nil},
}

func TestLimits(t *testing.T) {
	t.Parallel()
	for _, test := range budgets {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			w := d.startReady("worker", test.settings...).alone()
			total := 0
			for category, n := range test.publish {
				d.publishEvents([]string{category}, n)
				total += n
			}
			w.awaitEvents(total)
			d.awaitEmpty()
			for category := range test.publish {
				w.awaitEvents(test.sent[category], "category", category, "outcome", "sent")
			}
			testkit.EqualMaps(t, count(d.slack.Accepted(), "category"), test.sent, "posts by category")
			drops := 0
			for level, n := range test.dropped {
				drops += n
				w.awaitSum(n, "notifier_dropped_total", "level", level)
			}
			w.awaitSum(drops, "notifier_dropped_total")
		})
	}
}

// TestRedisUnavailableFromStart kills Redis before the first event, so the failure policy of two workers decides every event. After the return
// of Redis the policy local writes its admissions to the logs.
func TestRedisUnavailableFromStart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		policy      string
		least, most int // posts of 40 events of two categories, with a limit of 10 for each category
		level       string
	}{
		{"open", 40, 40, ""}, {"closed", 0, 0, "closed"}, {"local", 1, 20, "category"}, // the share of a worker that got few events is not used up
	} {
		t.Run(test.policy, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			// An event that comes again because the machine is busy would be looked up, and without Redis no worker may know where.
			workers := d.startFleet(2, quick("REDIS_FAILURE", test.policy, "REDIS_GRACE", "200ms", "SLACK_LOOKUP", "off")...)
			for _, w := range workers {
				testkit.Eventually(t, w.name+" to count both workers", func() bool { return w.logLines(`"instances":2`) > 0 })
			}
			d.redis.Kill()
			categories := []string{"one", "two"}
			// A first event lets each worker find out that Redis is unavailable.
			probes := 0
			testkit.Eventually(t, "the failure policy of every worker", func() bool {
				d.publish("notify", `{"text":"x","category":"probe"}`)
				probes++
				return workers.sum("notifier_degraded", "policy", test.policy) == len(workers)
			})
			workers.awaitEvents(probes)
			d.publishEvents(categories, 20)
			workers.awaitEvents(probes + 40)
			for _, w := range workers {
				w.awaitReady()
				w.wantLogLines(1, "failure policy acts")
			}
			run(t, d.settings(), "status").want(0, "degraded: "+test.policy, "failing: ", "redis is unavailable: ",
				"not known: limits: no worker has read their use from Redis")
			counts := count(d.slack.Accepted(), "category")
			posted := counts["one"] + counts["two"]
			if posted < test.least || posted > test.most || test.policy == "local" && max(counts["one"], counts["two"]) > 10 {
				t.Errorf("posted were %v, want %d to %d, and by the policy local 10 of each category at most", counts, test.least, test.most)
			}
			for _, category := range categories {
				workers.awaitSum(20-counts[category], "notifier_dropped_total", "category", category, "level", test.level)
			}

			d.redis.Restart()
			workers.awaitSum(0, "notifier_degraded")
			if test.policy == "local" {
				testkit.Equal(t, len(d.log(rootLog+":one"))+len(d.log(rootLog+":two")), posted, "admissions that redis knows of after its return")
			}
		})
	}
}
