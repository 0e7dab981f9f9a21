package throttle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func TestLimiterHolds(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Hold, Grace: time.Nanosecond})
	limiter.one(store.Admitted, request("first", "a"))
	limiter.lose()
	limiter.wantReady(script.ErrUnavailable)
	testkit.Fails(t, "the policy acts", limiter.Usage().PolicyActs(), script.ErrUnavailable)
	waiting := make(chan error, 1)
	ctx := testkit.Context(t)
	go func() { waiting <- limiter.Await(ctx) }()
	mixed := append(resolving(aboutDisk("resolved")), request("limited", "a"))
	for _, requests := range [][]store.Request{several(5, "e", "a"), mixed, mixed[:1]} {
		_, err := limiter.Decide(t.Context(), requests)
		testkit.Fails(t, fmt.Sprintf("%d events", len(requests)), err, script.ErrUnavailable)
		testkit.Equal(t, strings.Count(fmt.Sprint(err), "redis is unavailable"), 1, "how often %v says it", err)
	}
	select {
	case err := <-waiting:
		t.Fatalf("the wait ended without a server: %v", err)
	default:
	}
	limiter.logs.Want(t, "redis is unavailable")
	limiter.server.Restart()
	testkit.NoError(t, <-waiting)
	limiter.wantReady(nil)
	testkit.NoError(t, limiter.Usage().PolicyActs())
	limiter.want(map[store.Verdict]int{store.Admitted: 9, store.Denied: 1}, several(10, "e", "a")...)
	limiter.logs.Want(t, "redis is unavailable", "redis answers")
	limiter.metrics.wantDegraded(t, false, true, false)
	limiter.metrics.wantDecisions(t, map[string]int{"admitted by redis": 10, "denied by redis": 1})
}

func TestLimiterWaitsForTheFirstContact(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	server.Kill()
	limiter := newLimiterKit(t, server.Addr, LimiterOptions{Policy: Hold})
	limiter.wantReady(script.ErrUnavailable)
	contact := limiter.outage.changed
	limiter.run()
	<-contact
	cancelled, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	testkit.Fails(t, "cancelled wait", limiter.Await(cancelled), stopped)
	server.Restart()
	limiter.await()
	limiter.one(store.Admitted, request("e", "a"))
	_, err := limiter.Decide(cancelled, []store.Request{request("f", "a")})
	testkit.Fails(t, "cancelled decision", err, stopped)
	limiter.logs.Want(t, "redis is unavailable", "redis answers")
}

// TestLimiterEndsBeforeTheFirstContact ends a limiter while it tries to reach Redis. The log says nothing about Redis.
func TestLimiterEndsBeforeTheFirstContact(t *testing.T) {
	t.Parallel()
	limiter := newLimiterKit(t, servertest.StartRedis(t).Addr, LimiterOptions{})
	limiter.recovery.reach(testkit.Ended(t))
	limiter.logs.WantCount(t, 0, "")
	limiter.wantReady(script.ErrUnavailable)
}

// TestLimiterIsNotReadyBeforeTheFirstContact has the failure policy act before Redis has answered once. It decides, but the settings of Redis
// may be wrong, and a rollout must not go on.
func TestLimiterIsNotReadyBeforeTheFirstContact(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	server.Kill()
	limiter := newLimiterKit(t, server.Addr, LimiterOptions{Policy: Local, Grace: time.Nanosecond, Instances: func() int { return 1 }})
	limiter.run()
	limiter.await()
	limiter.one(store.Admitted, request("e", "a"))
	limiter.wantReady(script.ErrUnavailable)
	server.Restart()
	testkit.Eventually(t, "the limiter is ready", func() bool { return limiter.Ready() == nil })
	limiter.logs.Want(t, "redis is unavailable", "redis stays unavailable, the failure policy acts", "redis answers")
}

