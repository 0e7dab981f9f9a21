package throttle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

func (m *fakeMetrics) wantShadow(t *testing.T, want map[string]int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !maps.Equal(m.shadow, want) {
		t.Errorf("decisions of the shadow %v, want %v", m.shadow, want)
	}
}

func (k *gateKit) wantFull(category, level string) {
	k.t.Helper()
	node, full := k.Full(category)
	if full != (level != "") || full && node.Level != level {
		k.t.Errorf("%s: full is %v at %q, want %q", category, full, node.Level, level)
	}
}

func TestGateRaisedLimitShowsAtOnce(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{
		Settings: Settings{Tree: newTree(t, "none", "none", "")}, DenyCacheTTL: time.Hour,
	})
	for _, kind := range []string{"log", "counter", "fixed", "token", "inflight"} {
		for _, place := range []struct{ plan, level string }{{"global", LevelGlobal}, {"category", LevelCategory}, {"rule", kind + ".b"}} {
			category, revision := kind+".b", gate.rules.Load().Revision
			adopt := func(limit string) {
				t.Helper()
				limits := map[string]string{"global": "none", "category": "none", "rule": "none"}
				limits[place.plan] = kind + ":" + limit
				revision++
				tree := newTree(t, limits["global"], limits["category"], kind+".b="+limits["rule"])
				gate.Adopt(Ruleset{Tree: tree, Generation: 1, Revision: revision})
			}
			event := func(n int) Request { return request(fmt.Sprint(kind, place.plan, n), category) }
			adopt("2/1h")
			gate.want(map[Verdict]int{Admitted: 2, Denied: 1}, event(1), event(2), event(3))
			full := place.level
			if kind == "inflight" { // a slot may come back at any time
				full = ""
			}
			gate.wantFull(category, full)
			adopt("3/1h")
			gate.wantFull(category, "")
			gate.one(Admitted, event(3))
			gate.one(Denied, event(4))
			gate.wantFull(category, full)
		}
	}
}

func TestGateLimitsInFlightAreAskedEachTime(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{
		Settings: Settings{Tree: newTree(t, "none", "inflight:1/1h", "")}, DenyCacheTTL: time.Hour,
	})
	grant := gate.one(Admitted, request("first", "a"))
	gate.one(Denied, request("second", "a"))
	gate.wantFull("a", "")
	grant.Finish(t.Context(), "")
	gate.one(Admitted, request("second", "a"))
}

func TestGateFullForAllButAGuarantee(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	plan := guarded(t, newPlan(t, "5/1h", "none", ""), "security=1,payments.refunds=2")
	gate := startGate(t, server.Addr, GateOptions{
		Settings: Settings{Tree: newRuleset(t, plan, "").Tree}, DenyCacheTTL: time.Hour,
	})
	gate.want(map[Verdict]int{Admitted: 2, Denied: 1}, several(3, "o", "orders")...)
	gate.wantFull("orders", LevelGlobal)
	gate.wantFull("payments", LevelGlobal)
	gate.wantFull("security.login", "")
	gate.wantFull("payments.refunds", "")
	security := gate.want(map[Verdict]int{Admitted: 1, Denied: 1}, several(2, "s", "security")...)
	gate.wantFull("security.login", LevelGlobal)
	gate.wantFull("payments.refunds", "")
	gate.want(map[Verdict]int{Admitted: 2, Denied: 1}, several(3, "r", "payments.refunds")...)
	gate.wantFull("payments.refunds", LevelGlobal)
	security[0].Grant.Refund(t.Context())
	gate.wantFull("security", "")
	gate.one(Admitted, request("s2", "security"))
}

func TestGateFullInForceAndInTheShadow(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	rules := newRuleset(t, newPlan(t, "none", "2/1h", ""), "category=3/1h,b=1/1h")
	gate := startGate(t, server.Addr, GateOptions{Settings: Settings{Tree: rules.Tree, Shadow: rules.Shadow}, DenyCacheTTL: time.Hour})
	gate.want(map[Verdict]int{Admitted: 2, Denied: 1}, several(3, "a", "a")...)
	gate.wantFull("a", "") // the shadow has admitted the third
	gate.one(Denied, request("a4", "a"))
	gate.metrics.wantShadow(t, map[string]int{"admitted by none": 3, "denied by category": 1})
	gate.wantFull("a", LevelCategory)
	gate.metrics.wantShadow(t, map[string]int{"admitted by none": 3, "denied by category": 2})
	gate.metrics.wantDecisions(t, map[string]int{"admitted by redis": 2, "denied by redis": 2, "denied by cache": 1})

	gate.one(Admitted, request("b1", "b"))
	gate.one(Admitted, request("b2", "b"))
	gate.wantFull("b", "") // in the shadow alone
	gate.metrics.wantShadow(t, map[string]int{"admitted by none": 4, "denied by category": 2, "denied by b": 1})
	gate.one(Denied, request("b3", "b"))
	gate.wantFull("b", LevelCategory)
	gate.metrics.wantShadow(t, map[string]int{"admitted by none": 4, "denied by category": 2, "denied by b": 3})

	// Another shadow is asked anew; without one the limits in force are enough.
	gate.Adopt(newRuleset(t, newPlan(t, "none", "2/1h", ""), "category=4/1h"))
	gate.wantFull("a", "")
	gate.one(Denied, request("a5", "a"))
	gate.metrics.wantShadow(t, map[string]int{"admitted by none": 5, "denied by category": 2, "denied by b": 3})
	gate.Adopt(newRuleset(t, newPlan(t, "none", "2/1h", ""), ""))
	gate.wantFull("a", LevelCategory)
}

