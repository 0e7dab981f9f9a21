package store

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// shadowed compares decisions of the shadow. "" is an admission, other texts are the denying level.
func (s *subject) shadowed(want []string, requests ...Request) []Decision {
	s.t.Helper()
	decisions := s.decide(requests...)
	for i, d := range decisions {
		verdict := Admitted
		if want[i] != "" {
			verdict = Denied
		}
		if d.Shadow.Verdict != verdict || d.Shadow.Node.Level != want[i] {
			s.t.Fatalf("event %d of %d, %q: the shadow says %+v, want %q", i+1, len(requests), requests[i].ID, d.Shadow, want[i])
		}
	}
	return decisions
}

// shadowConformance has the cases of shadow limits.
var shadowConformance = []conformanceCase{
	{name: "shadow: it tells beside what is in force what it would have done",
		global: "10/1h", category: "5/1h", shadow: "a=2/10m", run: func(s *subject) {
			decisions := s.shadowed([]string{"", "", "a", ""}, append(several(3, "e", "a"), request("b", "b"))...)
			wantVerdicts(s.t, decisions, Admitted, Admitted, Admitted, Admitted)
			want := ShadowDecision{
				Verdict: Denied, Limit: limits.Limit{Count: 2, Window: 10 * time.Minute}, Wait: 10 * time.Minute,
				Node: limits.Node{Path: "a", Level: "a", Limits: limits.Limits{{Count: 2, Window: 10 * time.Minute}}},
			}
			testkit.EqualDeeply(s.t, decisions[2].Shadow, want, "decision of the shadow")
			s.taken("a", 4, 3)
			s.clock.Advance(10*time.Minute - time.Microsecond)
			testkit.Equal(s.t, s.shadowed([]string{"a"}, request("x", "a"))[0].Shadow.Wait, time.Microsecond, "wait in the shadow")
			s.clock.Advance(2 * time.Microsecond)
			s.shadowed([]string{"", "", "a"}, request("y", "a"), request("z", "a").withCost(1), request("w", "a"))
		}},
	{name: "shadow: what is denied in force it may admit, once", category: "1/1h", shadow: "category=3/10m", run: func(s *subject) {
		s.shadowed([]string{"", "", ""}, several(3, "e", "a")...)
		for range 3 { // retried, though denied
			s.clock.Advance(time.Second)
			decisions := s.shadowed([]string{"", "", limits.LevelCategory}, request("e2", "a"), request("e3", "a"), request("e4", "a"))
			for _, d := range decisions {
				if d.Verdict != Denied || d.Node.Level != limits.LevelCategory || d.Limit.Count != 1 {
					s.t.Fatalf("got %+v, want a denial by the limit of 1", d)
				}
			}
		}
		s.clock.Advance(10*time.Minute - 3*time.Second) // the slots have left, so the events count again
		s.shadowed([]string{"", "", "", limits.LevelCategory}, request("e2", "a"), request("e3", "a"), request("e4", "a"), request("e5", "a"))
		s.taken("a", 1)
	}},
	{name: "shadow: what the root denies in force it may admit, once", global: "1/1h", shadow: "global=5/10m", run: func(s *subject) {
		s.admit(request("e1", "a"))
		for range 3 { // retried, though denied
			s.clock.Advance(time.Second)
			s.shadowed([]string{"", ""}, request("e2", "a"), request("e3", "b"))
		}
		s.shadowed([]string{"", "", limits.LevelGlobal}, request("e4", "a"), request("e5", "a"), request("e6", "b"))
	}},
	{name: "shadow: a batch is denied by its own limit", global: "9/1h+8/2h", category: "5/1h", shadow: "global=2/3h,a=7/1h", run: func(s *subject) {
		s.shadowed([]string{"", ""}, request("1", "a"), request("2", "b"))
		for round, verdict := range []Verdict{Admitted, Admitted, Denied, Denied} {
			name := fmt.Sprint(round, "-")
			decisions := s.shadowed([]string{limits.LevelGlobal, limits.LevelGlobal, limits.LevelGlobal}, append(several(2, name, "a"), request(name, "b"))...)
			for i, d := range decisions {
				if d.Verdict != verdict || d.Shadow.Limit != (limits.Limit{Count: 2, Window: 3 * time.Hour}) {
					s.t.Errorf("round %d, event %d: got %+v, want %s, and a denial by 2/3h in the shadow", round, i+1, d, verdict)
				}
			}
		}
	}},
	{name: "shadow: it says nothing of what is known already", category: "5/1h", shadow: "category=1/1h", run: func(s *subject) {
		event := request("event", "a")
		lease := leasesOf(s.shadowed([]string{""}, event))
		nothing := func(verdict Verdict, requests ...Request) {
			s.t.Helper()
			for _, d := range s.want(verdict, requests...) {
				testkit.EqualDeeply(s.t, d.Shadow, ShadowDecision{}, "decision of the shadow")
			}
		}
		nothing(Leased, event, event)
		nothing(Duplicate, event.inMessage(2))
		nothing(Unknown, request("x", "a").withCost(0))
		s.clock.Advance(testLease)
		nothing(Reclaimed, event)
		s.finish(lease...)
		nothing(Done, event)
		s.shadowed([]string{limits.LevelCategory}, request("f", "a"))
	}},
	{name: "shadow: a slot returns to every algorithm",
		shadow: withEach("1/1h"), run: func(s *subject) {
			for _, a := range algorithm.All() {
				lease := s.shadowed([]string{""}, request(a.String(), a.String()))[0].Lease
				s.clock.Advance(time.Second)
				s.shadowed([]string{a.String()}, request(a.String()+"2", a.String()))
				s.refund(true, lease)
				s.shadowed([]string{"", a.String()}, request(a.String()+"3", a.String()), request(a.String()+"4", a.String()))
			}
		}},
	{name: "shadow: a slot that was never taken there is not returned", shadow: "a=fixed:1/1h+1/1h", run: func(s *subject) {
		decisions := s.shadowed([]string{"", "a"}, several(2, "e", "a")...)
		s.clock.Advance(time.Second)
		s.refund(true, decisions[1].Lease)
		s.shadowed([]string{"a"}, request("x", "a"))
		s.refund(true, decisions[0].Lease)
		s.shadowed([]string{""}, request("y", "a"))
	}},
	{name: "shadow: deliveries under way are counted", shadow: "a=inflight:1/1m", run: func(s *subject) {
		lease := s.shadowed([]string{""}, request("event", "a"))[0].Lease
		s.clock.Advance(20 * time.Second)
		lease = s.extend(testLease, lease)[0]
		s.clock.Advance(50 * time.Second)
		testkit.Equal(s.t, s.shadowed([]string{"a"}, request("x", "a"))[0].Shadow.Wait, 10*time.Second, "wait in the shadow")
		s.finish(lease)
		s.shadowed([]string{"", "a"}, request("y", "a"), request("z", "a"))
	}},
	{name: "shadow: a raised global limit beside guarantees", global: "3/1h", guarantees: "security=1", shadow: "global=4/1h", run: func(s *subject) {
		s.shadowed([]string{"", "", "", limits.LevelGlobal, "", limits.LevelGlobal}, append(several(4, "o", "orders"), several(2, "s", "security")...)...)
		s.taken("orders", 3)
	}},
	{name: "shadow: a cost that never fits there", shadow: "a=2/1h", run: func(s *subject) {
		d := s.decide(request("event", "a").withCost(3))[0]
		if d.Verdict != Admitted || d.Shadow.Verdict != ExceedsCapacity || d.Shadow.Node.Level != "a" {
			s.t.Fatalf("got %+v, want it admitted, and %s in the shadow", d, ExceedsCapacity)
		}
	}},
	{name: "shadow: another shadow counts on, none counts nothing", shadow: "a=1/1h", run: func(s *subject) {
		s.shadowed([]string{"", "a"}, several(2, "e", "a")...)
		shadow := func(overrides string) {
			s.adopt(newRuleset(s.t, newPlan(s.t, "none", "none", ""), overrides))
			s.clock.Advance(time.Second)
		}
		shadow("a=2/1h")
		s.shadowed([]string{"", "a"}, several(2, "f", "a")...)
		shadow("")
		for _, d := range s.want(Admitted, several(2, "g", "a")...) {
			testkit.EqualDeeply(s.t, d.Shadow, ShadowDecision{}, "decision of the shadow")
		}
		shadow("a=3/1h")
		s.shadowed([]string{"", "a"}, several(2, "h", "a")...)
	}},
}