func TestLimiterDecidesLocally(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{
		Settings:  store.Settings{Tree: newTree(t, "100/1h", "10/1h", "rare=1/1h")},
		Policy:    Local,
		Grace:     time.Nanosecond,
		Instances: func() int { return 2 },
	})
	before := limiter.want(map[store.Verdict]int{store.Admitted: 3}, several(3, "before", "a")...)
	limiter.loseAndAct()
	limiter.wantReady(nil)

	// Three of this instance's share of five slots were taken before.
	answers := limiter.want(map[store.Verdict]int{store.Admitted: 2, store.Denied: 8}, several(10, "local", "a")...)
	limiter.one(store.Admitted, request("rare1", "rare"))
	limiter.one(store.Denied, request("rare2", "rare"))
	limiter.one(store.Leased, request("local1", "a"))
	refunded := limiter.one(store.Admitted, request("refunded", "b"))
	refunded.Refund(t.Context())
	finished, going := answers[0].Grant, answers[1].Grant
	finished.Finish(t.Context(), "")
	limiter.one(store.Done, request("local1", "a"))
	testkit.Equal(t, going.Extend(t.Context()), true, "the lease is extended")
	before[0].Grant.Finish(t.Context(), "")
	before[1].Grant.Refund(t.Context())
	testkit.Equal(t, before[2].Grant.Extend(t.Context()), true, "extended while Redis is unavailable")
	limiter.logs.Want(t, "redis is unavailable", "redis stays unavailable, the failure policy acts")
	limiter.recovery.replay.mu.Lock()
	for _, grant := range limiter.recovery.replay.unsynced {
		if grant.local {
			grant.At = grant.At.Add(-10 * time.Minute)
		}
	}
	limiter.recovery.replay.mu.Unlock()

	testkit.AtLeast(t, limiter.metrics.unread.Load(), 1, "readings of the used slots that failed")
	uses, known := limiter.Usage().Latest()
	testkit.Equal(t, known || len(uses) > 0, false, "uses are known without Redis")
	decided := time.Now()
	limiter.regain()
	limiter.logs.Want(t, "redis is unavailable", "redis stays unavailable, the failure policy acts", "redis answers")
	limiter.wantRestored(decided)
	limiter.one(store.Done, request("local1", "a"))
	limiter.one(store.Leased, request("local2", "a"))
	limiter.one(store.Done, request("before1", "a"))
	limiter.one(store.Admitted, request("before2", "a"))
	testkit.Equal(t, going.Extend(t.Context()), true, "the lease is extended")
	going.Finish(t.Context(), "")
	limiter.one(store.Done, request("local2", "a"))
	testkit.Eventually(t, "uses with Redis", func() bool { _, known := limiter.Usage().Latest(); return known })
	limiter.metrics.wantRefunded(t, 2)
	limiter.metrics.wantDegraded(t, false, true, false)
}

// wantRestored checks that the logs hold the admissions of Redis and of the instance, each at its own time.
func (k *limiterKit) wantRestored(decided time.Time) {
	k.t.Helper()
	log := scores(k.t, k.server, "{limiter}:log:a")
	testkit.EqualSlices(k.t, slices.Sorted(maps.Keys(log)), []string{"before1", "before3", "local1", "local2"}, "slots in the log")
	for _, id := range []string{"local1", "local2"} {
		testkit.Between(k.t, decided.Sub(log[id]), 9*time.Minute, 11*time.Minute, "time since the admission of %s", id)
	}
	testkit.Equal(k.t, len(scores(k.t, k.server, "{limiter}:log")), 5, "slots in the global log")
}

func TestLimiterForgetsARefundedAdmissionOfItsOwn(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Local, Grace: time.Nanosecond, Settings: store.Settings{Lease: time.Microsecond}})
	limiter.loseAndAct()
	// The first lease lapses at once. The redelivered message cannot be delivered.
	first := limiter.one(store.Admitted, request("e", "a"))
	time.Sleep(time.Millisecond) // the lease lapses by the machine's clock
	second := limiter.one(store.Reclaimed, request("e", "a"))
	first.Refund(t.Context())
	second.Refund(t.Context())
	limiter.regain()
	limiter.wantLogged("a", 0)
	limiter.one(store.Admitted, request("e", "a"))
}