// staleGate is a gate in whose place others use newer limits, 3/1h in the place of its 2/1h, which are used up.
func staleGate(t *testing.T, refresh func(ctx context.Context, gate *gateKit, newer Ruleset) error) (*gateKit, *servertest.Redis) {
	t.Helper()
	server := servertest.StartRedis(t)
	var gate *gateKit
	newer := Ruleset{Tree: newTree(t, "none", "3/1h", ""), Generation: 1, Revision: 2}
	o := GateOptions{Settings: Settings{Tree: newTree(t, "none", "2/1h", "")}, DenyCacheTTL: time.Hour}
	if refresh != nil {
		o.Refresh = func(ctx context.Context) error { return refresh(ctx, gate, newer) }
	}
	gate = newGateKit(t, server.Addr, o)
	gate.run()
	gate.await()
	gate.want(map[Verdict]int{Admitted: 2}, several(2, "e", "a")...)
	other := newRedis(newClient(t, redis.Options{Addr: server.Addr}), "gate", Settings{Tree: newer.Tree, Lease: time.Hour, Retention: testRetention})
	other.Adopt(newer)
	if _, err := other.Decide(t.Context(), []Request{request("other", "others")}); err != nil {
		t.Fatal(err)
	}
	return gate, server
}

func TestGateRefreshesLimitsThatAreNotTheNewest(t *testing.T) {
	t.Parallel()
	refreshed := 0
	gate, _ := staleGate(t, func(ctx context.Context, gate *gateKit, newer Ruleset) error {
		refreshed++
		if _, limited := ctx.Deadline(); !limited {
			t.Error("nothing bounds how long the newest limits are waited for")
		}
		gate.Adopt(newer)
		return nil
	})
	answers := gate.decide(request("e3", "a"), request("e4", "a"))
	if refreshed != 1 {
		t.Errorf("refreshed %d times", refreshed)
	}
	if answers[0].Verdict != Admitted || answers[0].Grant == nil || answers[1].Verdict != Denied || answers[1].Limit.Count != 3 {
		t.Errorf("answered %+v", answers)
	}
	gate.wantFull("a", LevelCategory)
	answers[0].Grant.Refund(t.Context())
	gate.one(Admitted, request("e4", "a"))
	if refreshed != 1 {
		t.Errorf("refreshed %d times", refreshed)
	}
	gate.logs.want(t)
}

// wantBehind asks while newer limits are in force that cannot be had.
func (k *gateKit) wantBehind() {
	k.t.Helper()
	answers, err := k.Decide(k.t.Context(), several(5, "x", "b"))
	if !errors.Is(err, ErrStale) || len(answers) > 0 {
		k.t.Fatalf("answered %+v, %v; want %v", answers, err, ErrStale)
	}
	ended, cancel := context.WithCancel(k.t.Context())
	cancel()
	if err := k.Await(ended); !errors.Is(err, context.Canceled) {
		k.t.Errorf("the wait ended with %v while nothing can be decided", err)
	}
}

// eventually waits for what the gate finds out by itself.
func (k *gateKit) eventually(what string, holds func() bool) {
	k.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			k.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// outlast makes the gate behind for longer than it may be.
func (k *gateKit) outlast() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.behind.since = k.behind.since.Add(-behindAtMost)
}

const (
	wordBehind  = "limits here are older than those in force, no events are taken"
	wordCurrent = "limits here are those in force again"
)

