package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// useOf returns the usage of a limit of a node.
func useOf(t *testing.T, node, limit string, used int64) limits.Usage {
	t.Helper()
	return limits.Usage{Level: node, Limit: limit, Used: used, Size: testkit.Must(limits.Parse(limit))(t)[0].Capacity()}
}

// wantUses compares the uses of a category.
func (k *limiterKit) wantUses(category string, want ...limits.Usage) {
	k.t.Helper()
	testkit.EqualSlices(k.t, k.Uses(k.t.Context(), category), want, "uses of %q", category)
}

// told sets the age of the uses kept for a category.
func (k *limiterKit) told(category string, ago time.Duration) {
	k.usage.mu.Lock()
	defer k.usage.mu.Unlock()
	known := k.usage.told[category]
	known.asked = time.Now().Add(-ago)
	k.usage.told[category] = known
}

func TestLimiterUses(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "100/1h", "10/1h+20/2h", "a.b=4/1h,free=none")}})
	limiter.want(map[store.Verdict]int{store.Admitted: 3}, append(several(2, "ab", "a.b"), request("a", "a"))...)
	before := []limits.Usage{useOf(t, "global", "100/1h", 3), useOf(t, "a", "10/1h", 3), useOf(t, "a", "20/2h", 3), useOf(t, "a.b", "4/1h", 2)}
	limiter.wantUses("a.b", before...)
	limiter.wantUses("a.c", before[:3]...)
	limiter.wantUses("free", before[0])

	limiter.one(store.Admitted, request("more", "a.b"))
	limiter.told("a.b", -time.Hour) // stays fresh for the whole test
	limiter.wantUses("a.b", before...)
	limiter.told("a.b", usesKept)
	after := []limits.Usage{useOf(t, "global", "100/1h", 4), useOf(t, "a", "10/1h", 4), useOf(t, "a", "20/2h", 4), useOf(t, "a.b", "4/1h", 3)}
	limiter.wantUses("a.b", after...)

	limiter.told("a.b", -time.Hour)
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "100/1h", "none", "a.b=5/1h")})
	adopted := []limits.Usage{after[0], useOf(t, "a.b", "5/1h", 3)}
	limiter.wantUses("a.b", adopted...)
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "none", "none", "")})
	limiter.wantUses("a.b")
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "100/1h", "none", "a.b=5/1h")})

	limiter.wantUses("a.b", adopted...)
	limiter.told("a.b", -time.Hour)
	limiter.lose()
	limiter.wantUses("a.b", adopted...)
	limiter.told("a.b", usesKept)
	limiter.wantUses("a.b")
	limiter.wantUses("a.c")
}

func TestLimiterUsesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{})
	limiter.server.CLI("SET", limiterKey("log:a"), "text")
	limiter.wantUses("a")
	limiter.wantUses("b", useOf(t, "global", "100/1h", 0), useOf(t, "b", "10/1h", 0))
	limiter.server.CLI("DEL", limiterKey("log:a"))
	limiter.wantUses("a", useOf(t, "global", "100/1h", 0), useOf(t, "a", "10/1h", 0))
}

func TestLimiterUsesAreBounded(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{})
	limiter.wantUses("a", useOf(t, "global", "100/1h", 0), useOf(t, "a", "10/1h", 0))
	for i := range maxTouched {
		limiter.usage.told[fmt.Sprint("a", i)] = knownUses{}
	}
	limiter.wantUses("b", useOf(t, "global", "100/1h", 0), useOf(t, "b", "10/1h", 0))
	testkit.AtMost(t, len(limiter.usage.told), maxTouched, "categories whose uses are kept")
}

func TestLimiterLimitOf(t *testing.T) {
	t.Parallel()
	limiter := newLimiterKit(t, "127.0.0.1:1", LimiterOptions{Settings: store.Settings{Tree: newTree(t, "100/1h", "10/30m+3/1m", "a.*=4/1h,free=none")}})
	for _, test := range []struct{ category, level, want string }{
		{"a.b", limits.LevelGlobal, "100/1h"},
		{"a.b", limits.LevelCategory, "10/30m+3/1m"},
		{"a.b", "a.*", "4/1h"},
		{"a", "a.*", ""},
		{"free", limits.LevelCategory, ""},
		{"a.b", store.LevelClosed, ""},
	} {
		testkit.Equal(t, limiter.LimitOf(test.category, test.level), test.want, "%q at the level %q", test.category, test.level)
	}
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "none", "7/1h", "")})
	if global, category := limiter.LimitOf("a.b", limits.LevelGlobal), limiter.LimitOf("a.b", limits.LevelCategory); global != "" || category != "7/1h" {
		t.Errorf("by other limits: %q, %q", global, category)
	}
}

func TestLimiterTellsWhenSlotsOpen(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "2/1h", "a.b=1/3h,c=none")}})
	want := func(category string, in time.Duration) {
		t.Helper()
		opens := limiter.Opens(category)
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

	a := limiter.o.Redis.Rules().Tree.Path("a")[0]
	limiter.full.denied(&store.Decision{Node: a, Wait: time.Hour}, time.Now().Add(-time.Hour))
	want("a", 0)
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "none", "2/1h", "")})
	want("a.b", 0)
}

// within compares waits in whole hours. The real clock shortens a wait.
func within(wait, want time.Duration) bool {
	return wait <= want && wait > want-time.Hour/2
}
