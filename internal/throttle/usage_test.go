package throttle

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
		{"a.b", limits.LevelClosed, "", ""},
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

func TestLimiterReportsWhenSlotsOpen(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "2/1h", "a.b=1/3h,c=none")}})
	want := func(category string, in time.Duration) {
		t.Helper()
		opens := limiter.Usage().Opens(category)
		if in == 0 && opens.IsZero() {
			return
		}
		testkit.Check(t, in != 0 && within(time.Until(opens), in), "the next slot of %q opens at %v, want in %v", category, opens, in)
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

// refresh reads the used slots, and returns the uses.
func (k *limiterKit) refresh() []limits.Use {
	k.t.Helper()
	testkit.NoError(k.t, k.usage.refresh(k.t.Context()))
	return k.latest()
}

// latest returns the uses that were read last, which must be known.
func (k *limiterKit) latest() []limits.Use {
	k.t.Helper()
	uses, known := k.Usage().Latest()
	testkit.Equal(k.t, known, true, "whether the uses are known")
	return uses
}

// Latest has the used slots of each limit of each path, and when a full limit opens.
func TestLimiterLatestUses(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "100/1h", "2/1h+20/2h", "a.b=1/3h")}})
	limiter.want(map[store.Verdict]int{store.Admitted: 1, store.Denied: 1}, several(2, "ab", "a.b")...)
	limiter.want(map[store.Verdict]int{store.Admitted: 2, store.Denied: 1}, several(3, "c", "c")...)
	type use struct {
		path, level, limit string
		used               int64
		full               bool
	}
	want := map[use]bool{
		{"", "global", "100/1h", 3, false}: true, {"a", "category", "2/1h", 1, false}: true, {"a", "category", "20/2h", 1, false}: true,
		{"a.b", "a.b", "1/3h", 1, true}: true, {"c", "category", "2/1h", 2, true}: true, {"c", "category", "20/2h", 2, false}: true,
	}
	testkit.Await(t, "uses that were read", func() error {
		if err := limiter.usage.refresh(t.Context()); err != nil {
			return err
		}
		got := make(map[use]bool)
		for _, u := range limiter.latest() {
			got[use{u.Path, u.Level, u.Limit, u.Used, u.Next != nil && u.Next.After(time.Now())}] = true
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "none", "none", ""), Position: limits.Position{Generation: 7, Revision: 9}})
	uses, _ := limiter.Usage().Latest()
	testkit.Equal(t, len(uses), 0, "uses of limits that are gone")
	testkit.Equal(t, limiter.Rules().Position, limits.Position{Generation: 7, Revision: 9}, "position")
}

// A limit is full while only slots that are reserved for a guarantee are free: it denies everybody else.
func TestLimiterLatestUsesWithAGuarantee(t *testing.T) {
	t.Parallel()
	tree := newRuleset(t, guarded(t, newPlan(t, "10/1h", "none", ""), "security=4"), "").Tree
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: tree}})
	latest := func() limits.Use { return limiter.refresh()[0] }
	limiter.want(map[store.Verdict]int{store.Admitted: 5}, several(5, "deploy", "deploys")...)
	testkit.Equal(t, latest().Full(), false, "full with a free slot")
	limiter.one(store.Admitted, request("sixth", "deploys"))
	testkit.Equal(t, latest().Full(), true, "full before a denial")
	limiter.one(store.Denied, request("denied", "deploys"))
	if use := latest(); !use.Full() || use.Used != 6 || use.Next == nil || time.Until(*use.Next) < 50*time.Minute {
		t.Errorf("use: got %+v, want a full limit with 6 used slots and the time of its next slot", use)
	}
	next := *latest().Next
	limiter.want(map[store.Verdict]int{store.Admitted: 4, store.Denied: 1}, several(5, "login", "security")...)
	for of, opens := range map[string]time.Time{"the limit": *latest().Next, "a path without a guarantee": limiter.Usage().Opens("deploys")} {
		testkit.Equal(t, opens.Sub(next).Abs() < time.Second, true, "%s has its next slot at %v, as before a denial of a path with a guarantee", of, opens)
	}
	testkit.Equal(t, limiter.Usage().Opens("security").IsZero(), false, "no time of the next slot of the path with a guarantee")
}

