package throttle

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func TestLimiterCategoryLogOfTheWrongType(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Local, Grace: time.Nanosecond})
	limiter.server.CLI("SET", "{limiter}:log:bad", "a string")
	answers := limiter.decide(request("a", "a"), request("b", "bad"), request("c", "c"))
	wantVerdicts(t, answers, store.Admitted, store.Deferred, store.Admitted)
	bad := answers[1]
	testkit.Require(t, errors.Is(bad.Err, script.ErrRefused) && bad.Grant == nil, "got %+v, want %v without a grant", bad, script.ErrRefused)
	limiter.wantReady(nil)
	limiter.logs.Want(t, "event cannot be evaluated")

	// One local admission that Redis refuses does not stop the others from being sent.
	limiter.loseAndAct()
	limiter.want(map[store.Verdict]int{store.Admitted: 3}, request("local a", "a"), request("local b", "bad"), request("local c", "c"))
	limiter.regain()
	for _, category := range []string{"a", "c"} {
		limiter.wantLogged(category, 2)
	}
}

func TestLimiterFull(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "10/1h", "2/1h", "")}, DenyCacheTTL: time.Hour})
	limiter.wantFull("a", "")
	asked := time.Now()
	answers := limiter.want(map[store.Verdict]int{store.Admitted: 2, store.Denied: 1}, several(3, "e", "a")...)
	for _, category := range []string{"a", "a.b.c"} {
		limiter.wantFull(category, limits.LevelCategory)
	}
	known := limiter.Full("a", "")
	testkit.Between(t, known.Opens.Sub(asked), 59*time.Minute, time.Hour+time.Minute, "time until the next slot")
	testkit.Equal(t, *known, store.Denial{
		Level: limits.LevelCategory, Path: "a", Limit: limits.Limit{Count: 2, Window: time.Hour}, Used: 2, Opens: known.Opens,
	}, "denial")
	testkit.Equal(t, answers[2].Denial(asked).Used, 2, "slots taken, as the decision says")
	limiter.wantFull("b", "")
	answers[0].Grant.Refund(t.Context())
	limiter.wantFull("a", "")
	// A denial of several slots does not make the limit full for one slot.
	denied := limiter.want(map[store.Verdict]int{store.Denied: 1}, costing(2, request("two", "a")))
	testkit.Equal(t, denied[0].Denial(asked).Used, 0, "slots taken, as the denial of two slots says")
	limiter.wantFull("a", "")
	limiter.one(store.Admitted, request("another", "a"))
	limiter.metrics.wantDecisions(t, map[string]int{"admitted by redis": 3, "denied by redis": 2, "denied by cache": 3})
}

func TestLimiterShadow(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{
		Settings: store.Settings{Tree: newTree(t, "none", "1/1h", "off=0/1h"), Forward: true}, DenyCacheTTL: time.Hour, Policy: Local, Grace: time.Nanosecond,
	})
	check := func(name string) {
		t.Helper()
		answers := limiter.want(map[store.Verdict]int{store.Admitted: 1, store.Denied: 1, store.ExceedsCapacity: 1}, request(name+"1", name), request(name+"2", name), request(name+"3", "off"))
		for i, answer := range answers {
			testkit.Require(t, answer.Grant != nil, "event %d is not forwarded: %+v", i+1, answer)
			answer.Grant.Finish(t.Context(), "")
		}
		limiter.wantFull(name, "")
	}
	check("a")
	limiter.metrics.wantDecisions(t, map[string]int{"admitted by redis": 1, "denied by redis": 1, "exceeds_capacity by redis": 1})
	limiter.loseAndAct()
	check("b")
	limiter.regain()
	limiter.wantLogged("b", 1)
}

