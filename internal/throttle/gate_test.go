package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// fakeMetrics remembers what it was told.
type fakeMetrics struct {
	mu         sync.Mutex
	decisions  map[string]int // by verdict and source
	durations  int
	degraded   []bool // each change
	refunded   int
	used, size map[string]int64
	shadow     map[string]int // by verdict and level
	levels     []string
}

func newFakeMetrics() *fakeMetrics {
	return &fakeMetrics{decisions: make(map[string]int), used: make(map[string]int64), size: make(map[string]int64), shadow: make(map[string]int)}
}

func (m *fakeMetrics) Decision(verdict, source string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.decisions[verdict+" by "+source] += n
}

func (m *fakeMetrics) DecisionDuration(time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.durations++
}

func (m *fakeMetrics) Degraded(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.degraded) == 0 || m.degraded[len(m.degraded)-1] != on {
		m.degraded = append(m.degraded, on)
	}
}

func (m *fakeMetrics) Refunded(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refunded += n
}

func (m *fakeMetrics) ShadowDecision(level, verdict string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shadow[verdict+" by "+level] += n
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
	if !slices.Equal(m.degraded, want) {
		t.Errorf("degraded %v, want %v", m.degraded, want)
	}
}

func (m *fakeMetrics) wantRefunded(t *testing.T, want int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refunded != want {
		t.Errorf("%d refunds, want %d", m.refunded, want)
	}
}

func (m *fakeMetrics) wantDecisions(t *testing.T, want map[string]int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !maps.Equal(m.decisions, want) {
		t.Errorf("decisions %v, want %v", m.decisions, want)
	}
}

// logRecorder keeps the messages of a logger.
type logRecorder struct {
	mu       sync.Mutex
	messages []string
}

func (l *logRecorder) Enabled(context.Context, slog.Level) bool { return true }
func (l *logRecorder) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logRecorder) WithGroup(string) slog.Handler            { return l }
func (l *logRecorder) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages = append(l.messages, r.Message)
	return nil
}

func (l *logRecorder) want(t *testing.T, messages ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.messages, messages) {
		t.Errorf("logged %q, want %q", l.messages, messages)
	}
}

// gateKit is a gate and what it tells.
type gateKit struct {
	*Gate
	t       *testing.T
	metrics *fakeMetrics
	logs    *logRecorder
}

func newGateKit(t *testing.T, address string, o GateOptions) *gateKit {
	kit := &gateKit{t: t, metrics: newFakeMetrics(), logs: &logRecorder{}}
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
		o.Redis = newRedis(client, "gate", o.Settings)
	}
	o.Metrics, o.Logger = kit.metrics, slog.New(kit.logs)
	kit.Gate = NewGate(o)
	return kit
}

// startGate makes a gate that runs until the test ends, and waits until it answers.
func startGate(t *testing.T, address string, o GateOptions) *gateKit {
	t.Helper()
	kit := newGateKit(t, address, o)
	kit.run()
	kit.await()
	return kit
}

func (k *gateKit) run() {
	ctx, cancel := context.WithCancel(k.t.Context())
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	k.t.Cleanup(func() { cancel(); running.Wait() })
}

func (k *gateKit) await() {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), patience)
	defer cancel()
	if err := k.Await(ctx); err != nil {
		k.t.Fatalf("the gate does not answer: %v", err)
	}
}

// until waits for a state of the gate.
func (k *gateKit) until(wanted gateState) {
	k.t.Helper()
	deadline := time.After(patience)
	for {
		k.mu.Lock()
		state, changed := k.state, k.changed
		k.mu.Unlock()
		if state == wanted {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			k.t.Fatalf("the gate stays in state %d, want %d", state, wanted)
		}
	}
}

func (k *gateKit) decide(requests ...Request) []Answer {
	k.t.Helper()
	answers, err := k.Decide(k.t.Context(), requests)
	if err != nil {
		k.t.Fatal(err)
	}
	if len(answers) != len(requests) {
		k.t.Fatalf("%d answers for %d requests", len(answers), len(requests))
	}
	return answers
}

