package throttle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/script/scripttest"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// fakeMetrics remembers what it was told.
type fakeMetrics struct {
	decisions testkit.Counts // by verdict and source
	shadow    testkit.Counts // by verdict and level
	refunded  atomic.Int64

	mu         sync.Mutex
	degraded   []bool // each change
	used, size map[string]int64
	levels     []string
}

func newFakeMetrics() *fakeMetrics {
	return &fakeMetrics{used: make(map[string]int64), size: make(map[string]int64)}
}

func (m *fakeMetrics) Decision(verdict, source string, n int) {
	m.decisions.Add(verdict+" by "+source, n)
}
func (m *fakeMetrics) DecisionDuration(time.Duration) {}
func (m *fakeMetrics) Refunded(n int)                 { m.refunded.Add(int64(n)) }

func (m *fakeMetrics) ShadowDecision(level, verdict string, n int) {
	m.shadow.Add(verdict+" by "+level, n)
}

func (m *fakeMetrics) Degraded(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.degraded) == 0 || m.degraded[len(m.degraded)-1] != on {
		m.degraded = append(m.degraded, on)
	}
}

func (m *fakeMetrics) Levels(inForce, shadow []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.levels = append(slices.Clone(inForce), shadow...)
}

func (m *fakeMetrics) LimitUsed(level string, used int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used[level] = used
}

func (m *fakeMetrics) LimitSize(level string, size int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.size[level] = size
}

func (m *fakeMetrics) wantDegraded(t *testing.T, want ...bool) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	testkit.EqualSlices(t, m.degraded, want, "changes of degraded")
}

func (m *fakeMetrics) wantRefunded(t *testing.T, want int64) {
	t.Helper()
	testkit.Equal(t, m.refunded.Load(), want, "refunds")
}

func (m *fakeMetrics) wantDecisions(t *testing.T, want map[string]int) {
	t.Helper()
	testkit.EqualMaps(t, m.decisions.All(), want, "decisions")
}

// limiterKit is a limiter and what it tells.
type limiterKit struct {
	*Limiter
	t       *testing.T
	metrics *fakeMetrics
	logs    *testkit.Log
}

func newLimiterKit(t *testing.T, address string, o LimiterOptions) *limiterKit {
	kit := &limiterKit{t: t, metrics: newFakeMetrics(), logs: testkit.NewLog(t)}
	if o.Tree == nil {
		o.Tree = newTree(t, "100/1h", "10/1h", "")
	}
	if o.Lease == 0 {
		o.Lease = time.Hour
	}
	o.Retention = testRetention
	if o.Policy == "" {
		o.Policy = Hold
	}
	if o.Redis == nil {
		client := newClient(t, redis.Options{Addr: address, MaxRetries: 1, DialTimeout: patience, DialerRetries: 1})
		o.Redis = newRedis(client, "limiter", o.Settings)
	}
	o.Metrics, o.Logger = kit.metrics, kit.logs.Logger()
	kit.Limiter = NewLimiter(o)
	return kit
}

// startLimiter makes a limiter that runs until the test ends, and waits until it answers.
func startLimiter(t *testing.T, address string, o LimiterOptions) *limiterKit {
	t.Helper()
	kit := newLimiterKit(t, address, o)
	kit.run()
	kit.await()
	return kit
}

func (k *limiterKit) run() {
	ctx, cancel := context.WithCancel(k.t.Context())
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	k.t.Cleanup(func() { cancel(); running.Wait() })
}

func (k *limiterKit) await() {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), patience)
	defer cancel()
	if err := k.Await(ctx); err != nil {
		k.t.Fatalf("the limiter does not answer: %v", err)
	}
}

// until waits for a state of the limiter.
func (k *limiterKit) until(wanted outageState) {
	k.t.Helper()
	deadline := time.After(patience)
	for {
		state, changed := k.outage.watch()
		if state == wanted {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			k.t.Fatalf("the limiter stays in state %d, want %d", state, wanted)
		}
	}
}

func (k *limiterKit) decide(requests ...Request) []Decision {
	k.t.Helper()
	answers := testkit.Must(k.Decide(k.t.Context(), requests))(k.t)
	if len(answers) != len(requests) {
		k.t.Fatalf("%d answers for %d requests", len(answers), len(requests))
	}
	return answers
}