// TestLimiterLearnsPauses learns another instance's pause from a decision.
func TestLimiterLearnsPauses(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := newLimiterKit(t, server.Addr, LimiterOptions{})
	limiter.server = server
	pacer := pacing.New(pacing.Options{Runner: script.NewRunner(limiter.options), Available: limiter.Available, Logger: limiter.logs.Logger()})
	limiter.o.Pauses, limiter.o.SelfTests = pacer.Learn, []store.SelfTest{pacing.SelfTest}
	limiter.start()
	elsewhere := testkit.NewLog(t)
	pacing.New(pacing.Options{Runner: script.NewRunner(limiter.options), Logger: elsewhere.Logger()}).Pause(t.Context(), "#here", time.Hour)
	elsewhere.WantCount(t, 0, "cannot share a pause with other instances")
	testkit.Equal(t, pacer.Paused("#here"), 0, "pause that the other instance knows of at once")
	limiter.one(store.Admitted, request("e", "a"))
	testkit.Between(t, pacer.Paused("#here"), 1, time.Hour, "pause of #here")
	testkit.Equal(t, pacer.Paused("#elsewhere"), 0, "another destination is paused for")

	// While Redis is unavailable a pause is kept locally, without an error.
	limiter.lose()
	pacer.Pause(t.Context(), "#elsewhere", time.Hour)
	testkit.AtLeast(t, pacer.Paused("#elsewhere"), 1, "pause without Redis")
	limiter.logs.Want(t, "redis is unavailable", "deliveries were paused")
}

// TestLimiterNeedsEverySelfTest lacks a right that only another package's self-test needs.
func TestLimiterNeedsEverySelfTest(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := newLimiterKit(t, "", LimiterOptions{
		Redis:     newRedis(scripttest.SetUser(t, server, "without", scripttest.Without(scripttest.Rights(), "set")), scripttest.UserPrefix, store.Settings{Tree: newTree(t, "6/1h", "5/1h", "a.b=4/1h"), Lease: testLease, Retention: testRetention, PairTTL: testPairTTL}),
		SelfTests: []store.SelfTest{pacing.SelfTest},
	})
	limiter.recovery.reach(t.Context())
	limiter.wantReady(script.ErrForbidden)
	testkit.Equal(t, limiter.Available(), false, "available")
}

func TestLimiterUsageMetrics(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := newLimiterKit(t, server.Addr, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "100/1h", "10/1h+20/2h", "a.b=4/1h,off=0/1h,none=none,c.*=3/1h")}})
	limiter.recovery.reach(t.Context())
	sizes := map[string]int{limits.LevelGlobal: 100, limits.LevelCategory: 10, "a.b": 4, "off": 0, "c.*": 3}
	check := func(want map[string]int) {
		t.Helper()
		testkit.NoError(t, limiter.usage.refresh(t.Context()))
		testkit.EqualMaps(t, limiter.metrics.used.All(), want, "used")
	}
	testkit.EqualMaps(t, limiter.metrics.size.All(), sizes, "sizes")
	testkit.EqualMaps(t, limiter.metrics.used.All(), nil, "used before anything was read")
	check(map[string]int{limits.LevelGlobal: 0}) // no other node is known yet
	limiter.want(map[store.Verdict]int{store.Admitted: 3, store.ExceedsCapacity: 1}, append(several(3, "ab", "a.b"), request("off", "off"))...)
	grants := limiter.want(map[store.Verdict]int{store.Admitted: 8}, append(several(6, "b", "b"), several(2, "c", "c.d")...)...)
	limiter.want(map[store.Verdict]int{store.Admitted: 15}, several(15, "n", "none")...)
	check(map[string]int{limits.LevelGlobal: 26, limits.LevelCategory: 6, "a.b": 3, "off": 0, "c.*": 2})
	for _, answer := range grants[:5] {
		answer.Grant.Refund(t.Context())
	}
	check(map[string]int{limits.LevelGlobal: 21, limits.LevelCategory: 3, "a.b": 3, "off": 0, "c.*": 2})
	server.CLI("FLUSHDB")
	check(map[string]int{limits.LevelGlobal: 0, limits.LevelCategory: 0, "a.b": 0, "off": 0, "c.*": 0})
	testkit.Equal(t, len(limiter.usage.tracked.values), 5, "categories that have just become free")
	limiter.passFreeKept()
	testkit.NoError(t, limiter.usage.refresh(t.Context()))
	testkit.EqualSlices(t, slices.Collect(maps.Keys(limiter.usage.tracked.values)), []string{"none"}, "categories tracked without slots")
	testkit.EqualMaps(t, limiter.metrics.size.All(), sizes, "sizes")

	// Usage read for replaced limits is not shown.
	before := limiter.usage.tree
	tree := newTree(t, "100/1h", "none", "new=1/1h")
	limiter.Adopt(limits.Ruleset{Tree: tree})
	testkit.EqualSlices(t, limiter.metrics.levels, []string{limits.LevelGlobal, "new"}, "levels")
	limiter.metrics.used, limiter.metrics.size = testkit.Counts{}, testkit.Counts{}
	limiter.usage.show(before, before.Path("a.b"), [][]limits.Use{{useOf(t, "a.b", "4/1h", 4)}})
	testkit.EqualMaps(t, limiter.metrics.used.All(), nil, "used of limits that are gone")
	testkit.EqualMaps(t, limiter.metrics.size.All(), nil, "sizes of limits that are gone")
	check(map[string]int{limits.LevelGlobal: 0})
}