// want asks and compares how many answers have each verdict.
func (k *gateKit) want(verdicts map[Verdict]int, requests ...Request) []Answer {
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

func (k *gateKit) one(verdict Verdict, r Request) *Grant {
	k.t.Helper()
	return k.want(map[Verdict]int{verdict: 1}, r)[0].Grant
}

// lose kills the server and has the gate notice.
func (k *gateKit) lose(server *servertest.Redis) {
	k.t.Helper()
	server.Kill()
	if _, err := k.Decide(k.t.Context(), []Request{request("lost", "a")}); !errors.Is(err, ErrUnavailable) {
		k.t.Fatalf("error %v without a server, want %v", err, ErrUnavailable)
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
	members, err := client.ZRangeWithScores(t.Context(), key, 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range members {
		found[fmt.Sprint(member.Member)] = time.UnixMicro(int64(member.Score))
	}
	return found
}

func TestGateHolds(t *testing.T) {
	t.Parallel()
	server := durable(t)
	gate := startGate(t, server.Addr, GateOptions{Policy: Hold, Grace: time.Nanosecond})
	gate.one(Admitted, request("first", "a"))
	gate.lose(server)
	if err := gate.Ready(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("ready: %v", err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- gate.Await(t.Context()) }()
	for range 50 {
		if _, err := gate.Decide(t.Context(), several(5, "e", "a")); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("error %v, want %v", err, ErrUnavailable)
		}
	}
	select {
	case err := <-waiting:
		t.Fatalf("the wait ended without a server: %v", err)
	default:
	}
	gate.logs.want(t, "redis is away")
	server.Restart()
	select {
	case err := <-waiting:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the wait does not end")
	}
	if err := gate.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	gate.want(map[Verdict]int{Admitted: 9, Denied: 1}, several(10, "e", "a")...)
	gate.logs.want(t, "redis is away", "redis answers")
	gate.metrics.wantDegraded(t, false, true, false)
	gate.metrics.wantDecisions(t, map[string]int{"admitted by redis": 10, "denied by redis": 1})
}

func TestGateWaitsForTheFirstContact(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	server.Kill()
	gate := newGateKit(t, server.Addr, GateOptions{Policy: Hold})
	if err := gate.Ready(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("ready: %v", err)
	}
	contact := gate.changed
	gate.run()
	<-contact
	cancelled, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if err := gate.Await(cancelled); !errors.Is(err, stopped) {
		t.Errorf("a cancelled wait ended with %v", err)
	}
	server.Restart()
	gate.await()
	gate.one(Admitted, request("e", "a"))
	if _, err := gate.Decide(cancelled, []Request{request("f", "a")}); !errors.Is(err, stopped) {
		t.Errorf("a cancelled question ended with %v", err)
	}
	gate.logs.want(t, "redis is not there yet", "redis answers")
}

func TestGateDecidesLocally(t *testing.T) {
	t.Parallel()
	server := durable(t)
	gate := startGate(t, server.Addr, GateOptions{
		Settings:  Settings{Tree: newTree(t, "100/1h", "10/1h", "rare=1/1h")},
		Policy:    Local,
		Grace:     time.Nanosecond,
		Instances: func() int { return 2 },
	})
	before := gate.want(map[Verdict]int{Admitted: 3}, several(3, "before", "a")...)
	gate.lose(server)
	gate.until(acting)
	if err := gate.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}

	// Three slots of this instance's share of five were taken before.
	answers := gate.want(map[Verdict]int{Admitted: 2, Denied: 8}, several(10, "local", "a")...)
	gate.one(Admitted, request("rare1", "rare"))
	gate.one(Denied, request("rare2", "rare"))
	gate.one(Leased, request("local1", "a"))
	refunded := gate.one(Admitted, request("refunded", "b"))
	refunded.Refund(t.Context())
	finished, going := answers[0].Grant, answers[1].Grant
	finished.Finish(t.Context(), "")
	gate.one(Done, request("local1", "a"))
	if !going.Extend(t.Context()) {
		t.Error("a local lease is not extended")
	}
	before[0].Grant.Finish(t.Context(), "")
	before[1].Grant.Refund(t.Context())
	if !before[2].Grant.Extend(t.Context()) {
		t.Error("an event is given up because Redis is away")
	}
	gate.logs.want(t, "redis is away", "redis stays away, the failure policy acts")
	gate.mu.Lock()
	for _, grant := range gate.backlog {
		if grant.local {
			grant.admitted = grant.admitted.Add(-10 * time.Minute)
		}
	}
	gate.mu.Unlock()

	decided := time.Now()
	server.Restart()
	gate.until(answering)
	gate.logs.want(t, "redis is away", "redis stays away, the failure policy acts", "redis answers")
	log := scores(t, server, "{gate}:log:a")
	if want := []string{"before1", "before3", "local1", "local2"}; !slices.Equal(slices.Sorted(maps.Keys(log)), want) {
		t.Errorf("the log holds %v, want %v", log, want)
	}
	for _, id := range []string{"local1", "local2"} {
		if age := decided.Sub(log[id]); age < 9*time.Minute || age > 11*time.Minute {
			t.Errorf("%s was admitted %v ago, want 10 minutes", id, age)
		}
	}
	if all := scores(t, server, "{gate}:log"); len(all) != 5 {
		t.Errorf("the global log holds %v", all)
	}
	gate.one(Done, request("local1", "a"))
	gate.one(Leased, request("local2", "a"))
	gate.one(Done, request("before1", "a"))
	gate.one(Admitted, request("before2", "a"))
	if !going.Extend(t.Context()) {
		t.Error("the lease did not pass over to Redis")
	}
	going.Finish(t.Context(), "")
	gate.one(Done, request("local2", "a"))
	gate.metrics.wantRefunded(t, 2)
	gate.metrics.wantDegraded(t, false, true, false)
}

func TestGateForgetsARefundedAdmissionOfItsOwn(t *testing.T) {
	t.Parallel()
	server := durable(t)
	gate := startGate(t, server.Addr, GateOptions{Policy: Local, Grace: time.Nanosecond, Settings: Settings{Lease: time.Microsecond}})
	gate.lose(server)
	gate.until(acting)
	// The first grant lapses at once; the message comes again, and is then found to be undeliverable.
	first := gate.one(Admitted, request("e", "a"))
	time.Sleep(time.Millisecond)
	second := gate.one(Repeated, request("e", "a"))
	first.Refund(t.Context())
	second.Refund(t.Context())
	server.Restart()
	gate.until(answering)
	if log := scores(t, server, "{gate}:log:a"); len(log) != 0 {
		t.Errorf("the log holds %v", log)
	}
	gate.one(Admitted, request("e", "a"))
}

func TestGateSharesAreAtLeastOne(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	var instances atomic.Int64
	instances.Store(1)
	gate := startGate(t, server.Addr, GateOptions{
		Settings: Settings{Tree: newTree(t, "none", "3/1h", "off=0/1h")}, Policy: Local, Grace: time.Nanosecond,
		Instances: func() int { return int(instances.Load()) },
	})
	gate.lose(server)
	gate.until(acting)
	instances.Store(100)
	gate.want(map[Verdict]int{Admitted: 1, Denied: 2}, several(3, "a", "a")...)
	instances.Store(1)
	gate.want(map[Verdict]int{Admitted: 2, Denied: 1}, several(3, "b", "a")...)
	gate.one(NeverFits, request("off", "off"))
}

func TestGateOpens(t *testing.T) {
	t.Parallel()
	server := durable(t)
	gate := startGate(t, server.Addr, GateOptions{Policy: Open, Grace: time.Nanosecond})
	gate.want(map[Verdict]int{Admitted: 10, Denied: 5}, several(15, "before", "a")...)
	gate.lose(server)
	gate.until(acting)
	answers := gate.want(map[Verdict]int{Admitted: 25}, several(25, "open", "a")...)
	for _, answer := range answers {
		answer.Grant.Finish(t.Context(), "")
	}
	gate.one(Done, request("open1", "a"))
	server.Restart()
	gate.until(answering)
	if log := scores(t, server, "{gate}:log:a"); len(log) != 35 {
		t.Errorf("%d events stand in the log, want 35", len(log))
	}
	gate.one(Done, request("open25", "a"))
	gate.one(Denied, request("after", "a"))
}

func TestGateCloses(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{Policy: Closed, Grace: time.Nanosecond})
	gate.lose(server)
	gate.until(acting)
	for _, answer := range gate.want(map[Verdict]int{Denied: 20}, several(20, "e", "a")...) {
		if answer.Node.Level != LevelClosed || answer.Grant != nil {
			t.Fatalf("%+v", answer)
		}
	}
	gate.metrics.wantDecisions(t, map[string]int{"denied by local": 20})
	server.Restart()
	gate.until(answering)
	gate.one(Admitted, request("e1", "a"))
}

// TestGateGrace shows that a policy does not act while Redis is away for less than the grace.
func TestGateGrace(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{Policy: Closed, Grace: time.Hour})
	gate.lose(server)
	server.Restart()
	gate.await()
	gate.one(Admitted, request("e", "a"))
	gate.logs.want(t, "redis is away", "redis answers")
	gate.metrics.wantDegraded(t, false)
}

