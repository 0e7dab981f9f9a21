package throttle

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// useOf returns the use of a limit of a path. A path with a dot has a rule of its own.
func useOf(t *testing.T, path, limit string, used int64) limits.Use {
	t.Helper()
	node := limits.Node{Path: path, Level: limits.LevelCategory}
	switch {
	case path == "":
		node.Level = limits.LevelGlobal
	case strings.Contains(path, "."):
		node.Level = path
	}
	return limits.UseOf(node, testkit.Must(limits.Parse(limit))(t)[0], used)
}

func (k *limiterKit) wantUses(category string, want ...limits.Use) {
	k.t.Helper()
	testkit.EqualSlices(k.t, k.Usage().Uses(k.t.Context(), category), want, "uses of %q", category)
}

// keep sets how long the uses of a category are still cached.
func (k *limiterKit) keep(category string, d time.Duration) {
	key := usesKey{k.o.Redis.Rules().InForce, category}
	uses, _ := k.usage.uses.Get(key)
	k.usage.uses.Put(key, uses, time.Now().Add(d))
}

func TestLimiterUses(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "100/1h", "10/1h+20/2h", "a.b=4/1h,free=none")}})
	limiter.want(map[store.Verdict]int{store.Admitted: 3}, append(several(2, "ab", "a.b"), request("a", "a"))...)
	before := []limits.Use{useOf(t, "", "100/1h", 3), useOf(t, "a", "10/1h", 3), useOf(t, "a", "20/2h", 3), useOf(t, "a.b", "4/1h", 2)}
	limiter.wantUses("a.b", before...)
	limiter.wantUses("a.c", before[:3]...)
	limiter.wantUses("free", before[0])

	limiter.one(store.Admitted, request("more", "a.b"))
	limiter.keep("a.b", time.Hour) // stays fresh for the whole test
	limiter.wantUses("a.b", before...)
	limiter.keep("a.b", 0)
	after := []limits.Use{useOf(t, "", "100/1h", 4), useOf(t, "a", "10/1h", 4), useOf(t, "a", "20/2h", 4), useOf(t, "a.b", "4/1h", 3)}
	limiter.wantUses("a.b", after...)

	limiter.keep("a.b", time.Hour)
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "100/1h", "none", "a.b=5/1h")})
	adopted := []limits.Use{after[0], useOf(t, "a.b", "5/1h", 3)}
	limiter.wantUses("a.b", adopted...)
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "none", "none", "")})
	limiter.wantUses("a.b")
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "100/1h", "none", "a.b=5/1h")})

	limiter.wantUses("a.b", adopted...)
	limiter.keep("a.b", time.Hour)
	limiter.lose()
	limiter.wantUses("a.b", adopted...)
	limiter.keep("a.b", 0)
	limiter.wantUses("a.b")
	limiter.wantUses("a.c")
}

func TestLimiterUsesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{})
	limiter.server.CLI("SET", limiterKey("log:a"), "text")
	limiter.wantUses("a")
	limiter.wantUses("b", useOf(t, "", "100/1h", 0), useOf(t, "b", "10/1h", 0))
	limiter.server.CLI("DEL", limiterKey("log:a"))
	limiter.wantUses("a", useOf(t, "", "100/1h", 0), useOf(t, "a", "10/1h", 0))

	// The old uses are not shown as present ones.
	known := func() bool { _, known := limiter.Usage().Latest(); return known }
	testkit.Eventually(t, "uses that were read", known)
	limiter.server.CLI("SET", limiterKey("log"), "text")
	testkit.Eventually(t, "uses that cannot be read", func() bool { return !known() })
	limiter.server.CLI("DEL", limiterKey("log"))
	testkit.Eventually(t, "uses that can be read again", known)
}

func TestLimiterLimitOf(t *testing.T) {
	t.Parallel()
	limiter := newLimiterKit(t, "127.0.0.1:1", LimiterOptions{Settings: store.Settings{Tree: newTree(t, "100/1h", "10/30m+3/1m", "a.*=4/1h,free=none")}})
	for _, test := range []struct{ category, level, want, path string }{
		{"a.b", limits.LevelGlobal, "100/1h", ""},
		{"a.b", limits.LevelCategory, "10/30m+3/1m", "a"},
		{"a.b.c", "a.*", "4/1h", "a.b"},
		{"a", "a.*", "", ""},
		{"free", limits.LevelCategory, "", ""},
		{"a.b", store.LevelClosed, "", ""},
	} {
		node, found := limiter.Usage().NodeOf(test.category, test.level)
		testkit.Equal(t, node.Path, test.path, "path where the level %q limits %q", test.level, test.category)
		testkit.Equal(t, found, test.want != "", "%q has the level %q", test.category, test.level)
		testkit.Equal(t, limiter.Usage().LimitOf(test.category, test.level), test.want, "%q at the level %q", test.category, test.level)
	}
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "none", "7/1h", "")})
	testkit.Equal(t, limiter.Usage().LimitOf("a.b", limits.LevelGlobal), "", "global limit after a change")
	testkit.Equal(t, limiter.Usage().LimitOf("a.b", limits.LevelCategory), "7/1h", "limit of a category after a change")
}

func TestLimiterTellsWhenSlotsOpen(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "2/1h", "a.b=1/3h,c=none")}})
	want := func(category string, in time.Duration) {
		t.Helper()
		opens := limiter.Usage().Opens(category)
		if in == 0 && opens.IsZero() {
			return
		}
		if in == 0 || !within(time.Until(opens), in) {
			t.Errorf("the next slot of %q opens at %v, want in %v", category, opens, in)
		}
	}
	want("a.b", 0)
	limiter.want(map[store.Verdict]int{store.Admitted: 1, store.Denied: 1}, several(2, "ab", "a.b")...)
	want("a.b", 3*time.Hour)
	want("a.b.c", 3*time.Hour)
	want("a", 0)
	want("a.c", 0)
	limiter.want(map[store.Verdict]int{store.Admitted: 1, store.Denied: 2}, several(3, "a", "a")...)
	want("a", time.Hour)
	want("a.c", time.Hour)
	want("a.b", 3*time.Hour) // the full limit that opens last
	want("c", 0)

	a := limiter.o.Redis.Rules().InForce
	limiter.full.denied(a.Route("a", "").Keys[0], &store.Decision{Node: a.Path("a")[0], Wait: time.Hour}, time.Now().Add(-time.Hour))
	want("a", 0)
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "none", "2/1h", "")})
	want("a.b", 0)
}

// within compares waits in whole hours. The real clock shortens a wait.
func within(wait, want time.Duration) bool {
	return wait <= want && wait > want-time.Hour/2
}

// TestUsageOfNewLimits has no tick at all. The use of new limits is read as soon as they are in force.
func TestUsageOfNewLimits(t *testing.T) {
	t.Parallel()
	limiter := newLimiterKit(t, servertest.StartRedis(t).Addr, LimiterOptions{})
	limiter.recovery.reach(t.Context())
	testkit.Run(t, func(ctx context.Context) { limiter.recovery.run(ctx, nil) })
	limiter.Adopt(newRuleset(t, newPlan(t, "7/1h", "2/1h", ""), ""))
	testkit.Eventually(t, "the use of the new limits", func() bool {
		_, known := limiter.Usage().Latest()
		return known
	})
}