func TestLimiterOpens(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Open, Grace: time.Nanosecond})
	limiter.want(map[store.Verdict]int{store.Admitted: 10, store.Denied: 5}, several(15, "before", "a")...)
	limiter.loseAndAct()
	answers := limiter.want(map[store.Verdict]int{store.Admitted: 25}, several(25, "open", "a")...)
	for _, answer := range answers[:20] {
		answer.Grant.Finish(t.Context(), "")
	}
	limiter.one(store.Done, request("open1", "a"))
	limiter.regain()
	limiter.wantLogged("a", 35)
	for _, answer := range answers[20:] {
		answer.Grant.Refund(t.Context())
	}
	limiter.wantLogged("a", 30)
	limiter.one(store.Done, request("open20", "a"))
	limiter.one(store.Denied, request("after", "a"))
}

// TestLimiterRestoresByTheNewestLimits has an operator lengthen a window during an outage.
func TestLimiterRestoresByTheNewestLimits(t *testing.T) {
	t.Parallel()
	newer := limits.Ruleset{Tree: newTree(t, "none", "3/2h", ""), Position: limits.Position{Generation: 1, Revision: 2}}
	var limiter *limiterKit
	limiter, proxy := startLimiterBehindProxy(t, patience, LimiterOptions{
		Settings: store.Settings{Tree: newTree(t, "none", "3/30m", "")}, Policy: Local, Grace: time.Nanosecond,
		Refresh: func(context.Context) error {
			limiter.Adopt(newer)
			return nil
		},
	})
	proxy.Refuse(true)
	_, _ = limiter.Decide(t.Context(), []store.Request{request("lost", "b")})
	limiter.until(acting)
	limiter.one(store.Admitted, request("local", "a"))
	limiter.grants.replay.mu.Lock()
	limiter.grants.replay.unsynced[0].At = time.Now().Add(-time.Hour)
	limiter.grants.replay.mu.Unlock()
	decideElsewhere(t, limiter.server, newer, request("other", "a"))
	proxy.Refuse(false)
	limiter.until(answering)
	limiter.wantLogged("a", 2) // the window of the older limit would leave out the slot of an hour ago
	client := newClient(t, redis.Options{Addr: limiter.server.Addr})
	testkit.AtLeast(t, testkit.Must(client.TTL(t.Context(), limiterKey("log:a")).Result())(t), 2*time.Hour, "time for which the log is kept")
}

func TestLimiterCloses(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Policy: Closed, Grace: time.Nanosecond})
	limiter.loseAndAct()
	for _, answer := range limiter.want(map[store.Verdict]int{store.Denied: 20}, several(20, "e", "a")...) {
		testkit.Require(t, answer.Node.Level == limits.LevelClosed && answer.Grant == nil,
			"got %+v, want a denial by %s without a grant", answer, limits.LevelClosed)
	}
	limiter.metrics.wantDecisions(t, map[string]int{"denied by local": 20})
	limiter.regain()
	limiter.one(store.Admitted, request("e1", "a"))
}

// TestLimiterGrace ends an outage before the grace is over: the policy does not act.
func TestLimiterGrace(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Policy: Closed, Grace: time.Hour})
	limiter.lose()
	limiter.server.Restart()
	limiter.await()
	limiter.one(store.Admitted, request("e", "a"))
	limiter.logs.Want(t, "redis is unavailable", "redis answers")
	limiter.metrics.wantDegraded(t, false)
}

func TestLimiterRedisThatAnswersNothing(t *testing.T) {
	t.Parallel()
	limiter, proxy := startLimiterBehindProxy(t, 2*time.Second, LimiterOptions{Policy: Closed, Grace: time.Nanosecond})
	grant := limiter.one(store.Admitted, request("e", "a"))
	proxy.DropReplies(true)
	attempted := request("g", "a")
	attempted.Attempted = true
	_, err := limiter.Decide(t.Context(), []store.Request{request("f", "a"), attempted})
	testkit.Fails(t, "error", err, script.ErrUnavailable)
	limiter.until(acting)
	grant.Finish(t.Context(), "")
	proxy.DropReplies(false)
	proxy.Cut()
	limiter.until(answering)
	limiter.one(store.Done, request("e", "a"))
	limiter.takeOver("f", false) // the request arrived, and its reply was lost
	limiter.takeOver("g", true)
	limiter.wantLogged("a", 3)
}

