package throttle

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func denied(node limits.Node, limit limits.Limit, wait time.Duration) store.Decision {
	return store.Decision{Verdict: store.Denied, Node: node, Limit: limit, Wait: wait}
}

// TestDenyCache learns denials on the path a.b one by one, and finds the full paths after each.
func TestDenyCache(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	cache := newDenyCache(time.Second, clock.Read)
	tree := newRoutes(newTree(t, "100/1h", "10/1h+3/1m", "a.b=5/1h"))
	global, category, rule := 0, 1, 2
	learn := func(asked time.Time, level, limit int, wait time.Duration, cost int) {
		node := tree.Path("a.b")[level]
		d := denied(node, node.Limits[limit], wait)
		if wait == 0 {
			d.Verdict = store.ExceedsCapacity
		}
		cache.learn(asked, tree.Route("a.b", ""), d, cost)
	}
	for _, step := range []struct {
		what  string
		learn func(now time.Time)
		full  map[string]string // by category: the path that is full, "-" if none is
		after time.Duration     // how far the clock advances before the lookups
	}{
		{"nothing is known", func(time.Time) {}, map[string]string{"a.b": "-"}, 0},
		{"an hour is longer than an entry lasts, a global slot opens earlier", func(now time.Time) {
			learn(now, rule, 0, time.Hour, 1)
			learn(now, global, 0, 500*time.Millisecond, 1)
		}, map[string]string{"a.b": "", "c": ""}, 0},
		{"the global slot is open", func(time.Time) {}, map[string]string{"a.b": "a.b", "a": "-"}, 500 * time.Millisecond},
		{"the entry is too old", func(time.Time) {}, map[string]string{"a.b": "-"}, 500 * time.Millisecond},
		{"a slot is not open yet, counted from when the question was asked", func(now time.Time) {
			learn(now.Add(-100*time.Millisecond), category, 1, 300*time.Millisecond, 1)
		}, map[string]string{"a.b": "a", "a": "a", "a.x.y": "a", "b": "-"}, 200*time.Millisecond - time.Nanosecond},
		{"that slot is open", func(time.Time) {}, map[string]string{"a": "-"}, time.Nanosecond},
		{"what never fits is full", func(now time.Time) { learn(now, rule, 0, 0, 1) }, map[string]string{"a.b": "a.b"}, 0},
		{"for as long as an entry lasts", func(time.Time) {}, map[string]string{"a.b": "-"}, time.Second},
		{"more slots than one may be too many where one fits", func(now time.Time) {
			learn(now, global, 0, time.Hour, 2)
			learn(now, rule, 0, 0, 6)
		}, map[string]string{"a.b": "-"}, 0},
		{"full before it is forgotten", func(now time.Time) { learn(now, global, 0, time.Hour, 1) }, map[string]string{"a.b": ""}, 0},
		{"forgotten", func(time.Time) { cache.full.Clear() }, map[string]string{"a.b": "-"}, 0},
	} {
		step.learn(clock.Read())
		clock.Advance(step.after)
		for name, want := range step.full {
			if got := cache.find(tree.Route(name, "")); (got != nil) != (want != "-") || got != nil && got.Path != want {
				t.Errorf("%s: %s is full at %+v, want %q", step.what, name, got, want)
			}
		}
	}
	learn(clock.Read(), global, 0, time.Hour, 1)
	raised := newRoutes(newTree(t, "200/1h", "10/1h", ""))
	testkit.Equal(t, cache.find(raised.Route("a", "")), nil, "full limit after a raise")
	cache = newDenyCache(0, clock.Read)
	learn(clock.Read(), global, 0, time.Hour, 1)
	testkit.Equal(t, cache.find(tree.Route("a.b", "")), nil, "full limit of a cache that is turned off")
}

// TestLimiterCountsADenialFromItsQuestion compares entries of the deny cache with the next slot's time in Redis. The cache counts from
// before the request, so an entry ends no later than the next slot opens.
func TestLimiterCountsADenialFromItsQuestion(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{
		Settings: store.Settings{Tree: newTree(t, "none", "1/1h", "")}, DenyCacheTTL: 2 * time.Hour,
	})
	limiter.one(store.Admitted, request("first", "a"))
	limiter.one(store.Denied, request("second", "a"))
	limiter.wantFull("a", limits.LevelCategory)
	opens := scores(t, limiter.server, "{limiter}:log:a")["first"].Add(time.Hour)
	known := limiter.Full("a", "")
	testkit.Check(t, !known.Opens.After(opens), "the limit counts as full for %v after its next slot has opened", known.Opens.Sub(opens))
}