// If guarantees reserve all slots, the limit is full for everybody else although no slot is taken.
func TestLimiterLatestUsesWithGuaranteesOfAllSlots(t *testing.T) {
	t.Parallel()
	tree := newRuleset(t, guarded(t, newPlan(t, "10/1h", "none", ""), "security=10"), "").Tree
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: tree}})
	limiter.one(store.ExceedsCapacity, request("first", "deploys"))
	use := limiter.refresh()[0]
	testkit.Check(t, use.Full() && use.Never && use.Used == 0 && use.Next == nil, "use: got %+v, want a limit that never has a slot", use)
	limiter.want(map[store.Verdict]int{store.Admitted: 10}, several(10, "login", "security")...)
}

// TestLimiterRemembersFullLimits has a full category whose limit is removed and restored, and then a worker that starts. No event of the category
// arrives.
func TestLimiterRemembersFullLimits(t *testing.T) {
	t.Parallel()
	full := store.Settings{Tree: newTree(t, "none", "2/1h", "")}
	limiter := startLimiter(t, LimiterOptions{Settings: full})
	for _, r := range []store.Request{request("a.b order-1", "a.b"), request("a.b#0123456789abcdef order-1", "a.b")} {
		limiter.one(store.Admitted, r).Finish(t.Context(), "")
	}
	wantFull := func(limiter *limiterKit) {
		t.Helper()
		uses := limiter.refresh()
		testkit.Check(t, len(uses) == 1 && uses[0].Path == "a" && uses[0].Full(), "uses: got %+v, want a full limit of a", uses)
	}
	wantFull(limiter)
	limiter.Adopt(limits.Ruleset{Tree: newTree(t, "none", "none", "")})
	testkit.Equal(t, len(limiter.refresh()), 0, "uses without a limit")
	limiter.Adopt(limits.Ruleset{Tree: full.Tree})
	wantFull(limiter)
	wantFull(startLimiterAt(t, limiter.server, LimiterOptions{Settings: full}))
}

// passFreeKept changes the times of all categories as if the time that a category is tracked without slots had passed.
func (k *limiterKit) passFreeKept() {
	k.usage.mu.Lock()
	defer k.usage.mu.Unlock()
	for category, known := range k.usage.tracked.values {
		k.usage.tracked.put(category, activity{known.busy.Add(-freeKept), known.read})
	}
}

// TestLimiterReportsALimitThatBecameFree returns the only slot of a limit long after its last event. The limit is known to be free, until the time
// for that has passed.
func TestLimiterReportsALimitThatBecameFree(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "1/1h", "")}})
	grant := limiter.one(store.Admitted, request("first", "a"))
	refresh := func(used ...int64) {
		t.Helper()
		var got []int64
		for _, use := range limiter.refresh() {
			got = append(got, use.Used)
		}
		testkit.EqualSlices(t, got, used, "used slots")
	}
	limiter.passFreeKept()
	refresh(1)
	grant.Refund(t.Context())
	refresh(0)
	refresh(0)
	limiter.passFreeKept()
	refresh()
}

// TestLimiterReadsInPieces has forty instances. Each reads a part of the idle categories at a time, but shows the use of all of them, and reads at
// once where the use may have changed.
func TestLimiterReadsInPieces(t *testing.T) {
	t.Parallel()
	const categories = 3 * mostPieces
	limiter := newLimiterKit(t, servertest.StartRedis(t).Addr, LimiterOptions{
		Settings: store.Settings{Tree: newTree(t, "none", "2/1h", "")}, Instances: func() int { return 40 },
	})
	limiter.recovery.reach(t.Context())
	for i := range categories {
		limiter.one(store.Admitted, request(fmt.Sprint("first", i), fmt.Sprint("idle", i)))
	}
	testkit.Equal(t, len(limiter.refresh()), categories, "limits that are shown")
	all, idle := time.Now(), make(map[string]bool)
	for range mostPieces - 1 {
		testkit.Equal(t, len(limiter.refresh()), categories, "limits that are shown")
	}
	for category, known := range limiter.usage.tracked.values {
		if known.read.After(all) {
			idle[category] = true
		}
	}
	testkit.Equal(t, len(idle), categories-categories/mostPieces, "categories that were read again")
	due := func(in time.Duration, want int, others ...string) {
		t.Helper()
		_, _, due := limiter.usage.due(time.Now().Add(in))
		testkit.Equal(t, len(due), want, "categories to read")
		for _, other := range others {
			testkit.Equal(t, slices.Contains(due, other), true, "%s is read", other)
		}
	}
	due(0, categories/mostPieces) // not those that were read again
	rest := slices.Sorted(maps.Keys(idle))
	limiter.one(store.Admitted, request("a slot", rest[0]))
	due(0, categories/mostPieces+1, rest[0])
	limiter.want(map[store.Verdict]int{store.Admitted: 1, store.Denied: 1}, several(2, "two", rest[1])...)
	due(0, categories/mostPieces+2, rest[0], rest[1])
	limiter.refresh()
	due(0, categories/mostPieces)
	due(2*time.Hour, categories/mostPieces+2, rest[0], rest[1]) // both are full
	limiter.usage.unread()
	due(0, categories)
}

