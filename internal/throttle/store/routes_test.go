package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestRulesetKnowsItsAlgorithms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		global, rules, shadow string
		want                  []string
	}{
		{"none", "", "", nil},
		{"1/1h", "", "", []string{"log"}},
		{"inflight:1/1h+1/1h", "a=token:1/1h", "", []string{"log", "token", "inflight"}},
		{"1/1h", "a=fixed:1/1h", "a=counter:1/1h,b=leaky:1/1h", []string{"log", "counter", "fixed", "leaky"}},
	} {
		rules := Compile(newRuleset(t, newPlan(t, c.global, "none", c.rules), c.shadow))
		testkit.EqualSlices(t, rules.algorithms(), c.want, "%+v: algorithms", c)
	}
}

func TestShadowKept(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]time.Duration{"2/1d": 24 * time.Hour, "inflight:2/1s": time.Hour} {
		rules := Compile(limits.Ruleset{Shadow: newTree(t, "1/1s", limit, "")})
		testkit.Equal(t, rules.shadowKept(time.Hour), want.Microseconds(), "microseconds that the shadow keeps an event of %s", limit)
	}
}

func TestRoutesAreBounded(t *testing.T) {
	t.Parallel()
	tree := newRoutes(newTree(t, "100/30m", "10/30m", ""))
	for i := range 3 * maxCachedRoutes {
		category := fmt.Sprintf("c%d.d", i)
		for range 2 {
			path := tree.Path(category)
			testkit.Require(t, len(path) == 2 && path[0].Level == limits.LevelGlobal && path[1].Path == fmt.Sprint("c", i), "%s: %+v", category, path)
		}
		testkit.Require(t, len(tree.cached) <= maxCachedRoutes, "got %d routes, want %d at most", len(tree.cached), maxCachedRoutes)
	}
}

// TestTakenBefore derives the used slots only from denials that prove all slots taken.
func TestTakenBefore(t *testing.T) {
	t.Parallel()
	log := limits.Limit{Count: 10, Window: time.Hour}
	counter := limits.Limit{Algorithm: algorithm.SlidingCounter, Count: 10, Window: time.Hour}
	category := limits.Node{Level: limits.LevelCategory, Path: "a"}
	guarantees := []limits.Guarantee{{Path: "security", Slots: 3}}
	for name, test := range map[string]struct {
		guarantees []limits.Guarantee
		decision   Decision
		cost       int
		want       int64
	}{
		"a log":                              {nil, denied(category, log, time.Minute), 1, 10},
		"a log, several slots":               {nil, denied(category, log, time.Minute), 2, 0},
		"an estimate":                        {nil, denied(category, counter, time.Minute), 1, 0},
		"the global log":                     {nil, denied(limits.Node{Level: limits.LevelGlobal}, log, time.Minute), 1, 10},
		"the global log, with guarantees":    {guarantees, denied(limits.Node{Level: limits.LevelGlobal}, log, time.Minute), 1, 0},
		"the log of a path, with guarantees": {guarantees, denied(category, log, time.Minute), 1, 10},
		"what never fits":                    {nil, Decision{Verdict: ExceedsCapacity, Node: category, Limit: log}, 1, 0},
	} {
		tree := &Routes{guarantees: test.guarantees}
		testkit.Equal(t, tree.TakenBefore(&test.decision, test.cost), test.want, "%s", name)
	}
}

func denied(node limits.Node, limit limits.Limit, wait time.Duration) Decision {
	return Decision{Verdict: Denied, Node: node, Limit: limit, Wait: wait}
}
