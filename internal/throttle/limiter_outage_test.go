package throttle

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/servertest"
)

func TestLimiterHolds(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Hold, Grace: time.Nanosecond})
	limiter.one(Admitted, request("first", "a"))
	limiter.lose()
	if err := limiter.Ready(); !errors.Is(err, script.ErrUnavailable) {
		t.Errorf("ready: %v", err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- limiter.Await(t.Context()) }()
	for range 50 {
		if _, err := limiter.Decide(t.Context(), several(5, "e", "a")); !errors.Is(err, script.ErrUnavailable) {
			t.Fatalf("error %v, want %v", err, script.ErrUnavailable)
		}
	}
	mixed := append(resolving(request("resolved", "a").ofPair("disk")), request("limited", "a"))
	for _, requests := range [][]Request{mixed, mixed[:1]} {
		if _, err := limiter.Decide(t.Context(), requests); !errors.Is(err, script.ErrUnavailable) {
			t.Errorf("%d events, one of which resolves: error %v, want %v", len(requests), err, script.ErrUnavailable)
		}
	}
	select {
	case err := <-waiting:
		t.Fatalf("the wait ended without a server: %v", err)
	default:
	}
	limiter.logs.Want(t, "redis is unavailable")
	limiter.server.Restart()
	select {
	case err := <-waiting:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the wait does not end")
	}
	if err := limiter.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	limiter.want(map[Verdict]int{Admitted: 9, Denied: 1}, several(10, "e", "a")...)
	limiter.logs.Want(t, "redis is unavailable", "redis answers")
	limiter.metrics.wantDegraded(t, false, true, false)
	limiter.metrics.wantDecisions(t, map[string]int{"admitted by redis": 10, "denied by redis": 1})
}

func TestLimiterWaitsForTheFirstContact(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	server.Kill()
	limiter := newLimiterKit(t, server.Addr, LimiterOptions{Policy: Hold})
	if err := limiter.Ready(); !errors.Is(err, script.ErrUnavailable) {
		t.Errorf("ready: %v", err)
	}
	contact := limiter.outage.changed
	limiter.run()
	<-contact
	cancelled, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if err := limiter.Await(cancelled); !errors.Is(err, stopped) {
		t.Errorf("a cancelled wait ended with %v", err)
	}
	server.Restart()
	limiter.await()
	limiter.one(Admitted, request("e", "a"))
	if _, err := limiter.Decide(cancelled, []Request{request("f", "a")}); !errors.Is(err, stopped) {
		t.Errorf("a cancelled question ended with %v", err)
	}
	limiter.logs.Want(t, "redis is not there yet", "redis answers")
}

func TestLimiterDecidesLocally(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{
		Settings:  Settings{Tree: newTree(t, "100/1h", "10/1h", "rare=1/1h")},
		Policy:    Local,
		Grace:     time.Nanosecond,
		Instances: func() int { return 2 },
	})
	before := limiter.want(map[Verdict]int{Admitted: 3}, several(3, "before", "a")...)
	limiter.loseAndAct()
	if err := limiter.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}

	// Three slots of this instance's share of five were taken before.
	answers := limiter.want(map[Verdict]int{Admitted: 2, Denied: 8}, several(10, "local", "a")...)
	limiter.one(Admitted, request("rare1", "rare"))
	limiter.one(Denied, request("rare2", "rare"))
	limiter.one(Leased, request("local1", "a"))
	refunded := limiter.one(Admitted, request("refunded", "b"))
	refunded.Refund(t.Context())
	finished, going := answers[0].Grant, answers[1].Grant
	finished.Finish(t.Context(), "")
	limiter.one(Done, request("local1", "a"))
	if !going.Extend(t.Context()) {
		t.Error("a local lease is not extended")
	}
	before[0].Grant.Finish(t.Context(), "")
	before[1].Grant.Refund(t.Context())
	if !before[2].Grant.Extend(t.Context()) {
		t.Error("an event is given up because Redis is unavailable")
	}
	limiter.logs.Want(t, "redis is unavailable", "redis stays unavailable, the failure policy acts")
	limiter.outage.mu.Lock()
	for _, grant := range limiter.outage.unsynced {
		if grant.local {
			grant.at = grant.at.Add(-10 * time.Minute)
		}
	}
	limiter.outage.mu.Unlock()

	decided := time.Now()
	limiter.regain()
	limiter.logs.Want(t, "redis is unavailable", "redis stays unavailable, the failure policy acts", "redis answers")
	limiter.wantRestored(decided)
	limiter.one(Done, request("local1", "a"))
	limiter.one(Leased, request("local2", "a"))
	limiter.one(Done, request("before1", "a"))
	limiter.one(Admitted, request("before2", "a"))
	if !going.Extend(t.Context()) {
		t.Error("the lease did not pass over to Redis")
	}
	going.Finish(t.Context(), "")
	limiter.one(Done, request("local2", "a"))
	limiter.metrics.wantRefunded(t, 2)
	limiter.metrics.wantDegraded(t, false, true, false)
}