// TestLimiterKnowsTheNextSlotAtItsStart has a worker start beside a full limit. It has denied nothing, and knows the next slot that an explanation
// shows.
func TestLimiterKnowsTheNextSlotAtItsStart(t *testing.T) {
	t.Parallel()
	for limit, admits := range map[string]int{
		"2/1h": 2, "2/1h+20/2h": 2, "2/1h+2/2h": 2, "token:2/1h": 2, "fixed:2/1h": 2, "counter:2/1h": 2, "inflight:2/1h": 2,
		"leaky:2/1h": 1, "2/1h+leaky:20/1h": 1,
	} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			settings := store.Settings{Tree: newTree(t, "none", limit, "")}
			limiter := startLimiter(t, LimiterOptions{Settings: settings})
			limiter.want(map[store.Verdict]int{store.Admitted: admits}, several(admits, "order", "a")...)
			started := startLimiterAt(t, limiter.server, LimiterOptions{Settings: settings})
			started.usage.touch("a")
			known := testkit.Must(started.o.Redis.Readings.Explain(t.Context(), store.Request{ID: "a ", Category: "a", Cost: 1}))(t)
			var uses []limits.Use
			testkit.Eventually(t, "the limits are read", func() bool { // the limiter's own first reading may know no category yet, and end later
				testkit.NoError(t, started.usage.refresh(t.Context()))
				uses, _ = started.Usage().Latest()
				return len(uses) == len(known.Limits)
			})
			for i, use := range uses {
				want := known.Limits[i].Next
				if (use.Next == nil) != (want == nil) || want != nil && use.Next.Sub(*want).Abs() > time.Minute {
					t.Errorf("next slot of %s: got %v, want %v", use.Limit, use.Next, want)
				}
			}
			testkit.Equal(t, known.Denial != nil, true, "the limits deny an event")
		})
	}
}

// TestLimiterForgetsCategoriesWithoutLimits evaluates more categories without a limit than an instance tracks. They leave room for a category
// with a limit.
func TestLimiterForgetsCategoriesWithoutLimits(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "none", "limited=1/1h")}})
	for i := range maxPaths {
		limiter.usage.touch(fmt.Sprint("free", i))
	}
	testkit.NoError(t, limiter.usage.refresh(t.Context()))
	limiter.one(store.Admitted, request("first", "limited"))
	testkit.Eventually(t, "the use of the category", func() bool { // the limiter may show an older reading meanwhile
		return limiter.usage.refresh(t.Context()) == nil && len(limiter.latest()) == 1
	})
}

// TestLimiterTracksACategoryEvaluatedMeanwhile evaluates an event of a category between the reading of its free slots and its removal.
func TestLimiterTracksACategoryEvaluatedMeanwhile(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "none", "limited=1/1h")}})
	limiter.usage.touch("limited")
	asked := time.Now()
	tree, nodes, categories := limiter.usage.due(asked)
	uses := testkit.Must(limiter.usage.o.Redis.Readings.Uses(t.Context(), nodes))(t)
	limiter.one(store.Admitted, request("first", "limited"))
	limiter.usage.show(tree, nodes, uses)
	limiter.usage.forgetIdle(asked, tree, categories)
	testkit.Eventually(t, "the use of the category", func() bool { // the limiter may show an older reading meanwhile
		return limiter.usage.refresh(t.Context()) == nil && len(limiter.latest()) == 1
	})
}