// want asks and compares how many answers have each verdict.
func (k *limiterKit) want(verdicts map[Verdict]int, requests ...Request) []Decision {
	k.t.Helper()
	answers, got := k.decide(requests...), make(map[Verdict]int)
	for _, answer := range answers {
		got[answer.Verdict]++
		if answer.Err != nil {
			k.t.Errorf("error %v", answer.Err)
		}
	}
	if !maps.Equal(got, verdicts) {
		k.t.Fatalf("verdicts %v, want %v", got, verdicts)
	}
	return answers
}

func (k *limiterKit) one(verdict Verdict, r Request) Grant {
	k.t.Helper()
	return k.want(map[Verdict]int{verdict: 1}, r)[0].Grant
}

// lose kills the server and has the limiter notice.
func (k *limiterKit) lose(server *servertest.Redis) {
	k.t.Helper()
	server.Kill()
	if _, err := k.Decide(k.t.Context(), []Request{request("lost", "a")}); !errors.Is(err, script.ErrUnavailable) {
		k.t.Fatalf("error %v without a server, want %v", err, script.ErrUnavailable)
	}
}

func durable(t *testing.T) *servertest.Redis {
	return servertest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
}

// scores is when the members of a log were taken.
func scores(t *testing.T, server *servertest.Redis, key string) map[string]time.Time {
	t.Helper()
	found := make(map[string]time.Time)
	client := newClient(t, redis.Options{Addr: server.Addr})
	members := testkit.Must(client.ZRangeWithScores(t.Context(), key, 0, -1).Result())(t)
	for _, member := range members {
		found[fmt.Sprint(member.Member)] = time.UnixMicro(int64(member.Score))
	}
	return found
}

func TestLimiterHolds(t *testing.T) {
	t.Parallel()
	server := durable(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{Policy: Hold, Grace: time.Nanosecond})
	limiter.one(Admitted, request("first", "a"))
	limiter.lose(server)
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
	select {
	case err := <-waiting:
		t.Fatalf("the wait ended without a server: %v", err)
	default:
	}
	limiter.logs.Want(t, "redis is unavailable")
	server.Restart()
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
	server := durable(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{
		Settings:  Settings{Tree: newTree(t, "100/1h", "10/1h", "rare=1/1h")},
		Policy:    Local,
		Grace:     time.Nanosecond,
		Instances: func() int { return 2 },
	})
	before := limiter.want(map[Verdict]int{Admitted: 3}, several(3, "before", "a")...)
	limiter.lose(server)
	limiter.until(acting)
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
			grant.admitted = grant.admitted.Add(-10 * time.Minute)
		}
	}
	limiter.outage.mu.Unlock()

	decided := time.Now()
	server.Restart()
	limiter.until(answering)
	limiter.logs.Want(t, "redis is unavailable", "redis stays unavailable, the failure policy acts", "redis answers")
	log := scores(t, server, "{limiter}:log:a")
	if want := []string{"before1", "before3", "local1", "local2"}; !slices.Equal(slices.Sorted(maps.Keys(log)), want) {
		t.Errorf("the log holds %v, want %v", log, want)
	}
	for _, id := range []string{"local1", "local2"} {
		if age := decided.Sub(log[id]); age < 9*time.Minute || age > 11*time.Minute {
			t.Errorf("%s was admitted %v ago, want 10 minutes", id, age)
		}
	}
	if all := scores(t, server, "{limiter}:log"); len(all) != 5 {
		t.Errorf("the global log holds %v", all)
	}
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

func TestLimiterForgetsARefundedAdmissionOfItsOwn(t *testing.T) {
	t.Parallel()
	server := durable(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{Policy: Local, Grace: time.Nanosecond, Settings: Settings{Lease: time.Microsecond}})
	limiter.lose(server)
	limiter.until(acting)
	// The first grant lapses at once; the message comes again, and is then found to be undeliverable.
	first := limiter.one(Admitted, request("e", "a"))
	time.Sleep(time.Millisecond) // the lease, by the clock of the machine, has to lapse
	second := limiter.one(Reclaimed, request("e", "a"))
	first.Refund(t.Context())
	second.Refund(t.Context())
	server.Restart()
	limiter.until(answering)
	if log := scores(t, server, "{limiter}:log:a"); len(log) != 0 {
		t.Errorf("the log holds %v", log)
	}
	limiter.one(Admitted, request("e", "a"))
}