// wantRestored checks that the logs hold what was admitted before and without Redis, each at its own time.
func (k *limiterKit) wantRestored(decided time.Time) {
	k.t.Helper()
	log := scores(k.t, k.server, "{limiter}:log:a")
	if want := []string{"before1", "before3", "local1", "local2"}; !slices.Equal(slices.Sorted(maps.Keys(log)), want) {
		k.t.Errorf("the log holds %v, want %v", log, want)
	}
	for _, id := range []string{"local1", "local2"} {
		if age := decided.Sub(log[id]); age < 9*time.Minute || age > 11*time.Minute {
			k.t.Errorf("%s was admitted %v ago, want 10 minutes", id, age)
		}
	}
	if all := scores(k.t, k.server, "{limiter}:log"); len(all) != 5 {
		k.t.Errorf("the global log holds %v", all)
	}
}

func TestLimiterForgetsARefundedAdmissionOfItsOwn(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Local, Grace: time.Nanosecond, Settings: Settings{Lease: time.Microsecond}})
	limiter.loseAndAct()
	// The first grant lapses at once; the message comes again, and is then found to be undeliverable.
	first := limiter.one(Admitted, request("e", "a"))
	time.Sleep(time.Millisecond) // the lease, by the clock of the machine, has to lapse
	second := limiter.one(Reclaimed, request("e", "a"))
	first.Refund(t.Context())
	second.Refund(t.Context())
	limiter.regain()
	if log := scores(t, limiter.server, "{limiter}:log:a"); len(log) != 0 {
		t.Errorf("the log holds %v", log)
	}
	limiter.one(Admitted, request("e", "a"))
}

func TestLimiterOpens(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Open, Grace: time.Nanosecond})
	limiter.want(map[Verdict]int{Admitted: 10, Denied: 5}, several(15, "before", "a")...)
	limiter.loseAndAct()
	answers := limiter.want(map[Verdict]int{Admitted: 25}, several(25, "open", "a")...)
	for _, answer := range answers {
		answer.Grant.Finish(t.Context(), "")
	}
	limiter.one(Done, request("open1", "a"))
	limiter.regain()
	if log := scores(t, limiter.server, "{limiter}:log:a"); len(log) != 35 {
		t.Errorf("%d events stand in the log, want 35", len(log))
	}
	limiter.one(Done, request("open25", "a"))
	limiter.one(Denied, request("after", "a"))
}

func TestLimiterCloses(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Policy: Closed, Grace: time.Nanosecond})
	limiter.loseAndAct()
	for _, answer := range limiter.want(map[Verdict]int{Denied: 20}, several(20, "e", "a")...) {
		if answer.Node.Level != LevelClosed || answer.Grant != nil {
			t.Fatalf("%+v", answer)
		}
	}
	limiter.metrics.wantDecisions(t, map[string]int{"denied by local": 20})
	limiter.regain()
	limiter.one(Admitted, request("e1", "a"))
}

// TestLimiterGrace shows that a policy does not act while Redis is unavailable for less than the grace.
func TestLimiterGrace(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Policy: Closed, Grace: time.Hour})
	limiter.lose()
	limiter.server.Restart()
	limiter.await()
	limiter.one(Admitted, request("e", "a"))
	limiter.logs.Want(t, "redis is unavailable", "redis answers")
	limiter.metrics.wantDegraded(t, false)
}

func TestLimiterRedisThatAnswersNothing(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	proxy := servertest.StartProxy(t, server.Addr)
	limiter := newLimiterKit(t, proxy.Addr, LimiterOptions{Policy: Closed, Grace: time.Nanosecond})
	options := limiter.o.Redis.runner.Options()
	options.Timeout = time.Second
	limiter.o.Redis.runWith(options)
	limiter.start()
	grant := limiter.one(Admitted, request("e", "a"))
	proxy.DropReplies(true)
	if _, err := limiter.Decide(t.Context(), []Request{request("f", "a")}); !errors.Is(err, script.ErrUnavailable) {
		t.Fatalf("error %v, want %v", err, script.ErrUnavailable)
	}
	limiter.until(acting)
	grant.Finish(t.Context(), "")
	proxy.DropReplies(false)
	proxy.Cut()
	limiter.until(answering)
	limiter.one(Done, request("e", "a"))
	limiter.one(Reclaimed, request("f", "a")) // the question had arrived; what it was granted has been given up
	if log := scores(t, server, "{limiter}:log:a"); len(log) != 2 {
		t.Errorf("the log holds %v", log)
	}
}

// TestLimiterSyncs has single calls fail while the limiter goes on answering.
func TestLimiterSyncs(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	proxy := servertest.StartProxy(t, server.Addr)
	limiter := newLimiterKit(t, proxy.Addr, LimiterOptions{Policy: Local})
	limiter.outage.reach(t.Context(), limiter.staleness.compare)
	grants := limiter.want(map[Verdict]int{Admitted: 3}, several(3, "e", "a")...)
	proxy.Refuse(true)
	proxy.Cut()
	grants[0].Grant.Finish(t.Context(), "")
	grants[1].Grant.Refund(t.Context())
	grants[2].Grant.Release(t.Context(), false)
	proxy.Refuse(false)
	if told, err := limiter.outage.sync(t.Context()); err != nil || told != 2 {
		t.Fatalf("%d events were told, %v", told, err)
	}
	limiter.one(Done, request("e1", "a"))
	limiter.one(Leased, request("e3", "a"))
	limiter.one(Admitted, request("e2", "a"))
	if told, err := limiter.outage.sync(t.Context()); err != nil || told != 0 {
		t.Errorf("%d events were told again, %v", told, err)
	}
	limiter.metrics.wantRefunded(t, 1)
	limiter.logs.Want(t)
}