func TestLimiterLogsOnceThatAnEventNeverFits(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "3/1h", "off=0/1h")}})
	for round := range 3 {
		limiter.want(map[store.Verdict]int{store.ExceedsCapacity: 3},
			costing(4, request(fmt.Sprint("a", round), "a")), costing(100, request(fmt.Sprint("b", round), "b")), request(fmt.Sprint("off", round), "off"))
	}
	limiter.logs.Want(t, "event costs more than its limit", "event costs more than its limit")
}

func TestLimiterConcurrentGrants(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "none", "a=1000/1h")}, Policy: Local})
	testkit.AtOnce(8, func(worker int) {
		for round := range 10 {
			answers, err := limiter.Decide(t.Context(), several(8, fmt.Sprint(worker, "-", round, "-"), "a"))
			if err != nil {
				t.Error(err)
				return
			}
			for i, answer := range answers {
				switch i % 4 {
				case 0:
					answer.Grant.Finish(t.Context(), "")
				case 1:
					answer.Grant.Refund(t.Context())
				case 2:
					testkit.Equal(t, answer.Grant.Extend(t.Context()), true, "a lease is extended")
					answer.Grant.Finish(t.Context(), "")
				case 3:
					answer.Grant.Release(t.Context(), false)
				}
			}
		}
	})
	want := int64(8 * 10 * 6) // two of eight were returned
	uses := testkit.Must(limiter.o.Redis.Readings.Uses(t.Context(), limiter.o.Tree.Path("a")))(t)
	testkit.Equal(t, uses[0][0].Used, want, "slots taken in Redis")
	testkit.Equal(t, limiter.grants.mirror.memory.Usage(limiter.o.Tree.Path("a"))[0][0], want, "slots taken locally")
	limiter.metrics.wantRefunded(t, 8*10*2)
}

func TestRetention(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ streamAge, maxAge, want time.Duration }{
		{0, time.Hour, 7*24*time.Hour + time.Hour},
		{24 * time.Hour, time.Hour, 25 * time.Hour},
		{time.Hour, 24 * time.Hour, 25 * time.Hour},
		{24 * time.Hour, 0, 25 * time.Hour},
		{0, 0, 7*24*time.Hour + time.Hour},
	} {
		testkit.Equal(t, Retention(test.streamAge, test.maxAge), test.want, "for a stream age of %v and a maximum age of %v",
			test.streamAge, test.maxAge)
	}
}