func TestLimiterSharesAreAtLeastOne(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	var instances atomic.Int64
	instances.Store(1)
	limiter := startLimiter(t, server.Addr, LimiterOptions{
		Settings: Settings{Tree: newTree(t, "none", "3/1h", "off=0/1h")}, Policy: Local, Grace: time.Nanosecond,
		Instances: func() int { return int(instances.Load()) },
	})
	limiter.lose(server)
	limiter.until(acting)
	instances.Store(100)
	limiter.want(map[Verdict]int{Admitted: 1, Denied: 2}, several(3, "a", "a")...)
	instances.Store(1)
	limiter.want(map[Verdict]int{Admitted: 2, Denied: 1}, several(3, "b", "a")...)
	limiter.one(ExceedsCapacity, request("off", "off"))
}

func TestLimiterOpens(t *testing.T) {
	t.Parallel()
	server := durable(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{Policy: Open, Grace: time.Nanosecond})
	limiter.want(map[Verdict]int{Admitted: 10, Denied: 5}, several(15, "before", "a")...)
	limiter.lose(server)
	limiter.until(acting)
	answers := limiter.want(map[Verdict]int{Admitted: 25}, several(25, "open", "a")...)
	for _, answer := range answers {
		answer.Grant.Finish(t.Context(), "")
	}
	limiter.one(Done, request("open1", "a"))
	server.Restart()
	limiter.until(answering)
	if log := scores(t, server, "{limiter}:log:a"); len(log) != 35 {
		t.Errorf("%d events stand in the log, want 35", len(log))
	}
	limiter.one(Done, request("open25", "a"))
	limiter.one(Denied, request("after", "a"))
}

func TestLimiterCloses(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{Policy: Closed, Grace: time.Nanosecond})
	limiter.lose(server)
	limiter.until(acting)
	for _, answer := range limiter.want(map[Verdict]int{Denied: 20}, several(20, "e", "a")...) {
		if answer.Node.Level != LevelClosed || answer.Grant != nil {
			t.Fatalf("%+v", answer)
		}
	}
	limiter.metrics.wantDecisions(t, map[string]int{"denied by local": 20})
	server.Restart()
	limiter.until(answering)
	limiter.one(Admitted, request("e1", "a"))
}

// TestLimiterGrace shows that a policy does not act while Redis is unavailable for less than the grace.
func TestLimiterGrace(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{Policy: Closed, Grace: time.Hour})
	limiter.lose(server)
	server.Restart()
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
	limiter.run()
	limiter.await()
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

func TestLimiterCategoryLogOfTheWrongType(t *testing.T) {
	t.Parallel()
	server := durable(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{Policy: Local, Grace: time.Nanosecond})
	server.CLI("SET", "{limiter}:log:bad", "a string")
	for round := range 3 {
		id := func(name string) string { return fmt.Sprint(name, round) }
		answers := limiter.decide(request(id("a"), "a"), request(id("b"), "bad"), request(id("c"), "c"))
		if answers[0].Verdict != Admitted || answers[2].Verdict != Admitted {
			t.Fatalf("%+v", answers)
		}
		if bad := answers[1]; !errors.Is(bad.Err, script.ErrRefused) || bad.Grant != nil || bad.Verdict != Deferred {
			t.Fatalf("%+v", bad)
		}
	}
	if err := limiter.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	limiter.logs.Want(t, "event cannot be evaluated")

	// What was decided without Redis and cannot be written does not keep the rest from it.
	limiter.lose(server)
	limiter.until(acting)
	limiter.want(map[Verdict]int{Admitted: 3}, request("local a", "a"), request("local b", "bad"), request("local c", "c"))
	server.Restart()
	limiter.until(answering)
	for _, category := range []string{"a", "c"} {
		if log := scores(t, server, "{limiter}:log:"+category); len(log) != 4 {
			t.Errorf("the log of %s holds %v", category, log)
		}
	}
}

func TestLimiterGlobalLogOfTheWrongType(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{Policy: Hold})
	server.CLI("SET", "{limiter}:log", "a string")
	if _, err := limiter.Decide(t.Context(), several(3, "e", "a")); !errors.Is(err, script.ErrUnavailable) || !errors.Is(err, script.ErrRefused) {
		t.Fatalf("error %v, want %v because of %v", err, script.ErrUnavailable, script.ErrRefused)
	}
	server.CLI("DEL", "{limiter}:log")
	limiter.await()
	limiter.want(map[Verdict]int{Admitted: 3}, several(3, "e", "a")...)
}