// TestRedisForgetsWhatThePolicyDropped drops events during an outage of which Redis has a record: one waits for its channel, one waits for a slot,
// and the reply about one was lost. Redis returns their slots then, and a resolved event waits for none of them.
func TestRedisForgetsWhatThePolicyDropped(t *testing.T) {
	t.Parallel()
	limiter, proxy := startLimiterBehindProxy(t, 2*time.Second, LimiterOptions{
		Policy: Closed, Grace: time.Nanosecond, RoomMax: 100,
		Settings: store.Settings{Tree: newTree(t, "none", "3/1h", ""), Lease: time.Hour, PairTTL: testPairTTL},
	})
	again := func(sequence uint64, id string) store.Request {
		r := inMessage(sequence, aboutDisk(id))
		r.Recorded = true
		return r
	}
	limiter.one(store.Admitted, aboutDisk("posted")).Finish(t.Context(), "r")
	limiter.one(store.Admitted, again(2, "given back")).Release(t.Context(), false)
	inDoubt := inMessage(6, request("in doubt", "c"))
	inDoubt.Recorded = true
	limiter.one(store.Admitted, inDoubt).Release(t.Context(), true)
	elsewhere := again(5, "elsewhere")
	limiter.one(store.Admitted, elsewhere)
	waiting := again(3, "waiting")
	denial := limiter.want(map[store.Verdict]int{store.Denied: 1}, waiting)[0]
	verdict, _, err := limiter.Delay(t.Context(), store.Postponement{Request: waiting, Wait: denial.Wait, Longest: 2 * time.Hour, Node: denial.Node, Limit: denial.Limit})
	if err != nil || verdict != store.ComesBack {
		t.Fatalf("verdict %d, %v, want that the event comes back", verdict, err)
	}
	waiting.HasWaited, waiting.MayWait = true, true

	proxy.DropReplies(true)
	lost := request("lost", "b")
	_, err = limiter.Decide(t.Context(), []store.Request{lost})
	testkit.Fails(t, "a call without a reply", err, script.ErrUnavailable)
	limiter.until(acting)
	lost.Recorded = true
	limiter.want(map[store.Verdict]int{store.Denied: 5}, again(2, "given back"), elsewhere, waiting, lost, inDoubt)
	proxy.DropReplies(false)
	proxy.Cut()
	limiter.until(answering)

	limiter.wantLogged("a", 2) // the lease of the event that another worker delivers goes on
	limiter.wantLogged("b", 0)
	limiter.wantLogged("c", 1) // a worker may have posted it
	limiter.one(store.Leased, elsewhere)
	limiter.one(store.Admitted, lost)
	limiter.resolve(store.Admitted, "r", inMessage(4, aboutDisk("resolved")))
}

// TestRedisForgetsWhatSlackRejected has an event that waited for a slot admitted during an outage. Slack rejects it, so it is refunded. A resolved
// event does not wait for it then.
func TestRedisForgetsWhatSlackRejected(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{
		Policy: Local, Grace: time.Nanosecond, RoomMax: 100,
		Settings: store.Settings{Tree: newTree(t, "none", "2/1h", ""), Lease: time.Hour, PairTTL: testPairTTL},
	})
	limiter.one(store.Admitted, aboutDisk("posted")).Finish(t.Context(), "r")
	full := limiter.one(store.Admitted, inMessage(2, request("full", "a")))
	waiting := inMessage(3, aboutDisk("waiting"))
	denial := limiter.want(map[store.Verdict]int{store.Denied: 1}, waiting)[0]
	verdict, _, err := limiter.Delay(t.Context(), store.Postponement{Request: waiting, Wait: denial.Wait, Longest: 2 * time.Hour, Node: denial.Node, Limit: denial.Limit})
	if err != nil || verdict != store.ComesBack {
		t.Fatalf("verdict %d, %v, want that the event comes back", verdict, err)
	}
	full.Refund(t.Context())
	limiter.resolve(store.Leased, "", inMessage(4, aboutDisk("resolved")))
	limiter.loseAndAct()
	waiting.HasWaited, waiting.MayWait, waiting.Recorded = true, true, true
	limiter.one(store.Admitted, waiting).Refund(t.Context())
	limiter.regain()
	limiter.resolve(store.Admitted, "r", inMessage(4, aboutDisk("resolved")))
}

