package throttle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func (m *fakeMetrics) wantShadow(t *testing.T, want map[string]int) {
	t.Helper()
	testkit.EqualMaps(t, m.shadow.All(), want, "decisions of the shadow")
}

func (k *limiterKit) wantFull(category, level string) {
	k.t.Helper()
	k.wantFullFor(category, "", level)
}

// wantFullFor wants the cache to deny the events of a key at a level; "" wants no denial.
func (k *limiterKit) wantFullFor(category, key, level string) {
	k.t.Helper()
	denial := cmp.Or(k.Full(category, key), new(store.Denial))
	testkit.Equal(k.t, denial.Level, level, "level that denies %s, key %q", category, key)
}

func TestLimiterRaisedLimitShowsAtOnce(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{
		Settings: store.Settings{Tree: newTree(t, "none", "none", "")}, DenyCacheTTL: time.Hour,
		Refresh: func(context.Context) error { return nil }, // a comparison that began before Adopt finds newer limits
	})
	for _, a := range algorithm.All() {
		if a.Description().Frees == algorithm.BySpacing {
			continue // it has one slot at once, whatever the count
		}
		kind := a.String()
		for _, where := range []struct{ plan, level string }{{"global", limits.LevelGlobal}, {"category", limits.LevelCategory}, {"rule", kind + ".b"}} {
			category, revision := kind+".b", limiter.o.Redis.Rules().Position.Revision
			adopt := func(limit string) {
				t.Helper()
				given := map[string]string{"global": "none", "category": "none", "rule": "none"}
				given[where.plan] = kind + ":" + limit
				revision++
				tree := newTree(t, given["global"], given["category"], kind+".b="+given["rule"])
				limiter.Adopt(limits.Ruleset{Tree: tree, Position: limits.Position{Generation: 1, Revision: revision}})
			}
			event := func(n int) store.Request { return request(fmt.Sprint(kind, where.plan, n), category) }
			adopt("2/1h")
			limiter.want(map[store.Verdict]int{store.Admitted: 2, store.Denied: 1}, event(1), event(2), event(3))
			full := where.level
			if a.Description().FollowsDelivery() { // a slot may come back at any time
				full = ""
			}
			limiter.wantFull(category, full)
			adopt("3/1h")
			limiter.wantFull(category, "")
			limiter.one(store.Admitted, event(3))
			limiter.one(store.Denied, event(4))
			limiter.wantFull(category, full)
		}
	}
}

func TestLimiterFullForAllButAGuarantee(t *testing.T) {
	t.Parallel()
	plan := guarded(t, newPlan(t, "5/1h", "none", ""), "security=1,payments.refunds=2")
	limiter := startLimiter(t, LimiterOptions{
		Settings: store.Settings{Tree: newRuleset(t, plan, "").Tree}, DenyCacheTTL: time.Hour,
	})
	limiter.want(map[store.Verdict]int{store.Admitted: 2, store.Denied: 1}, several(3, "o", "orders")...)
	limiter.wantFull("orders", limits.LevelGlobal)
	limiter.wantFull("payments", limits.LevelGlobal)
	limiter.wantFull("security.login", "")
	limiter.wantFull("payments.refunds", "")
	security := limiter.want(map[store.Verdict]int{store.Admitted: 1, store.Denied: 1}, several(2, "s", "security")...)
	limiter.wantFull("security.login", limits.LevelGlobal)
	limiter.wantFull("payments.refunds", "")
	limiter.want(map[store.Verdict]int{store.Admitted: 2, store.Denied: 1}, several(3, "r", "payments.refunds")...)
	limiter.wantFull("payments.refunds", limits.LevelGlobal)
	security[0].Grant.Refund(t.Context())
	limiter.wantFull("security", "")
	limiter.one(store.Admitted, request("s2", "security"))
}