func TestGateRedisThatAnswersNothing(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	proxy := servertest.StartProxy(t, server.Addr)
	gate := newGateKit(t, proxy.Addr, GateOptions{Policy: Closed, Grace: time.Nanosecond})
	gate.o.Redis.timeout = time.Second
	gate.run()
	gate.await()
	grant := gate.one(Admitted, request("e", "a"))
	proxy.DropReplies(true)
	if _, err := gate.Decide(t.Context(), []Request{request("f", "a")}); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("error %v, want %v", err, ErrUnavailable)
	}
	gate.until(acting)
	grant.Finish(t.Context(), "")
	proxy.DropReplies(false)
	proxy.Cut()
	gate.until(answering)
	gate.one(Done, request("e", "a"))
	gate.one(Repeated, request("f", "a")) // the question had arrived; what it was granted has been given up
	if log := scores(t, server, "{gate}:log:a"); len(log) != 2 {
		t.Errorf("the log holds %v", log)
	}
}

// TestGateRepays has single calls fail while the gate goes on answering.
func TestGateRepays(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	proxy := servertest.StartProxy(t, server.Addr)
	gate := newGateKit(t, proxy.Addr, GateOptions{Policy: Local})
	gate.reach(t.Context())
	grants := gate.want(map[Verdict]int{Admitted: 3}, several(3, "e", "a")...)
	proxy.Refuse(true)
	proxy.Cut()
	grants[0].Grant.Finish(t.Context(), "")
	grants[1].Grant.Refund(t.Context())
	grants[2].Grant.Release(t.Context(), false)
	proxy.Refuse(false)
	if told, err := gate.repay(t.Context()); err != nil || told != 2 {
		t.Fatalf("%d events were told, %v", told, err)
	}
	gate.one(Done, request("e1", "a"))
	gate.one(Leased, request("e3", "a"))
	gate.one(Admitted, request("e2", "a"))
	if told, err := gate.repay(t.Context()); err != nil || told != 0 {
		t.Errorf("%d events were told again, %v", told, err)
	}
	gate.metrics.wantRefunded(t, 1)
	gate.logs.want(t)
}