func TestLimiterFull(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{Settings: Settings{Tree: newTree(t, "10/1h", "2/1h", "")}, DenyCacheTTL: time.Hour})
	if level, full := limiter.Full("a"); full {
		t.Fatalf("full at %q before anything was asked", level)
	}
	grants := limiter.want(map[Verdict]int{Admitted: 2, Denied: 1}, several(3, "e", "a")...)
	for _, category := range []string{"a", "a.b.c"} {
		if level, full := limiter.Full(category); !full || level != limits.LevelCategory {
			t.Errorf("%s: %q, %v", category, level, full)
		}
	}
	if level, full := limiter.Full("b"); full {
		t.Errorf("b is full at %q", level)
	}
	level, wait := limiter.NextSlot()
	if level != limits.LevelCategory || wait <= 0 || wait > time.Hour {
		t.Errorf("the next slot is of %q in %v", level, wait)
	}
	grants[0].Grant.Refund(t.Context())
	if _, full := limiter.Full("a"); full {
		t.Error("full although a slot was returned")
	}
	// An event that takes several slots says nothing about one that takes one.
	limiter.one(Denied, request("two", "a").withCost(2))
	if _, full := limiter.Full("a"); full {
		t.Error("full for an event of cost 1 by one of cost 2")
	}
	limiter.one(Admitted, request("another", "a"))
	limiter.metrics.wantDecisions(t, map[string]int{"admitted by redis": 3, "denied by redis": 2, "denied by cache": 2})
}

func TestLimiterShadow(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{
		Settings: Settings{Tree: newTree(t, "none", "1/1h", "off=0/1h"), Forward: true}, DenyCacheTTL: time.Hour, Policy: Local, Grace: time.Nanosecond,
	})
	check := func(name string) {
		t.Helper()
		answers := limiter.want(map[Verdict]int{Admitted: 1, Denied: 1, ExceedsCapacity: 1}, request(name+"1", name), request(name+"2", name), request(name+"3", "off"))
		for i, answer := range answers {
			if answer.Grant == nil {
				t.Errorf("event %d is not forwarded: %+v", i+1, answer)
			}
		}
		if level, full := limiter.Full(name); full {
			t.Errorf("full at %q", level)
		}
	}
	check("a")
	limiter.metrics.wantDecisions(t, map[string]int{"admitted by redis": 1, "denied by redis": 1, "exceeds_capacity by redis": 1})
	limiter.lose(server)
	limiter.until(acting)
	check("b")
}

// TestLimiterTellsOfPauses has a pause of another instance come with a decision.
func TestLimiterTellsOfPauses(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := newLimiterKit(t, server.Addr, LimiterOptions{})
	pacer := pacing.New(pacing.Options{Runner: limiter.o.Redis.runner, Available: limiter.Available, Logger: limiter.logs.Logger()})
	limiter.o.Pauses, limiter.o.SelfTests = pacer.Learn, []SelfTest{pacing.SelfTest}
	limiter.run()
	limiter.await()
	pause(t, limiter.o.Redis, "#here", time.Hour)
	testkit.Equal(t, pacer.Paused("#here"), 0, "pause that the other instance knows of at once")
	limiter.one(Admitted, request("e", "a"))
	if paused := pacer.Paused("#here"); paused <= 0 || paused > time.Hour {
		t.Errorf("the instance pauses for %v", paused)
	}
	testkit.Equal(t, pacer.Paused("#elsewhere"), 0, "another destination is paused for")

	// While Redis is unavailable nothing is told, and nothing fails.
	limiter.lose(server)
	pacer.Pause(t.Context(), "#elsewhere", time.Hour)
	if paused := pacer.Paused("#elsewhere"); paused <= 0 {
		t.Error("no pause without Redis")
	}
	limiter.logs.Want(t, "redis is unavailable")
}

// TestLimiterNeedsEverySelfTest has a limiter that is refused what another package needs.
func TestLimiterNeedsEverySelfTest(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := newLimiterKit(t, "", LimiterOptions{
		Redis:     newRedis(scripttest.SetUser(t, server, "without", scripttest.Without(scripttest.Rights(), "set")), scripttest.UserPrefix, scriptSettings(t)),
		SelfTests: []SelfTest{pacing.SelfTest},
	})
	limiter.outage.reach(t.Context(), limiter.staleness.compare)
	if err := limiter.Ready(); !errors.Is(err, script.ErrForbidden) || limiter.Available() {
		t.Errorf("error %v, want %v; available: %t", err, script.ErrForbidden, limiter.Available())
	}
}