func TestLimiterFullInForceAndInTheShadow(t *testing.T) {
	t.Parallel()
	rules := newRuleset(t, newPlan(t, "none", "2/1h", ""), "category=3/1h,b=1/1h")
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: rules.Tree, Shadow: rules.Shadow}, DenyCacheTTL: time.Hour})
	limiter.want(map[store.Verdict]int{store.Admitted: 2, store.Denied: 1}, several(3, "a", "a")...)
	limiter.wantFull("a", "") // the shadow has admitted the third
	limiter.one(store.Denied, request("a4", "a"))
	limiter.metrics.wantShadow(t, map[string]int{"admitted by none": 3, "denied by category": 1})
	limiter.wantFull("a", limits.LevelCategory)
	limiter.metrics.wantShadow(t, map[string]int{"admitted by none": 3, "denied by category": 2})
	limiter.metrics.wantDecisions(t, map[string]int{"admitted by redis": 2, "denied by redis": 2, "denied by cache": 1})

	limiter.one(store.Admitted, request("b1", "b"))
	limiter.one(store.Admitted, request("b2", "b"))
	limiter.wantFull("b", "") // only the shadow is full
	limiter.metrics.wantShadow(t, map[string]int{"admitted by none": 4, "denied by category": 2, "denied by b": 1})
	limiter.one(store.Denied, request("b3", "b"))
	limiter.wantFull("b", limits.LevelCategory)
	limiter.metrics.wantShadow(t, map[string]int{"admitted by none": 4, "denied by category": 2, "denied by b": 3})

	// Redis decides anew with another shadow. Without a shadow the limits in force are enough.
	limiter.Adopt(newRuleset(t, newPlan(t, "none", "2/1h", ""), "category=4/1h"))
	limiter.wantFull("a", "")
	limiter.one(store.Denied, request("a5", "a"))
	limiter.metrics.wantShadow(t, map[string]int{"admitted by none": 5, "denied by category": 2, "denied by b": 3})
	limiter.Adopt(newRuleset(t, newPlan(t, "none", "2/1h", ""), ""))
	limiter.wantFull("a", limits.LevelCategory)
}

// staleLimiter starts a limiter with the limit 2/1h, which is full. Another instance has put 3/1h in force.
func staleLimiter(t *testing.T, refresh func(ctx context.Context, limiter *limiterKit, newer limits.Ruleset) error) (*limiterKit, *servertest.Redis) {
	t.Helper()
	server := servertest.StartRedis(t)
	var limiter *limiterKit
	newer := limits.Ruleset{Tree: newTree(t, "none", "3/1h", ""), Position: limits.Position{Generation: 1, Revision: 2}}
	o := LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "2/1h", "")}, DenyCacheTTL: time.Hour}
	if refresh != nil {
		o.Refresh = func(ctx context.Context) error { return refresh(ctx, limiter, newer) }
	}
	limiter = newLimiterKit(t, server.Addr, o)
	limiter.start()
	limiter.want(map[store.Verdict]int{store.Admitted: 2}, several(2, "e", "a")...)
	decideElsewhere(t, server, newer, request("other", "others"))
	return limiter, server
}

// decideElsewhere has another instance decide about an event, which puts its limits in force.
func decideElsewhere(t *testing.T, server *servertest.Redis, rules limits.Ruleset, r store.Request) {
	t.Helper()
	other := newRedis(newClient(t, redis.Options{Addr: server.Addr}), "limiter", store.Settings{Tree: rules.Tree, Lease: time.Hour, Retention: testRetention})
	other.Adopt(rules)
	testkit.Must(other.Decide(t.Context(), []store.Request{r}))(t)
}