func TestGateCategoryLogOfTheWrongType(t *testing.T) {
	t.Parallel()
	server := durable(t)
	gate := startGate(t, server.Addr, GateOptions{Policy: Local, Grace: time.Nanosecond})
	server.CLI("SET", "{gate}:log:bad", "a string")
	for round := range 3 {
		id := func(name string) string { return fmt.Sprint(name, round) }
		answers := gate.decide(request(id("a"), "a"), request(id("b"), "bad"), request(id("c"), "c"))
		if answers[0].Verdict != Admitted || answers[2].Verdict != Admitted {
			t.Fatalf("%+v", answers)
		}
		if bad := answers[1]; !errors.Is(bad.Err, ErrRefused) || bad.Grant != nil || bad.Verdict != 0 {
			t.Fatalf("%+v", bad)
		}
	}
	if err := gate.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	gate.logs.want(t, "event cannot be judged")

	// What was decided without Redis and cannot be written does not keep the rest from it.
	gate.lose(server)
	gate.until(acting)
	gate.want(map[Verdict]int{Admitted: 3}, request("local a", "a"), request("local b", "bad"), request("local c", "c"))
	server.Restart()
	gate.until(answering)
	for _, category := range []string{"a", "c"} {
		if log := scores(t, server, "{gate}:log:"+category); len(log) != 4 {
			t.Errorf("the log of %s holds %v", category, log)
		}
	}
}