func TestLimiterUsageMetrics(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := newLimiterKit(t, server.Addr, LimiterOptions{Settings: Settings{Tree: newTree(t, "100/1h", "10/1h+20/2h", "a.b=4/1h,off=0/1h,none=none,c.*=3/1h")}})
	limiter.outage.reach(t.Context(), limiter.staleness.compare)
	sizes := map[string]int64{limits.LevelGlobal: 100, limits.LevelCategory: 10, "a.b": 4, "off": 0, "c.*": 3}
	check := func(want map[string]int64) {
		t.Helper()
		testkit.NoError(t, limiter.usage.refresh(t.Context(), limiter.o.Redis))
		testkit.EqualMaps(t, limiter.metrics.used, want, "used")
	}
	testkit.EqualMaps(t, limiter.metrics.size, sizes, "sizes")
	if len(limiter.metrics.used) != 0 {
		t.Errorf("used %v before anything was read", limiter.metrics.used)
	}
	check(map[string]int64{limits.LevelGlobal: 0}) // of the others no node is known yet
	limiter.want(map[Verdict]int{Admitted: 3, ExceedsCapacity: 1}, append(several(3, "ab", "a.b"), request("off", "off"))...)
	grants := limiter.want(map[Verdict]int{Admitted: 8}, append(several(6, "b", "b"), several(2, "c", "c.d")...)...)
	limiter.want(map[Verdict]int{Admitted: 15}, several(15, "n", "none")...)
	check(map[string]int64{limits.LevelGlobal: 26, limits.LevelCategory: 6, "a.b": 3, "off": 0, "c.*": 2})
	for _, answer := range grants[:5] {
		answer.Grant.Refund(t.Context())
	}
	check(map[string]int64{limits.LevelGlobal: 21, limits.LevelCategory: 3, "a.b": 3, "off": 0, "c.*": 2})
	server.CLI("FLUSHDB")
	check(map[string]int64{limits.LevelGlobal: 0, limits.LevelCategory: 0, "a.b": 0, "off": 0, "c.*": 0})
	if len(limiter.usage.touched) != 0 {
		t.Errorf("%v are followed although nothing is taken", limiter.usage.touched)
	}
	testkit.EqualDeeply(t, limiter.metrics.size, sizes, "sizes")

	// What was read for limits that are in force no more is not shown.
	before := limiter.usage.current()
	tree := newTree(t, "100/1h", "none", "new=1/1h")
	limiter.Adopt(limits.Ruleset{Tree: tree})
	testkit.EqualSlices(t, limiter.metrics.levels, []string{limits.LevelGlobal, "new"}, "levels")
	clear(limiter.metrics.used)
	clear(limiter.metrics.size)
	limiter.usage.show(before, map[string]limitUse{"a.b": {4, 4}})
	if len(limiter.metrics.used)+len(limiter.metrics.size) != 0 {
		t.Errorf("used %v, sizes %v of limits that are gone", limiter.metrics.used, limiter.metrics.size)
	}
	check(map[string]int64{limits.LevelGlobal: 0})
}

func TestLimiterSaysOnceThatAnEventNeverFits(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{Settings: Settings{Tree: newTree(t, "none", "3/1h", "off=0/1h")}})
	for round := range 3 {
		limiter.want(map[Verdict]int{ExceedsCapacity: 3},
			request(fmt.Sprint("a", round), "a").withCost(4), request(fmt.Sprint("b", round), "b").withCost(100), request(fmt.Sprint("off", round), "off"))
	}
	limiter.logs.Want(t, "event never fits its limit", "event never fits its limit")
}

func TestLimiterConcurrentGrants(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{Settings: Settings{Tree: newTree(t, "none", "none", "a=1000/1h")}, Policy: Local})
	var work sync.WaitGroup
	for worker := range 8 {
		work.Go(func() {
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
						if !answer.Grant.Extend(t.Context()) {
							t.Error("a lease is not extended")
						}
						answer.Grant.Finish(t.Context(), "")
					case 3:
						answer.Grant.Release(t.Context(), false)
					}
				}
			}
		})
	}
	work.Wait()
	want := int64(8 * 10 * 6) // of eight, two were returned
	counts, err := limiter.o.Redis.Usage(t.Context(), limiter.o.Tree.Path("a"))
	if err != nil || counts[0][0] != want {
		t.Errorf("%v slots are taken, want %d, %v", counts, want, err)
	}
	if local := limiter.local.Usage(limiter.o.Tree.Path("a")); local[0][0] != want {
		t.Errorf("%v slots are taken locally, want %d", local, want)
	}
	limiter.metrics.wantRefunded(t, 8*10*2)
}