// TestSlotsOfALostReply takes the one slot of deliveries under way in a call without a reply. It is free again as soon as Redis answers.
func TestSlotsOfALostReply(t *testing.T) {
	t.Parallel()
	tree := newTree(t, "100/1h", "inflight:1/1h", "")
	limiter, proxy := startLimiterBehindProxy(t, 2*time.Second, LimiterOptions{Policy: Hold, Settings: store.Settings{Tree: tree, Lease: time.Hour, Retention: testRetention}})
	limiter.one(store.Admitted, request("connects", "b"))
	proxy.DropReplies(true)
	_, err := limiter.Decide(t.Context(), []store.Request{request("e", "a")})
	testkit.Fails(t, "a call without a reply", err, script.ErrUnavailable)
	proxy.DropReplies(false)
	proxy.Cut()
	limiter.until(answering)
	limiter.one(store.Admitted, request("f", "a"))
	limiter.one(store.Leased, request("e", "a"))
}

// TestLengthOfAnOutage has the failure policy act during an outage. The log has the length of the whole outage.
func TestLengthOfAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiterKit(t, "127.0.0.1:1", LimiterOptions{Policy: Local, Grace: 5 * time.Second})
		o := limiter.outage
		o.reached(nil)
		time.Sleep(time.Hour)
		o.lost(script.ErrUnavailable)
		time.Sleep(5 * time.Second)
		o.stay(script.ErrUnavailable)
		time.Sleep(10 * time.Second)
		o.resume(0)
		limiter.logs.WantCount(t, 1, "unavailable=15s")
	})
}

// TestLimiterSyncs repeats in Redis single calls that failed.
func TestLimiterSyncs(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	proxy := servertest.StartProxy(t, server.Addr)
	limiter := newLimiterKit(t, proxy.Addr, LimiterOptions{Policy: Local})
	limiter.recovery.reach(t.Context())
	grants := limiter.want(map[store.Verdict]int{store.Admitted: 3}, several(3, "e", "a")...)
	proxy.Refuse(true)
	grants[0].Grant.Finish(t.Context(), "")
	grants[1].Grant.Refund(t.Context())
	grants[2].Grant.Release(t.Context(), false)
	proxy.Refuse(false)
	limiter.recovery.probe(t.Context())
	limiter.one(store.Done, request("e1", "a"))
	limiter.one(store.Leased, request("e3", "a"))
	limiter.one(store.Admitted, request("e2", "a"))
	testkit.Equal(t, testkit.Must(limiter.recovery.replay.sync(t.Context()))(t), 0, "events sent again")
	limiter.metrics.wantRefunded(t, 1)
	limiter.logs.Want(t, "redis is unavailable", "redis answers")
	limiter.logs.WantCount(t, 1, "restored=2")
}

// TestReleasesBesideAHungRedis releases five leases. One timeout shows that Redis is unavailable, so no other call waits for it.
func TestReleasesBesideAHungRedis(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiterKit(t, "127.0.0.1:1", LimiterOptions{})
		limiter.outage.reached(nil)
		const timeout = 8 * time.Second
		release := newBatcher(whileAnswering(limiter.outage, func(context.Context, []store.Lease) ([]store.Lease, error) {
			time.Sleep(timeout)
			return nil, script.ErrUnavailable
		}))
		began := time.Now()
		var releasing sync.WaitGroup
		for range 5 {
			releasing.Go(func() {
				_, err := release.do(t.Context(), store.Lease{})
				testkit.Fails(t, "error", err, script.ErrUnavailable)
			})
			synctest.Wait()
		}
		releasing.Wait()
		testkit.Equal(t, time.Since(began), timeout, "duration of all releases")
		limiter.logs.Want(t, "redis is unavailable")
	})
}