func TestGateGlobalLogOfTheWrongType(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{Policy: Hold})
	server.CLI("SET", "{gate}:log", "a string")
	if _, err := gate.Decide(t.Context(), several(3, "e", "a")); !errors.Is(err, ErrUnavailable) || !errors.Is(err, ErrRefused) {
		t.Fatalf("error %v, want %v because of %v", err, ErrUnavailable, ErrRefused)
	}
	server.CLI("DEL", "{gate}:log")
	gate.await()
	gate.want(map[Verdict]int{Admitted: 3}, several(3, "e", "a")...)
}

func TestGateFull(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{Settings: Settings{Tree: newTree(t, "10/1h", "2/1h", "")}, DenyCacheTTL: time.Hour})
	if node, full := gate.Full("a"); full {
		t.Fatalf("full at %+v before anything was asked", node)
	}
	grants := gate.want(map[Verdict]int{Admitted: 2, Denied: 1}, several(3, "e", "a")...)
	for _, category := range []string{"a", "a.b.c"} {
		if node, full := gate.Full(category); !full || node.Level != LevelCategory || node.Path != "a" {
			t.Errorf("%s: %+v, %v", category, node, full)
		}
	}
	if node, full := gate.Full("b"); full {
		t.Errorf("b is full at %+v", node)
	}
	level, wait := gate.NextSlot()
	if level != LevelCategory || wait <= 0 || wait > time.Hour {
		t.Errorf("the next slot is of %q in %v", level, wait)
	}
	grants[0].Grant.Refund(t.Context())
	if _, full := gate.Full("a"); full {
		t.Error("full although a slot was returned")
	}
	// An event that takes several slots says nothing about one that takes one.
	gate.one(Denied, request("two", "a").withCost(2))
	if _, full := gate.Full("a"); full {
		t.Error("full for an event of cost 1 by one of cost 2")
	}
	gate.one(Admitted, request("another", "a"))
	gate.metrics.wantDecisions(t, map[string]int{"admitted by redis": 3, "denied by redis": 2, "denied by cache": 2})
}

func TestGateShadow(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{
		Settings: Settings{Tree: newTree(t, "none", "1/1h", "off=0/1h"), Forward: true}, DenyCacheTTL: time.Hour, Policy: Local, Grace: time.Nanosecond,
	})
	check := func(name string) {
		t.Helper()
		answers := gate.want(map[Verdict]int{Admitted: 1, Denied: 1, NeverFits: 1}, request(name+"1", name), request(name+"2", name), request(name+"3", "off"))
		for i, answer := range answers {
			if answer.Grant == nil {
				t.Errorf("event %d is not forwarded: %+v", i+1, answer)
			}
		}
		if node, full := gate.Full(name); full {
			t.Errorf("full at %+v", node)
		}
	}
	check("a")
	gate.metrics.wantDecisions(t, map[string]int{"admitted by redis": 1, "denied by redis": 2})
	gate.lose(server)
	gate.until(acting)
	check("b")
}

func TestGatesSharePauses(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	first, second := startGate(t, server.Addr, GateOptions{}), startGate(t, server.Addr, GateOptions{})
	first.Pause(t.Context(), "#here", time.Hour)
	if rest := first.pauses.left("#here"); rest <= 0 || rest > time.Hour {
		t.Errorf("paused for %v", rest)
	}
	if rest := second.pauses.left("#here"); rest != 0 {
		t.Errorf("the other instance knows at once of a pause of %v", rest)
	}
	second.one(Admitted, request("e", "a"))
	if rest := second.pauses.left("#here"); rest <= 0 || rest > time.Hour {
		t.Errorf("the other instance pauses for %v", rest)
	}
	if rest := second.pauses.left("#elsewhere"); rest != 0 {
		t.Errorf("another destination is paused for %v", rest)
	}

	// Without Redis an instance goes by what it was told itself.
	first.lose(server)
	first.Pause(t.Context(), "#elsewhere", time.Hour)
	if rest := first.pauses.left("#elsewhere"); rest <= 0 {
		t.Error("no pause without Redis")
	}
}