func TestGateCannotRefresh(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		refresh func(context.Context, *gateKit, Ruleset) error
		reason  string
	}{
		"no way to":             {nil, "notifier limits adopt"},
		"failing":               {func(context.Context, *gateKit, Ruleset) error { return errors.New("no bucket") }, "cannot be read: no bucket"},
		"finding nothing newer": {func(context.Context, *gateKit, Ruleset) error { return nil }, "notifier limits adopt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate, server := staleGate(t, test.refresh)
			client := newClient(t, redis.Options{Addr: server.Addr})
			before := contents(t, client)
			gate.wantFull("a", "")
			for range 3 {
				gate.wantBehind()
			}
			wantUnchanged(t, client, before)
			if err := gate.Ready(); err != nil {
				t.Errorf("ready, behind for a moment: %v", err)
			}
			gate.logs.want(t)

			gate.outlast()
			gate.eventually("the gate is not ready", func() bool { return gate.Ready() != nil })
			err := gate.Ready()
			for _, part := range []string{"revision 2 of generation 1 (", "here is none", test.reason} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("not ready: %v, want %q in it", err, part)
				}
			}
			gate.wantBehind()
			gate.logs.want(t, wordBehind)
			gate.metrics.wantDecisions(t, map[string]int{"admitted by redis": 2})

			// Nobody asks for anything, and the state agrees again.
			other := newRedis(client, "gate", gate.o.Settings)
			if put, err := other.PutInForce(t.Context(), Position{1, 2}, Position{}); err != nil || !put {
				t.Fatalf("put in force: %t, %v", put, err)
			}
			gate.await()
			if err := gate.Ready(); err != nil {
				t.Errorf("ready: %v", err)
			}
			gate.logs.want(t, wordBehind, wordCurrent)
			gate.want(map[Verdict]int{Admitted: 2, Denied: 1}, several(3, "x", "b")...)
		})
	}
}

// TestGateIsBehindFromTheStart has others use newer limits before the gate begins, which then become known.
func TestGateIsBehindFromTheStart(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	newer := Ruleset{Tree: newTree(t, "none", "3/1h", ""), Generation: 1, Revision: 2}
	other := newRedis(newClient(t, redis.Options{Addr: server.Addr}), "gate", Settings{Tree: newer.Tree, Lease: time.Hour, Retention: testRetention})
	other.Adopt(newer)
	if _, err := other.Decide(t.Context(), []Request{request("other", "others")}); err != nil {
		t.Fatal(err)
	}
	var gate *gateKit
	known := make(chan struct{})
	gate = newGateKit(t, server.Addr, GateOptions{
		Settings: Settings{Tree: newTree(t, "none", "2/1h", "")},
		Refresh: func(context.Context) error {
			select {
			case <-known:
				gate.Adopt(newer)
				return nil
			default:
				return errors.New("not read yet")
			}
		},
	})
	gate.run()
	gate.until(answering)
	gate.wantBehind()
	if err := gate.Ready(); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), "not read yet") {
		t.Errorf("ready: %v, want that newer limits are in force", err)
	}
	close(known)
	gate.await()
	if err := gate.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	gate.logs.want(t) // it was a moment
	gate.want(map[Verdict]int{Admitted: 3, Denied: 1}, several(4, "e", "a")...)
}

// TestIdleGateNoticesNewerLimits asks for nothing at all.
func TestIdleGateNoticesNewerLimits(t *testing.T) {
	t.Parallel()
	gate, server := staleGate(t, func(context.Context, *gateKit, Ruleset) error { return errors.New("no bucket") })
	gate.eventually("the gate is behind", func() bool {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		return gate.Await(ended) != nil
	})
	gate.outlast()
	gate.eventually("the gate is not ready", func() bool { return gate.Ready() != nil })
	server.CLI("del", "{gate}:limits") // Redis has lost its data
	gate.await()
	gate.logs.want(t, wordBehind, wordCurrent)
}

// TestGateSharesOfEachAlgorithm has one of three instances decide alone.
func TestGateSharesOfEachAlgorithm(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{
		Settings: Settings{Tree: newTree(t, "none", "none",
			"log=6/1h,counter=counter:6/1h,fixed=fixed:6/1h,token=token:6/1h;burst=3,leaky=leaky:6/1h,inflight=inflight:6/1h")},
		Policy: Local, Grace: time.Nanosecond, Instances: func() int { return 3 }, DenyCacheTTL: time.Hour,
	})
	gate.lose(server)
	gate.until(acting)
	for _, share := range []struct {
		category       string
		admitted       int
		waits, atLeast time.Duration // until the next slot; an hour has two slots for this instance
	}{
		{"log", 2, time.Hour, time.Hour - patience},
		{"counter", 2, 2 * time.Hour, 30 * time.Minute},
		{"fixed", 2, time.Hour, time.Microsecond},
		{"token", 1, 30 * time.Minute, 30*time.Minute - patience},
		{"leaky", 1, 30 * time.Minute, 30*time.Minute - patience},
		{"inflight", 2, time.Hour, time.Hour - patience},
	} {
		answers := gate.want(map[Verdict]int{Admitted: share.admitted, Denied: 5 - share.admitted}, several(5, share.category, share.category)...)
		last := answers[4]
		if last.Wait > share.waits || last.Wait < share.atLeast {
			t.Errorf("%s: the next slot opens after %v, want %v at most", share.category, last.Wait, share.waits)
		}
		gate.wantFull(share.category, "") // a share says nothing of the whole
		if share.category == "inflight" {
			answers[0].Grant.Finish(t.Context(), "")
			gate.one(Admitted, request("inflight5", "inflight"))
		}
	}
}
