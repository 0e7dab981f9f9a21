package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testkit"
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
		rules := compile(newRuleset(t, newPlan(t, c.global, "none", c.rules), c.shadow))
		testkit.EqualSlices(t, rules.algorithms(), c.want, "%+v: algorithms", c)
	}
}

func TestShadowKept(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]time.Duration{"2/1d": 24 * time.Hour, "inflight:2/1s": time.Hour} {
		rules := compile(limits.Ruleset{Shadow: newTree(t, "1/1s", limit, "")})
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
			if len(path) != 2 || path[0].Level != limits.LevelGlobal || path[1].Path != fmt.Sprint("c", i) {
				t.Fatalf("%s: %+v", category, path)
			}
		}
		if len(tree.cached) > maxCachedRoutes {
			t.Fatalf("got %d routes, want %d at most", len(tree.cached), maxCachedRoutes)
		}
	}
}