func TestGateUsageMetrics(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := newGateKit(t, server.Addr, GateOptions{Settings: Settings{Tree: newTree(t, "100/1h", "10/1h+20/2h", "a.b=4/1h,off=0/1h,none=none,c.*=3/1h")}})
	gate.reach(t.Context())
	sizes := map[string]int64{LevelGlobal: 100, LevelCategory: 10, "a.b": 4, "off": 0, "c.*": 3}
	check := func(want map[string]int64) {
		t.Helper()
		if err := gate.usage.refresh(t.Context(), gate.o.Redis); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(gate.metrics.used, want) {
			t.Errorf("used %v, want %v", gate.metrics.used, want)
		}
	}
	if !maps.Equal(gate.metrics.size, sizes) {
		t.Errorf("sizes %v, want %v", gate.metrics.size, sizes)
	}
	if len(gate.metrics.used) != 0 {
		t.Errorf("used %v before anything was read", gate.metrics.used)
	}
	check(map[string]int64{LevelGlobal: 0}) // of the others no node is known yet
	gate.want(map[Verdict]int{Admitted: 3, NeverFits: 1}, append(several(3, "ab", "a.b"), request("off", "off"))...)
	grants := gate.want(map[Verdict]int{Admitted: 8}, append(several(6, "b", "b"), several(2, "c", "c.d")...)...)
	gate.want(map[Verdict]int{Admitted: 15}, several(15, "n", "none")...)
	check(map[string]int64{LevelGlobal: 26, LevelCategory: 6, "a.b": 3, "off": 0, "c.*": 2})
	for _, answer := range grants[:5] {
		answer.Grant.Refund(t.Context())
	}
	check(map[string]int64{LevelGlobal: 21, LevelCategory: 3, "a.b": 3, "off": 0, "c.*": 2})
	server.CLI("FLUSHDB")
	check(map[string]int64{LevelGlobal: 0, LevelCategory: 0, "a.b": 0, "off": 0, "c.*": 0})
	if len(gate.usage.touched) != 0 {
		t.Errorf("%v are followed although nothing is taken", gate.usage.touched)
	}
	if !reflect.DeepEqual(gate.metrics.size, sizes) {
		t.Errorf("sizes %v, want %v", gate.metrics.size, sizes)
	}

	// What was read for limits that are in force no more is not shown.
	before := gate.usage.current()
	tree := newTree(t, "100/1h", "none", "new=1/1h")
	gate.Adopt(Ruleset{Tree: tree})
	if want := []string{LevelGlobal, "new"}; !slices.Equal(gate.metrics.levels, want) {
		t.Errorf("levels %q, want %q", gate.metrics.levels, want)
	}
	clear(gate.metrics.used)
	clear(gate.metrics.size)
	gate.usage.show(before, map[string]limitUse{"a.b": {4, 4}})
	if len(gate.metrics.used)+len(gate.metrics.size) != 0 {
		t.Errorf("used %v, sizes %v of limits that are gone", gate.metrics.used, gate.metrics.size)
	}
	check(map[string]int64{LevelGlobal: 0})
}

func TestGateSaysOnceThatAnEventNeverFits(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{Settings: Settings{Tree: newTree(t, "none", "3/1h", "off=0/1h")}})
	for round := range 3 {
		gate.want(map[Verdict]int{NeverFits: 3},
			request(fmt.Sprint("a", round), "a").withCost(4), request(fmt.Sprint("b", round), "b").withCost(100), request(fmt.Sprint("off", round), "off"))
	}
	gate.logs.want(t, "event never fits its limit", "event never fits its limit")
}

func TestGateConcurrentGrants(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{Settings: Settings{Tree: newTree(t, "none", "none", "a=1000/1h")}, Policy: Local})
	var work sync.WaitGroup
	for worker := range 8 {
		work.Go(func() {
			for round := range 10 {
				answers, err := gate.Decide(t.Context(), several(8, fmt.Sprint(worker, "-", round, "-"), "a"))
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
	counts, err := gate.o.Redis.Usage(t.Context(), gate.o.Tree.Path("a"))
	if err != nil || counts[0][0] != want {
		t.Errorf("%v slots are taken, want %d, %v", counts, want, err)
	}
	if local := gate.local.Usage(gate.o.Tree.Path("a")); local[0][0] != want {
		t.Errorf("%v slots are taken locally, want %d", local, want)
	}
	gate.metrics.wantRefunded(t, 8*10*2)
}