func TestLimiterRefreshesLimitsThatAreNotTheNewest(t *testing.T) {
	t.Parallel()
	refreshed := 0
	limiter, _ := staleLimiter(t, func(ctx context.Context, limiter *limiterKit, newer limits.Ruleset) error {
		refreshed++
		_, limited := ctx.Deadline()
		testkit.Equal(t, limited, true, "the wait for the newest limits is bounded")
		limiter.Adopt(newer)
		return nil
	})
	answers := limiter.decide(request("e3", "a"), request("e4", "a"))
	testkit.Equal(t, refreshed, 1, "refreshes")
	testkit.Check(t, answers[0].Verdict == store.Admitted && answers[0].Grant != nil && answers[1].Verdict == store.Denied && answers[1].Limit.Count == 3,
		"answered %+v", answers)
	limiter.wantFull("a", limits.LevelCategory)
	answers[0].Grant.Refund(t.Context())
	limiter.one(store.Admitted, request("e4", "a"))
	testkit.Equal(t, refreshed, 1, "refreshes")
	limiter.logs.Want(t)
}

// wantBehind checks that a limiter with outdated limits decides nothing.
func (k *limiterKit) wantBehind() {
	k.t.Helper()
	answers, err := k.Decide(k.t.Context(), several(5, "x", "b"))
	testkit.Require(k.t, errors.Is(err, script.ErrStale) && len(answers) == 0, "answered %+v, %v; want %v", answers, err, script.ErrStale)
	testkit.Fails(k.t, "the wait with outdated limits", k.Await(testkit.Ended(k.t)), context.Canceled)
}

// outlast makes the limiter outdated for longer than behindAtMost.
func (k *limiterKit) outlast() {
	k.staleness.mu.Lock()
	defer k.staleness.mu.Unlock()
	k.staleness.since = k.staleness.since.Add(-behindAtMost)
}

const (
	wordBehind  = "limits are outdated: pulling no events"
	wordCurrent = "limits are current again"
)

func TestLimiterCannotRefresh(t *testing.T) {
	t.Parallel()
	type refreshCase struct {
		refresh func(context.Context, *limiterKit, limits.Ruleset) error
		reason  string
	}
	testkit.Each(t, map[string]refreshCase{
		"no way to":             {nil, "another deployment needs a NOTIFIER_REDIS_PREFIX of its own"},
		"failing":               {func(context.Context, *limiterKit, limits.Ruleset) error { return errors.New("no bucket") }, "cannot be read: no bucket"},
		"finding nothing newer": {func(context.Context, *limiterKit, limits.Ruleset) error { return nil }, "notifier limits adopt"},
	}, func(t *testing.T, test refreshCase) {
		limiter, server := staleLimiter(t, test.refresh)
		client := newClient(t, redis.Options{Addr: server.Addr})
		before := scripttest.Contents(t, client)
		limiter.wantFull("a", "")
		for range 3 {
			limiter.wantBehind()
		}
		scripttest.WantUnchanged(t, client, before)
		limiter.wantReady(nil)
		limiter.logs.Want(t)

		limiter.outlast()
		testkit.Eventually(t, "the limiter is not ready", func() bool { return limiter.Ready() != nil })
		err := limiter.Ready()
		testkit.Contains(t, "reason", err.Error(), "revision 2 of generation 1 (", "here is none", test.reason)
		limiter.wantBehind()
		limiter.logs.Want(t, wordBehind)
		limiter.metrics.wantDecisions(t, map[string]int{"admitted by redis": 2})

		// The limiter notices by itself that its limits are in force again.
		other := newRedis(client, "limiter", limiter.o.Settings)
		put := testkit.Must(other.Positions.PutInForce(t.Context(), limits.Position{Generation: 1, Revision: 2}, limits.Position{}))(t)
		testkit.Equal(t, put, true, "put in force")
		limiter.await()
		limiter.wantReady(nil)
		limiter.logs.Want(t, wordBehind, wordCurrent)
		limiter.want(map[store.Verdict]int{store.Admitted: 2, store.Denied: 1}, several(3, "x", "b")...)
	})
}