// TestShadowTouchesNothing makes the same calls with and without shadow limits, and compares the answers and keys of the limits in force
// after each call.
func TestShadowTouchesNothing(t *testing.T) {
	t.Parallel()
	server, client := startRedis(t)
	other := newClient(t, redis.Options{Addr: server.Addr, DB: 1})
	for n := range 12 {
		seed := rand.Uint64()
		p := newShadowPair(t, client, other, fmt.Sprint("pair", n), rand.New(rand.NewPCG(seed, 0)))
		for step := range 60 {
			p.step()
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
		if p.shadowKeys() == 0 || p.deniedApart == 0 {
			t.Fatalf("seed %d: the shadow has %d keys and disagreed %d times: that says nothing", seed, p.shadowKeys(), p.deniedApart)
		}
	}
}

// shadowPair has two deployments of one name, one with a shadow and one without, in two databases of a server. Their keys expire by the
// server's clock.
type shadowPair struct {
	t             *testing.T
	random        *rand.Rand
	with, without *Redis
	clients       map[*Redis]*redis.Client
	clocks        [2]*testkit.Clock
	calls         int
	deniedApart   int           // decisions that differ in the shadow
	slack         time.Duration // how much expiries of one key may differ: the longest step
	leases        [2][]Lease
}

func newShadowPair(t *testing.T, client, other *redis.Client, name string, random *rand.Rand) *shadowPair {
	plan := newPlan(t, "8/1m", "counter:6/1m+token:30/1m;burst=12+inflight:5/40s",
		"a.b=fixed:4/1m,a.b.c=leaky:60/1m,off=0/1m,b=6/20s")
	plan = guarded(t, plan, "a.b=2")
	shadow := "global=5/2m,category=4/1m,a=leaky:60/1m+inflight:2/1m,a.b=token:6/1m,a.b.c=none,b=fixed:3/1m+counter:4/2m"
	rules := newRuleset(t, plan, shadow)
	p := &shadowPair{t: t, random: random}
	settings := Settings{Tree: rules.Tree, Lease: 30 * time.Second, Retention: time.Minute, Forward: random.IntN(4) == 0}
	p.without = newRedis(other, name, settings)
	settings.Shadow = rules.Shadow
	p.with = newRedis(client, name, settings)
	p.clients = map[*Redis]*redis.Client{p.with: client, p.without: other}
	p.clocks = [2]*testkit.Clock{withFakeTime(t, p.with), withFakeTime(t, p.without)}
	return p
}

func (p *shadowPair) step() {
	p.t.Helper()
	for _, clock := range p.clocks {
		clock.Advance(time.Microsecond)
	}
	began := time.Now()
	switch p.random.IntN(10) {
	default:
		p.decide()
	case 5:
		p.calls++
		nonce := fmt.Sprint("finish", p.calls)
		p.each(func(r *Redis, leases []Lease) (any, error) { return r.finishBatch(p.t.Context(), nonce, leases) })
	case 6:
		p.each(func(r *Redis, leases []Lease) (any, error) {
			returned, err := r.Refund(p.t.Context(), leases)
			return returned, err
		})
	case 7:
		d := time.Duration(p.random.IntN(2)) * 30 * time.Second
		p.each(func(r *Redis, leases []Lease) (any, error) {
			extended, err := r.Extend(p.t.Context(), leases, d)
			return plainLeases(extended), err
		})
	case 8, 9:
		d := []time.Duration{time.Second, 10 * time.Second, 45 * time.Second, 2 * time.Minute, -30 * time.Second}[p.random.IntN(5)]
		for _, clock := range p.clocks {
			clock.Advance(d)
		}
		return
	}
	p.slack = max(p.slack, time.Since(began)+2*time.Millisecond)
	p.compareKeys()
}

func (p *shadowPair) decide() {
	p.t.Helper()
	requests := make([]Request, 1+p.random.IntN(6))
	for i := range requests {
		number := p.random.IntN(40)
		category := []string{"a", "a.b", "a.b.c", "b", "off"}[number%5]
		requests[i] = request(fmt.Sprint("e", number), category).withCost([]int{1, 1, 2, 0}[number%4])
		if number > 30 {
			requests[i] = derived(uint64(number), start, category)
		}
		requests[i].Message.Sequence += uint64(p.random.IntN(8) / 7)
	}
	p.calls++
	nonce := fmt.Sprint("nonce", p.calls-p.random.IntN(6)/5) // some calls are repeated, with the same events or others
	var results [2]BatchResult
	for i, r := range []*Redis{p.with, p.without} {
		result := testkit.Must(r.DecideOnce(p.t.Context(), nonce, requests))(p.t)
		for _, d := range result.Decisions {
			if d.Lease.Request.ID != "" {
				p.leases[i] = append(p.leases[i], d.Lease)
			}
		}
		results[i] = result
	}
	for i, d := range results[0].Decisions {
		if d.Shadow.Verdict != 0 && d.Shadow.Verdict != d.Verdict {
			p.deniedApart++
		}
		testkit.EqualDeeply(p.t, results[1].Decisions[i].Shadow, ShadowDecision{}, "decision without a shadow")
		d.Shadow, d.Lease.shadow = ShadowDecision{}, nil
		results[0].Decisions[i] = d
	}
	testkit.EqualDeeply(p.t, results[0], results[1], "answers with a shadow, compared with those without, to %+v", requests)
}

// each makes the same call to both deployments, about some of their leases.
func (p *shadowPair) each(call func(r *Redis, leases []Lease) (any, error)) {
	p.t.Helper()
	if len(p.leases[0]) == 0 {
		return
	}
	from := max(0, len(p.leases[0])-10)
	at := from + p.random.IntN(len(p.leases[0])-from)
	upto := min(len(p.leases[0]), at+1+p.random.IntN(3))
	var answers [2]any
	for i, r := range []*Redis{p.with, p.without} {
		var err error
		if answers[i], err = call(r, p.leases[i][at:upto]); err != nil {
			p.t.Fatal(err)
		}
	}
	testkit.EqualDeeply(p.t, answers[0], answers[1], "answers with a shadow, compared with those without")
}

func plainLeases(leases []Lease) []Lease {
	plain := make([]Lease, len(leases))
	for i, lease := range leases {
		lease.shadow = nil
		plain[i] = lease
	}
	return plain
}

type keptKey struct {
	dump    string
	expires time.Duration
}

// keys returns the keys of the limits in force without their prefix, and the number of keys of the shadow.
func (p *shadowPair) keys(r *Redis) (inForceKeys map[string]keptKey, ofShadow int) {
	p.t.Helper()
	inForceKeys = make(map[string]keptKey)
	client := p.clients[r]
	for _, key := range client.Keys(p.t.Context(), r.d.runner.Key("")+"*").Val() {
		name := strings.TrimPrefix(key, r.d.runner.Key(""))
		if strings.HasPrefix(name, inShadow) {
			ofShadow++
			continue
		}
		kept := keptKey{client.Dump(p.t.Context(), key).Val(), client.PTTL(p.t.Context(), key).Val()}
		if kept.dump == "" || kept.expires <= 0 {
			p.t.Errorf("%s: %+v", key, kept)
		}
		inForceKeys[name] = kept
	}
	return inForceKeys, ofShadow
}

func (p *shadowPair) shadowKeys() int {
	_, n := p.keys(p.with)
	return n
}

func (p *shadowPair) compareKeys() {
	p.t.Helper()
	began := time.Now()
	with, _ := p.keys(p.with)
	without, strange := p.keys(p.without)
	slack := p.slack + time.Since(began)
	testkit.Equal(p.t, strange, 0, "keys of a shadow where there is none")
	for name, kept := range with {
		other, there := without[name]
		if !there || kept.dump != other.dump {
			p.t.Errorf("%s differs, or is not there without a shadow: %v", name, there)
		} else if apart := (kept.expires - other.expires).Abs(); apart > slack {
			p.t.Errorf("%s expires after %v with a shadow, after %v without", name, kept.expires, other.expires)
		}
	}
	for name := range without {
		if _, there := with[name]; !there {
			p.t.Errorf("%s is not there with a shadow", name)
		}
	}
}

// TestForwardedGoesOn has denied events forwarded beside a full limit of deliveries in flight. They take no slot, and go on without one: after
// their leases have ended, and while they are renewed.
func TestForwardedGoesOn(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	settings := scriptSettings(t)
	settings.Forward, settings.Tree = true, newTree(t, "inflight:1/1h", "none", "")
	r := newRedis(client, "forwarded", settings)
	clock := withFakeTime(t, r)
	testkit.Must(r.Decide(t.Context(), []Request{request("one", "a"), request("two", "a")}))(t)
	clock.Advance(testLease + time.Second)
	again := testkit.Must(r.Decide(t.Context(), []Request{request("two", "a")}))(t).Decisions[0]
	testkit.Equal(t, again.Verdict, Reclaimed, "an event without a slot")
	extended := testkit.Must(r.Extend(t.Context(), []Lease{again.Lease}, testLease))(t)
	testkit.Equal(t, extended[0].End > 0, true, "its lease is renewed")
}