// TestLimiterIsBehindFromTheStart starts a limiter after newer limits are in force. The limiter reads them later.
func TestLimiterIsBehindFromTheStart(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	newer := limits.Ruleset{Tree: newTree(t, "none", "3/1h", ""), Position: limits.Position{Generation: 1, Revision: 2}}
	decideElsewhere(t, server, newer, request("other", "others"))
	var limiter *limiterKit
	known := make(chan struct{})
	limiter = newLimiterKit(t, server.Addr, LimiterOptions{
		Settings: store.Settings{Tree: newTree(t, "none", "2/1h", "")},
		Refresh: func(context.Context) error {
			select {
			case <-known:
				limiter.Adopt(newer)
				return nil
			default:
				return errors.New("not read yet")
			}
		},
	})
	limiter.run()
	limiter.until(answering)
	limiter.wantBehind()
	testkit.Fails(t, "ready", limiter.Ready(), script.ErrStale, "not read yet")
	close(known)
	limiter.await()
	limiter.wantReady(nil)
	limiter.logs.Want(t) // outdated for a short time only
	limiter.want(map[store.Verdict]int{store.Admitted: 3, store.Denied: 1}, several(4, "e", "a")...)
}

// TestIdleLimiterNoticesNewerLimits makes no decision.
func TestIdleLimiterNoticesNewerLimits(t *testing.T) {
	t.Parallel()
	limiter, server := staleLimiter(t, func(context.Context, *limiterKit, limits.Ruleset) error { return errors.New("no bucket") })
	testkit.Eventually(t, "the limiter is behind", func() bool {
		return limiter.Await(testkit.Ended(t)) != nil
	})
	limiter.outlast()
	testkit.Eventually(t, "the limiter is not ready", func() bool { return limiter.Ready() != nil })
	server.CLI("del", "{limiter}:limits") // Redis has lost its data
	limiter.await()
	limiter.logs.Want(t, wordBehind, wordCurrent)
}

// TestLimiterSharesOfEachAlgorithm decides by the local share of one of three instances.
func TestLimiterSharesOfEachAlgorithm(t *testing.T) {
	t.Parallel()
	var rules []string
	for _, a := range algorithm.All() {
		limit := a.String() + "=" + a.String() + ":6/1h"
		if a.Description().Bursts {
			limit += ";burst=3"
		}
		rules = append(rules, limit)
	}
	limiter := startLimiter(t, LimiterOptions{
		Settings: store.Settings{Tree: newTree(t, "none", "none", strings.Join(rules, ","))},
		Policy:   Local, Grace: time.Nanosecond, Instances: func() int { return 3 }, DenyCacheTTL: time.Hour,
	})
	limiter.loseAndAct()
	for _, a := range algorithm.All() {
		share := limits.Limit{Algorithm: a, Count: 2, Window: time.Hour}
		if a.Description().Bursts {
			share.Burst = 1
		}
		admitted, wait := fillAlone(share, time.Now())
		answers := limiter.want(map[store.Verdict]int{store.Admitted: admitted, store.Denied: 5 - admitted}, several(5, a.String(), a.String())...)
		testkit.Between(t, answers[4].Wait, wait-patience, wait, "%s: time until the next slot", a)
		limiter.wantFull(a.String(), "") // a full share is no full limit
		testkit.Equal(t, limiter.Usage().Opens(a.String()), time.Time{}, "next slot of a limit whose share is full")
		if a.Description().FollowsDelivery() {
			answers[0].Grant.Finish(t.Context(), "")
			limiter.one(store.Admitted, request(a.String()+"5", a.String()))
		}
	}
}

// fillAlone takes slots of a limit that nobody else uses until it is full. It returns their number, and when the next slot opens.
func fillAlone(limit limits.Limit, at time.Time) (taken int, wait time.Duration) {
	state, own := limit.Description().Memory(), []limits.Limit{limit}
	for n := range 5 {
		event := algorithm.Event{Now: at.UnixMicro(), Cost: 1, Message: fmt.Sprint(n)}
		if _, wait := state.Wait(event, own); wait > 0 {
			return n, time.Duration(wait) * time.Microsecond
		}
		state.Take(event, own)
	}
	return 5, 0
}
