package throttle

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/lua"
)

// subject is a store of any kind, with a clock of its own that the test moves.
type subject struct {
	Store
	t      *testing.T
	clock  *testkit.Clock
	tree   *limits.Tree
	shadow *limits.Tree
	// changes is how often other limits were put in force.
	changes uint64
	adopt   func(rules limits.Ruleset)
	repeat  func(nonce string, requests []Request) (BatchResult, error)
	counts  func(nodes []limits.Node) ([][]int64, error)
}

func newMemorySubject(t *testing.T, s Settings) *subject {
	clock := testkit.NewClock(nil)
	memory := NewMemory(s, clock.Read, nil)
	return &subject{
		Store: memory, t: t, clock: clock, tree: s.Tree, shadow: s.Shadow, adopt: memory.Adopt,
		repeat: func(nonce string, requests []Request) (BatchResult, error) {
			return memory.decideBatch(nonce, requests), nil
		},
		counts: func(nodes []limits.Node) ([][]int64, error) { return memory.Usage(nodes), nil },
	}
}

func newRedisSubject(t *testing.T, client redis.UniversalClient, s Settings) *subject {
	return subjectOf(t, newRedis(client, "test:"+t.Name(), s), s)
}

func subjectOf(t *testing.T, store *Redis, s Settings) *subject {
	clock := withFakeTime(t, store)
	return &subject{
		Store: store, t: t, clock: clock, tree: s.Tree, shadow: s.Shadow, adopt: store.Adopt,
		repeat: func(nonce string, requests []Request) (BatchResult, error) {
			return store.decideBatch(t.Context(), nonce, requests)
		},
		counts: func(nodes []limits.Node) ([][]int64, error) { return store.Usage(t.Context(), nodes) },
	}
}

// newSingleSubject evaluates each event by itself, those too that could be evaluated as one.
func newSingleSubject(t *testing.T, client redis.UniversalClient, s Settings) *subject {
	store := newRedis(client, "test:"+t.Name(), s)
	evaluated := subjectOf(t, store, s)
	store.withSource(func(name lua.Script, text string) string {
		const condition = "if fastpath ~= ''"
		if name == lua.Decide && strings.Count(text, condition) != 1 {
			t.Fatalf("the script does not say %q once", condition)
		}
		return strings.Replace(text, condition, "if false", 1)
	})
	return evaluated
}

// newFunctionsSubject runs the scripts as a library of functions.
func newFunctionsSubject(t *testing.T, client redis.UniversalClient, s Settings) *subject {
	o := script.Options{Client: client, Prefix: "test:" + t.Name(), Timeout: patience, Scripting: script.Functions}
	return subjectOf(t, NewRedis(script.NewRunner(o), s), s)
}

func (s *subject) result(requests ...Request) BatchResult {
	s.t.Helper()
	result := testkit.Must(s.Decide(s.t.Context(), requests))(s.t)
	if len(result.Decisions) != len(requests) {
		s.t.Fatalf("%d decisions for %d requests", len(result.Decisions), len(requests))
	}
	return result
}

func (s *subject) decide(requests ...Request) []Decision {
	s.t.Helper()
	return s.result(requests...).Decisions
}

// want asks and compares the verdicts.
func (s *subject) want(verdict Verdict, requests ...Request) []Decision {
	s.t.Helper()
	decisions := s.decide(requests...)
	for i, d := range decisions {
		if d.Verdict != verdict {
			s.t.Fatalf("event %d of %d, %q: verdict %d, want %d (%+v)", i+1, len(requests), requests[i].ID, d.Verdict, verdict, d)
		}
		if got := d.Lease.ID != ""; got != (verdict == Admitted || verdict == Reclaimed) {
			s.t.Fatalf("verdict %d of %q comes with lease %+v", d.Verdict, requests[i].ID, d.Lease)
		}
	}
	return decisions
}

// admit asks for events that are to be admitted, and returns their leases.
func (s *subject) admit(requests ...Request) []Lease {
	s.t.Helper()
	return leasesOf(s.want(Admitted, requests...))
}

func leasesOf(decisions []Decision) []Lease {
	leases := make([]Lease, len(decisions))
	for i, d := range decisions {
		leases[i] = d.Lease
	}
	return leases
}

// deny asks for one event that is to be denied at a level, until a time from now.
func (s *subject) deny(level string, wait time.Duration, r Request) Decision {
	s.t.Helper()
	d := s.want(Denied, r)[0]
	if d.Node.Level != level || d.Wait != wait {
		s.t.Fatalf("denied by %q for %v, want %q for %v", d.Node.Level, d.Wait, level, wait)
	}
	return d
}

// opens asks for an event that is denied at a level until a time from now: it is denied still a microsecond before that,
// and then admitted.
func (s *subject) opens(level string, wait time.Duration, r Request) Lease {
	s.t.Helper()
	s.deny(level, wait, r)
	s.clock.Advance(wait - time.Microsecond)
	s.deny(level, time.Microsecond, r)
	s.clock.Advance(time.Microsecond)
	return s.admit(r)[0]
}

// admits asks for events in one call, of which the first n are to be admitted and the others denied at a level.
func (s *subject) admits(n int, level string, requests ...Request) []Lease {
	s.t.Helper()
	decisions := s.decide(requests...)
	for i, d := range decisions {
		switch {
		case i < n && d.Verdict != Admitted:
			s.t.Fatalf("event %d of %d, %q: %+v, want it admitted", i+1, len(requests), requests[i].ID, d)
		case i >= n && (d.Verdict != Denied || d.Node.Level != level):
			s.t.Fatalf("event %d of %d, %q: %+v, want it denied by %q", i+1, len(requests), requests[i].ID, d, level)
		}
	}
	return leasesOf(decisions[:n])
}

// change puts other limits in force.
func (s *subject) change(plan limits.Plan) {
	s.t.Helper()
	rules := newRuleset(s.t, plan, "")
	s.tree, s.shadow = rules.Tree, rules.Shadow
	s.changes++
	rules.Generation, rules.Revision = 1, s.changes
	s.adopt(rules)
}

// used is how many slots are taken in every limit on the path, the root first.
func (s *subject) used(category string) [][]int64 {
	s.t.Helper()
	return testkit.Must(s.counts(s.tree.Path(category)))(s.t)
}

// taken compares how many slots are taken in the first limit of each node on the path, the root first.
func (s *subject) taken(category string, want ...int64) {
	s.t.Helper()
	nodes := s.tree.Path(category)
	counts := testkit.Must(s.counts(nodes))(s.t)
	got := make([]int64, len(counts))
	for i := range counts {
		got[i] = counts[i][0]
	}
	if !reflect.DeepEqual(got, want) {
		s.t.Fatalf("slots taken on the path to %q: %v, want %v", category, got, want)
	}
}

func (s *subject) finish(leases ...Lease) {
	s.t.Helper()
	testkit.NoError(s.t, finish(s.t.Context(), s, leases...))
}

func (s *subject) extend(d time.Duration, leases ...Lease) []Lease {
	s.t.Helper()
	extended := testkit.Must(s.Extend(s.t.Context(), leases, d))(s.t)
	if len(extended) != len(leases) {
		s.t.Fatalf("%d leases extended of %d", len(extended), len(leases))
	}
	return extended
}

func (s *subject) refund(want bool, leases ...Lease) {
	s.t.Helper()
	returned := testkit.Must(s.Refund(s.t.Context(), leases))(s.t)
	if len(returned) != len(leases) {
		s.t.Fatalf("%d answers for %d refunds", len(returned), len(leases))
	}
	for i, got := range returned {
		if got != want {
			s.t.Fatalf("refund of %q: %v, want %v", leases[i].ID, got, want)
		}
	}
}

const (
	testLease     = 30 * time.Second
	testRetention = time.Hour
)

// conformanceCase is one thing that every store has to do.
type conformanceCase struct {
	name                    string
	global, category, rules string
	guarantees              string        // as ParseGuarantees reads them
	shadow                  string        // as ParseOverrides reads them
	lease                   time.Duration // testLease unless given
	retention               time.Duration // testRetention unless given
	forward                 bool
	run                     func(s *subject)
}

func (c conformanceCase) settings(t *testing.T) Settings {
	plan := guarded(t, newPlan(t, c.global, c.category, c.rules), c.guarantees)
	rules := newRuleset(t, plan, c.shadow)
	settings := Settings{Tree: rules.Tree, Shadow: rules.Shadow, Lease: testLease, Retention: testRetention, Forward: c.forward}
	if c.lease != 0 {
		settings.Lease = c.lease
	}
	if c.retention != 0 {
		settings.Retention = c.retention
	}
	return settings
}

// guarded is a plan with guarantees.
func guarded(t testkit.Test, plan limits.Plan, guarantees string) limits.Plan {
	t.Helper()
	if guarantees == "" {
		return plan
	}
	var faults []error
	if plan.Guarantees, faults = limits.ParseGuarantees(guarantees); len(faults) > 0 {
		t.Fatal(faults)
	}
	return plan
}

// newRuleset is the limits of a plan, and those of the shadow if it has overrides.
func newRuleset(t testkit.Test, plan limits.Plan, shadow string) limits.Ruleset {
	t.Helper()
	var overrides []limits.Override
	if shadow != "" {
		var faults []error
		if overrides, faults = limits.ParseOverrides(shadow); len(faults) > 0 {
			t.Fatal(faults)
		}
	}
	return testkit.Must(limits.NewRuleset(plan, nil, overrides, nil))(t)
}

// conformance is what every store has to do, whatever the algorithms.
var conformance = []conformanceCase{
	{
		name: "a limit is reached exactly", global: "100/30m", category: "10/30m",
		run: func(s *subject) {
			decisions := s.decide(several(12, "e", "orders")...)
			for i, d := range decisions {
				if want := map[bool]Verdict{true: Admitted, false: Denied}[i < 10]; d.Verdict != want {
					s.t.Fatalf("event %d: verdict %d, want %d", i+1, d.Verdict, want)
				}
			}
			want := Decision{
				Verdict: Denied, Limit: limits.Limit{Count: 10, Window: 30 * time.Minute}, Wait: 30 * time.Minute,
				Node: limits.Node{Path: "orders", Level: limits.LevelCategory, Limits: limits.Limits{{Count: 10, Window: 30 * time.Minute}}},
			}
			if !alike(decisions[11], want) {
				s.t.Fatalf("denied as %+v, want %+v", decisions[11], want)
			}
			s.taken("orders", 10, 10)
			s.taken("refunds", 10, 0)
		},
	},
	{
		name: "an answer says when", global: "1/1m", category: "none",
		run: func(s *subject) {
			if result := s.result(); result.At != start.UnixMicro() || len(result.Pauses) > 0 {
				s.t.Fatalf("an empty batch was answered with %+v", result)
			}
			result := s.result(request("e", "a"))
			if result.At != start.UnixMicro() {
				s.t.Fatalf("decided at %d, want %d", result.At, start.UnixMicro())
			}
			want := Lease{Request: request("e", "a"), End: start.Add(testLease).UnixMicro(), tree: result.Decisions[0].Lease.tree}
			if got := result.Decisions[0].Lease; got != want || got.tree.Tree != s.tree {
				s.t.Fatalf("lease %+v, want %+v", got, want)
			}
		},
	},
	{
		name: "the next slot opens at the time that was told, and no microsecond before", global: "3/10m", category: "none",
		run: func(s *subject) {
			for i, gap := range []time.Duration{0, 90 * time.Second, 31*time.Second + 1357*time.Microsecond} {
				s.clock.Advance(gap)
				s.admit(request(fmt.Sprint("e", i), "a"))
			}
			s.clock.Advance(time.Minute)
			d := s.want(Denied, request("x", "a"))[0]
			s.clock.Advance(d.Wait - time.Microsecond)
			s.deny(limits.LevelGlobal, time.Microsecond, request("x", "a"))
			s.clock.Advance(time.Microsecond)
			s.admit(request("x", "a"))
			s.clock.Advance(time.Second)
			d = s.deny(limits.LevelGlobal, 89*time.Second, request("y", "a"))
			s.clock.Advance(d.Wait)
			s.admit(request("y", "a"))
			s.taken("a", 3)
		},
	},
	{
		name: "several limits at one node all apply", global: "none", category: "5/1h+2/1m",
		run: func(s *subject) {
			s.admit(several(2, "first", "a")...)
			if d := s.deny(limits.LevelCategory, time.Minute-time.Microsecond, request("x", "a")); d.Limit != (limits.Limit{Count: 2, Window: time.Minute}) {
				s.t.Fatalf("denied by %v", d.Limit)
			}
			s.clock.Advance(time.Minute)
			s.admit(several(2, "second", "a")...)
			s.clock.Advance(time.Minute)
			s.admit(request("third", "a"))
			if d := s.deny(limits.LevelCategory, 58*time.Minute-time.Microsecond, request("x", "a")); d.Limit != (limits.Limit{Count: 5, Window: time.Hour}) {
				s.t.Fatalf("denied by %v", d.Limit)
			}
			s.clock.Advance(58 * time.Minute)
			s.admit(several(2, "fourth", "a")...)
			s.taken("a", 5)
		},
	},
	{
		name: "an event must fit in every node of its path, or is charged to none", global: "20/1h", category: "9/1h",
		rules: "a.*=6/1h,a.b.c=4/1h,a.b.c.d.e.f.g.h=1/1h",
		run: func(s *subject) {
			deep := "a.b.c.d.e.f.g.h"
			s.admit(request("deep", deep))
			s.taken(deep, 1, 1, 1, 1, 1)
			s.clock.Advance(time.Second)
			s.deny("a.b.c.d.e.f.g.h", time.Hour-time.Second, request("x", deep))
			s.taken(deep, 1, 1, 1, 1, 1)
			s.admit(several(3, "c", "a.b.c")...)
			s.clock.Advance(time.Second)
			s.deny("a.b.c", time.Hour-2*time.Second, request("x", "a.b.c.other"))
			s.admit(several(2, "b", "a.b")...)
			s.clock.Advance(time.Second)
			s.deny("a.*", time.Hour-3*time.Second, request("x", "a.b.other.deeper"))
			s.taken(deep, 6, 6, 6, 4, 1)
			s.admit(several(3, "a", "a")...)
			s.clock.Advance(time.Second)
			s.deny(limits.LevelCategory, time.Hour-4*time.Second, request("x", "a.other"))
			s.taken("a.other", 9, 9, 0)
		},
	},
	{
		name: "the first full limit from the root down is named", global: "2/1h", category: "2/2h", rules: "a.b=1/3h",
		run: func(s *subject) {
			s.admit(request("one", "a.b"))
			s.clock.Advance(time.Minute)
			s.deny("a.b", 3*time.Hour-time.Minute, request("x", "a.b"))
			s.admit(request("two", "a"))
			s.clock.Advance(time.Minute)
			s.deny(limits.LevelGlobal, time.Hour-2*time.Minute, request("x", "a.b"))
			s.clock.Advance(time.Hour)
			s.deny(limits.LevelCategory, time.Hour-2*time.Minute, request("x", "a.b"))
			s.clock.Advance(time.Hour)
			s.deny("a.b", time.Hour-2*time.Minute, request("x", "a.b"))
		},
	},
	{
		name: "0 blocks and none does not limit", global: "none", category: "none", rules: "off=0/1h,off.on=5/1h,on=none",
		run: func(s *subject) {
			for _, category := range []string{"off", "off.on"} {
				d := s.want(ExceedsCapacity, request("x", category))[0]
				if d.Node.Level != "off" || d.Limit != (limits.Limit{Count: 0, Window: time.Hour}) || d.Wait != 0 {
					s.t.Fatalf("%s: denied as %+v", category, d)
				}
			}
			s.taken("off.on", 0, 0)
			s.admit(several(200, "e", "on")...)
			s.want(Leased, several(200, "e", "on")...)
			s.finish(s.admit(request("free", "other"))...)
			s.want(Done, request("free", "other"))
		},
	},
	{
		name: "a cost takes that many slots, or none", global: "11/1h", category: "none", rules: "a=6/1m",
		run: func(s *subject) {
			s.admit(request("four", "a").withCost(4))
			s.taken("a", 4, 4)
			s.clock.Advance(10 * time.Second)
			s.deny("a", 50*time.Second, request("three", "a").withCost(3))
			s.taken("a", 4, 4)
			s.admit(request("two", "a").withCost(2))
			s.clock.Advance(10 * time.Second)
			s.deny("a", 40*time.Second, request("five", "a").withCost(4))
			s.deny("a", 50*time.Second, request("five", "a").withCost(5))
			s.clock.Advance(50 * time.Second)
			s.deny(limits.LevelGlobal, time.Hour-70*time.Second, request("six", "a").withCost(6))
			s.admit(request("four more", "a").withCost(4))
			s.taken("a", 10, 4)
		},
	},
	{
		name: "a cost above a limit never fits, full or not", global: "10/1h", category: "3/1h+2/1m",
		run: func(s *subject) {
			check := func(r Request, level string, limit limits.Limit) {
				s.t.Helper()
				if d := s.want(ExceedsCapacity, r)[0]; d.Node.Level != level || d.Limit != limit || d.Wait != 0 {
					s.t.Fatalf("cost %d: denied as %+v", r.Cost, d)
				}
			}
			check(request("x", "a").withCost(3), limits.LevelCategory, limits.Limit{Count: 2, Window: time.Minute})
			check(request("x", "a").withCost(4), limits.LevelCategory, limits.Limit{Count: 3, Window: time.Hour})
			check(request("x", "a").withCost(11), limits.LevelGlobal, limits.Limit{Count: 10, Window: time.Hour})
			s.admit(request("two", "a").withCost(2))
			check(request("x", "a").withCost(3), limits.LevelCategory, limits.Limit{Count: 2, Window: time.Minute})
			s.taken("a", 2, 2)
		},
	},
	{
		name: "a batch is evaluated in its order", global: "4/1h", category: "3/1h",
		run: func(s *subject) {
			s.admit(request("old", "a"))
			s.clock.Advance(time.Minute)
			decisions := s.decide(
				request("1", "a").withCost(2),
				request("2", "a"),
				request("3", "b").withCost(2),
				request("4", "b"),
				request("5", "c"),
				request("6", "a"),
			)
			hour := time.Hour
			want := []struct {
				verdict Verdict
				level   string
				wait    time.Duration
			}{
				{Admitted, "", 0}, {Denied, limits.LevelCategory, hour - time.Minute}, {Denied, limits.LevelGlobal, hour - time.Minute},
				{Admitted, "", 0}, {Denied, limits.LevelGlobal, hour - time.Minute}, {Denied, limits.LevelGlobal, hour - time.Minute},
			}
			for i, w := range want {
				if d := decisions[i]; d.Verdict != w.verdict || d.Node.Level != w.level || d.Wait != w.wait {
					s.t.Errorf("event %d: %+v, want %+v", i+1, d, w)
				}
			}
			s.taken("a", 4, 3)
			s.taken("b", 4, 1)
		},
	},
	{
		name: "what has left the windows makes room", global: "100/1h+60/1m", category: "60/1h",
		run: func(s *subject) {
			s.admit(several(60, "old", "a")...)
			s.want(Denied, several(60, "x", "b")...)
			s.clock.Advance(time.Minute)
			s.admit(several(40, "new", "b")...)
			s.want(Denied, several(60, "x", "b")...)
			s.clock.Advance(time.Hour)
			s.admit(slices.Concat(several(30, "y", "a"), several(30, "z", "b"))...)
			s.taken("a", 60, 30)
			s.taken("b", 60, 30)
		},
	},
	{
		name: "a full log denies those alone whose path it is on", global: "none", category: "2/1h",
		run: func(s *subject) {
			s.admit(several(2, "a", "a")...)
			decisions := s.decide(request("x", "a"), request("y", "b"), request("z", "a"))
			wantVerdicts(s.t, decisions, Denied, Admitted, Denied)
			s.taken("a", 2)
			s.taken("b", 1)
			if d := s.decide(request("v", "b"), request("w", "b")); d[0].Verdict != Admitted || d[1].Verdict != Denied {
				s.t.Errorf("verdicts %d and %d of two that want one slot", d[0].Verdict, d[1].Verdict)
			}
		},
	},
	{
		name: "what never fits is no matter of time, though another limit is full", global: "1/1h", category: "none", rules: "off=0/1h",
		run: func(s *subject) {
			s.admit(request("e", "a"))
			s.want(ExceedsCapacity, request("x", "off"))
			if d := s.decide(request("y", "a"), request("z", "off")); d[0].Verdict != Denied || d[1].Verdict != ExceedsCapacity {
				s.t.Errorf("verdicts %d and %d", d[0].Verdict, d[1].Verdict)
			}
		},
	},
	{
		name: "an event that is known does not share the answer of the others", global: "3/1h", category: "none",
		run: func(s *subject) {
			leases := s.admit(several(3, "e", "a")...)
			s.finish(leases[0])
			decisions := s.decide(request("e1", "a"), request("x", "a"), request("e2", "a"), request("e3", "a").inMessage(9))
			wantVerdicts(s.t, decisions, Done, Denied, Leased, Duplicate)
			s.refund(true, leases[1])
			decisions = s.decide(request("e3", "a"), request("x", "a"))
			if decisions[0].Verdict != Leased || decisions[1].Verdict != Admitted {
				s.t.Errorf("verdicts %d and %d", decisions[0].Verdict, decisions[1].Verdict)
			}
			s.taken("a", 3)
		},
	},
	{
		name: "slots of the same batch are waited for too", global: "3/1h", category: "none",
		run: func(s *subject) {
			s.admit(request("old", "a"))
			s.clock.Advance(time.Minute)
			decisions := s.decide(request("1", "a"), request("2", "a"), request("3", "a"), request("4", "a").withCost(2), request("5", "a").withCost(3))
			for i, wait := range map[int]time.Duration{2: 59 * time.Minute, 3: time.Hour, 4: time.Hour} {
				if d := decisions[i]; d.Verdict != Denied || d.Wait != wait {
					s.t.Errorf("event %d: %+v, want a wait of %v", i+1, d, wait)
				}
			}
		},
	},
	{
		name: "an ID comes twice in a batch", global: "10/1h", category: "none",
		run: func(s *subject) {
			e := request("e", "a")
			decisions := s.decide(e, e, e.inMessage(2), e.withCost(0), request("f", "a"))
			for i, verdict := range []Verdict{Admitted, Leased, Duplicate, Leased, Admitted} {
				testkit.Equal(s.t, decisions[i].Verdict, verdict, "event %d: verdict", i+1)
			}
			testkit.Equal(s.t, decisions[1].Wait, testLease, "leased for")
			s.taken("a", 2)
		},
	},
	{
		name: "one that comes twice takes one slot, though there is room for both", global: "10/1h", category: "5/1h",
		run: func(s *subject) {
			decisions := s.decide(request("e", "a"), request("f", "b"), request("e", "a"), request("e", "b").inMessage(2))
			wantVerdicts(s.t, decisions, Admitted, Admitted, Leased, Duplicate)
			s.taken("a", 2, 1)
			s.taken("b", 2, 1)
		},
	},
	{
		name: "a redelivery sees a lease, may take over a lapsed one, and sees what is done", global: "10/1h", category: "1/1h",
		run: func(s *subject) {
			e := request("e", "a")
			first := s.admit(e)
			s.clock.Advance(testLease - time.Second)
			if d := s.want(Leased, e)[0]; d.Wait != time.Second {
				s.t.Fatalf("leased for %v more, want %v", d.Wait, time.Second)
			}
			s.want(Duplicate, e.inMessage(2))
			s.clock.Advance(time.Second)
			s.want(Duplicate, e.inMessage(2))
			second := leasesOf(s.want(Reclaimed, e))
			if want := s.clock.Read().Add(testLease).UnixMicro(); second[0].End != want {
				s.t.Fatalf("the lease ends at %d, want %d", second[0].End, want)
			}
			s.want(Leased, e)
			s.taken("a", 1, 1)
			s.refund(false, first...)
			s.finish(second...)
			s.want(Done, e, e)
			s.want(Duplicate, e.inMessage(2), e.inMessage(3))
			s.taken("a", 1, 1)
		},
	},
	{
		name: "another category does not make another event", global: "10/1h", category: "5/1h",
		run: func(s *subject) {
			s.admit(request("e", "a"))
			s.want(Duplicate, request("e", "b").inMessage(2))
			s.taken("b", 1, 0)
		},
	},
	{
		name: "the ID of a denied event is evaluated anew", global: "1/1h", category: "none",
		run: func(s *subject) {
			s.admit(request("first", "a"))
			s.want(Denied, request("e", "a"))
			s.want(Denied, request("e", "a").inMessage(2))
			s.clock.Advance(time.Hour)
			s.admit(request("e", "a").inMessage(3))
			s.want(Duplicate, request("e", "a"))
		},
	},
	{
		name: "a repeated call has the same answer", global: "4/1h", category: "3/1h",
		run: func(s *subject) {
			requests := []Request{
				request("1", "a"), request("2", "a").withCost(2), request("3", "a"), request("1", "a"),
				request("1", "a").inMessage(2), request("4", "b"), request("unknown", "b").withCost(0),
			}
			first := testkit.Must(s.repeat("nonce", requests))(s.t)
			for range 2 {
				s.clock.Advance(time.Second)
				again := testkit.Must(s.repeat("nonce", requests))(s.t)
				for i, d := range again.Decisions {
					want := first.Decisions[i]
					if d.Verdict != want.Verdict || d.Lease != want.Lease {
						s.t.Errorf("event %d: %+v, at first %+v", i+1, d, want)
					}
				}
			}
			s.taken("a", 4, 3)
			if d := s.want(Leased, requests[0])[0]; d.Wait >= testLease {
				s.t.Errorf("another call sees a lease of %v", d.Wait)
			}
			s.finish(first.Decisions[0].Lease)
			again := testkit.Must(s.repeat("nonce", requests[:2]))(s.t)
			if again.Decisions[0].Verdict != Done || again.Decisions[1].Lease != first.Decisions[1].Lease {
				s.t.Errorf("after the first was delivered: %+v", again.Decisions)
			}
		},
	},
	{
		name: "a refund frees every slot on the path, and the ID", global: "5/1h", category: "3/1h", rules: "a.b=3/1h",
		run: func(s *subject) {
			leases := s.admit(request("1", "a.b").withCost(2), request("2", "a.b"))
			s.taken("a.b", 3, 3, 3)
			s.clock.Advance(time.Minute)
			s.want(Denied, request("3", "a.b"))
			s.refund(true, leases[0])
			s.taken("a.b", 1, 1, 1)
			s.refund(false, leases[0])
			s.taken("a.b", 1, 1, 1)
			s.admit(request("3", "a.b"))
			s.admit(request("1", "a.b").inMessage(2))
			s.taken("a.b", 3, 3, 3)
			s.want(Duplicate, request("1", "a.b").withCost(2))
			s.finish(leases[1])
			s.refund(false, leases[1])
			s.taken("a.b", 3, 3, 3)
		},
	},
	{
		name: "only the holder of the lease may refund", global: "5/1h", category: "none",
		run: func(s *subject) {
			e := request("e", "a")
			first := s.admit(e)[0]
			s.clock.Advance(testLease + time.Second)
			second := leasesOf(s.want(Reclaimed, e))[0]
			s.refund(false, first)
			s.refund(false, Lease{Request: e, End: 0}, Lease{Request: request("never", "a"), End: second.End})
			third := s.extend(time.Minute, second)[0]
			s.refund(false, second)
			s.taken("a", 1)
			s.refund(true, third)
			s.taken("a", 0)
		},
	},
	{
		name: "a lapsed lease that nobody took may be refunded and renewed", global: "5/1h", category: "none",
		run: func(s *subject) {
			leases := s.admit(several(2, "e", "a")...)
			s.clock.Advance(2 * testLease)
			if renewed := s.extend(testLease, leases[0]); renewed[0].End != s.clock.Read().Add(testLease).UnixMicro() {
				s.t.Fatalf("renewed until %d", renewed[0].End)
			}
			s.refund(true, leases[1])
			s.want(Leased, request("e1", "a"))
			s.taken("a", 1)
		},
	},
	{
		name: "a lease is renewed by its holder alone", global: "5/1h", category: "none",
		run: func(s *subject) {
			e := request("e", "a")
			first := s.admit(e)
			s.clock.Advance(20 * time.Second)
			second := s.extend(testLease, first...)
			if want := s.clock.Read().Add(testLease).UnixMicro(); second[0].End != want || second[0].Request != e {
				s.t.Fatalf("renewed as %+v, want an end at %d", second[0], want)
			}
			again := s.extend(testLease, first...) // the reply was lost
			if again[0] != second[0] {
				s.t.Fatalf("renewed again as %+v, want %+v", again[0], second[0])
			}
			s.clock.Advance(20 * time.Second)
			s.want(Leased, e)
			if late := s.extend(testLease, first...); late[0].End != 0 {
				s.t.Fatalf("a lease that had ended was renewed until %d", late[0].End)
			}
			s.clock.Advance(10 * time.Second)
			s.want(Reclaimed, e)
			if lost := s.extend(testLease, second...); lost[0].End != 0 {
				s.t.Fatalf("a lease that was taken over was renewed until %d", lost[0].End)
			}
			if unknown := s.extend(testLease, Lease{Request: request("never", "a"), End: 1}); unknown[0].End != 0 {
				s.t.Fatalf("a lease that was never given was renewed until %d", unknown[0].End)
			}
		},
	},
	{
		name: "a released event may be taken over at once, with its slot", global: "5/1h", category: "none",
		run: func(s *subject) {
			e := request("e", "a")
			s.extend(0, s.admit(e)...)
			s.clock.Advance(time.Microsecond)
			lease := leasesOf(s.want(Reclaimed, e))
			s.taken("a", 1)
			s.finish(lease...)
			if done := s.extend(testLease, lease...); done[0].End != 0 {
				s.t.Fatalf("the lease of a delivered event was renewed until %d", done[0].End)
			}
			s.want(Done, e)
		},
	},
	{
		name: "a delivery counts whoever held the lease, and however often it is told", global: "5/1h", category: "none",
		run: func(s *subject) {
			e := request("e", "a")
			first := s.admit(e)
			s.clock.Advance(testLease)
			second := leasesOf(s.want(Reclaimed, e))
			s.finish(first...)
			s.want(Done, e)
			s.finish(second...)
			s.finish(first...)
			s.want(Done, e)
			s.refund(false, second...)
			s.taken("a", 1)
			s.finish(Lease{Request: request("from before", "a")})
			s.want(Done, request("from before", "a"))
			s.taken("a", 1)
		},
	},
	{
		name: "calls without events are answered", global: "5/1h", category: "none",
		run: func(s *subject) {
			s.finish()
			s.extend(time.Second)
			s.refund(true)
			s.taken("a", 0)
		},
	},
	{
		name: "what is known of an event may be asked without admitting it", global: "1/1h", category: "none",
		run: func(s *subject) {
			e := request("e", "a")
			s.want(Unknown, e.withCost(0))
			s.taken("a", 0)
			lease := s.admit(e)
			s.want(Leased, e.withCost(0))
			s.want(Duplicate, e.inMessage(2).withCost(0))
			s.want(Unknown, request("other", "a").withCost(0))
			s.clock.Advance(testLease)
			s.want(Unknown, e.withCost(0))
			s.want(Duplicate, e.inMessage(2).withCost(0))
			s.finish(lease...)
			s.want(Done, e.withCost(0))
			s.want(Duplicate, e.inMessage(2).withCost(0))
			s.taken("a", 1)
		},
	},
	{
		name: "a derived ID in a stream that was made anew is another event", global: "5/1h", category: "3/1h",
		run: func(s *subject) {
			later := start.Add(time.Hour)
			lease := s.admit(derived(1, start, "a"))
			s.want(Leased, derived(1, start, "a"))
			s.admit(derived(1, later, "a"))
			s.taken("a", 2, 2)
			s.finish(lease...)
			s.want(Done, derived(1, start, "a"))
			s.want(Leased, derived(1, later, "a"))
			s.clock.Advance(testLease + time.Second)
			s.refund(true, leasesOf(s.want(Reclaimed, derived(1, later, "a")))...)
			s.taken("a", 1, 1)
			s.want(Done, derived(1, start, "a"))
		},
	},
	{
		name: "derived IDs of a stream that was made anew come among others", global: "9/1h", category: "5/1h",
		run: func(s *subject) {
			later := start.Add(time.Hour)
			s.admit(derived(1, start, "a"))
			leases := s.admit(derived(2, later, "b"), derived(1, later, "a"), request("e", "a"), request("f", "b"))
			s.taken("a", 5, 3)
			s.taken("b", 5, 2)
			s.refund(true, leases[1])
			s.taken("a", 4, 2)
			s.want(Leased, derived(1, start, "a"))
		},
	},
	{
		name: "derived IDs of two streams come in one batch", global: "5/1h", category: "none",
		run: func(s *subject) {
			later := start.Add(time.Hour)
			leases := s.admit(derived(1, start, "a").withCost(2), derived(1, later, "a"))
			s.taken("a", 3)
			s.refund(true, leases[1])
			s.taken("a", 2)
			s.refund(true, leases[0])
			s.taken("a", 0)
		},
	},
	{
		name: "two streams give the same time and sequence", global: "5/1h", category: "none",
		run: func(s *subject) {
			other := request("e", "a")
			other.Message.Stream = "OTHERS"
			s.admit(request("e", "a"))
			s.want(Duplicate, other)
		},
	},
	{
		name: "shadow mode leases what it denies, without taking slots", global: "2/1h", category: "1/1h", rules: "off=0/1h", forward: true,
		run: func(s *subject) {
			decisions := s.decide(request("1", "a"), request("2", "a"), request("3", "off"), request("2", "a"), request("4", "b"), request("5", "b"))
			for i, verdict := range []Verdict{Admitted, Denied, ExceedsCapacity, Leased, Admitted, Denied} {
				d := decisions[i]
				if d.Verdict != verdict {
					s.t.Fatalf("event %d: verdict %d, want %d", i+1, d.Verdict, verdict)
				}
				if verdict != Leased && d.Lease.End != start.Add(testLease).UnixMicro() {
					s.t.Fatalf("event %d: lease %+v", i+1, d.Lease)
				}
			}
			s.taken("a", 2, 1)
			s.refund(true, decisions[1].Lease, decisions[2].Lease)
			s.taken("a", 2, 1)
			s.clock.Advance(time.Second)
			if d := s.decide(request("2", "a"))[0]; d.Verdict != Denied || d.Lease.ID != "2" || d.Wait != time.Hour-time.Second {
				s.t.Fatalf("after the refund: %+v", d)
			}
			s.finish(decisions[5].Lease)
			s.want(Done, request("5", "b"))
			s.want(Duplicate, request("5", "b").inMessage(2))
			s.refund(true, decisions[0].Lease)
			s.taken("a", 1, 0)
		},
	},
	{
		name: "a delivered event is forgotten after the retention, and its slots are not", global: "3/2h", category: "none", retention: 10 * time.Minute,
		run: func(s *subject) {
			e := request("e", "a")
			s.clock.Advance(time.Second)
			lease := s.admit(e)
			s.clock.Advance(time.Minute)
			s.finish(lease...)
			s.clock.Advance(10*time.Minute - time.Microsecond)
			s.want(Done, e)
			s.want(Duplicate, e.inMessage(2))
			s.clock.Advance(time.Microsecond)
			s.admit(e.inMessage(2))
			s.taken("a", 2)
			s.want(Duplicate, e)
			s.clock.Advance(testLease)
			second := leasesOf(s.want(Reclaimed, e.inMessage(2)))
			s.refund(true, second...)
			s.taken("a", 1)
			s.admit(e.withCost(2))
			s.taken("a", 3)
		},
	},
	{
		name: "an event that nobody delivers is forgotten a retention after its lease", global: "3/2h", category: "none", retention: 10 * time.Minute,
		run: func(s *subject) {
			s.admit(several(2, "e", "a")...)
			s.clock.Advance(testLease + 10*time.Minute - time.Microsecond)
			s.want(Reclaimed, request("e1", "a"))
			s.clock.Advance(2 * time.Microsecond)
			s.admit(request("e2", "a"))
			s.taken("a", 3)
		},
	},
	{
		name: "a name that an older event has left behind costs nobody else a slot", global: "10/2h", category: "none", retention: time.Minute,
		run: func(s *subject) {
			leases := s.admit(request("lapsing", "a"), request("forgotten", "a"))
			s.finish(leases[1])
			s.clock.Advance(testLease + 35*time.Second)
			decisions := s.decide(request("lapsing", "a"), request("forgotten", "a").inMessage(2))
			if decisions[0].Verdict != Reclaimed || decisions[1].Verdict != Admitted {
				s.t.Fatalf("%+v", decisions)
			}
			s.taken("a", 3)
			s.refund(true, leasesOf(decisions)...)
			s.taken("a", 1)
		},
	},
	{
		name: "forgetting thousands leaves an event of a reused ID alone", global: "none", category: "none", retention: time.Minute,
		run: func(s *subject) {
			for batch := range 5 {
				s.finish(s.admit(several(250, fmt.Sprint("batch", batch, "-"), "a")...)...)
			}
			s.clock.Advance(time.Second)
			e := request("reused", "a")
			s.finish(s.admit(e)...)
			s.clock.Advance(2 * time.Minute)
			s.admit(e.inMessage(2))
			for i := range 3 {
				s.clock.Advance(time.Second)
				s.admit(request(fmt.Sprint("later", i), "a"))
			}
			s.want(Leased, e.inMessage(2))
			s.clock.Advance(testLease)
			s.want(Reclaimed, e.inMessage(2))
		},
	},
	{
		name: "time does not go back with a clock that steps back a little", global: "1/10m", category: "none",
		run: func(s *subject) {
			s.clock.Advance(5 * time.Minute)
			lease := s.admit(request("e", "a"))[0]
			newest := s.clock.Read()
			s.clock.Advance(-59 * time.Second)
			result := s.result(request("x", "a"))
			if late := result.At - newest.UnixMicro(); late < 0 || late > 10 {
				s.t.Fatalf("time went %dµs on while the clock stepped back", late)
			}
			if d := result.Decisions[0]; d.Verdict != Denied || d.Wait+time.UnixMicro(result.At).Sub(newest) != 10*time.Minute {
				s.t.Fatalf("%+v at %d, newest %d", d, result.At, newest.UnixMicro())
			}
			s.want(Leased, request("e", "a"))
			s.taken("a", 1)
			renewed := s.extend(testLease, lease)[0]
			if renewed.End < lease.End {
				s.t.Fatalf("renewing took %dµs off the lease", lease.End-renewed.End)
			}
			s.refund(true, renewed)
			if again := s.admit(request("e", "a"))[0]; again.End == lease.End {
				s.t.Fatal("two holders have leases of one end")
			}
			s.clock.Set(newest.Add(10*time.Minute - time.Second))
			s.want(Denied, request("y", "a"))
			s.clock.Advance(2 * time.Second)
			s.admit(request("y", "a"))
		},
	},
	{
		name: "a clock that steps back further is believed", global: "1/10m", category: "none",
		run: func(s *subject) {
			s.admit(request("ahead", "a"))
			s.clock.Advance(-time.Hour)
			result := s.result(request("e", "a"))
			if result.At != s.clock.Read().UnixMicro() || result.Decisions[0].Verdict != Admitted {
				s.t.Fatalf("%+v at %v", result, s.clock.Read())
			}
			s.clock.Advance(time.Minute)
			s.deny(limits.LevelGlobal, 9*time.Minute, request("x", "a"))
			s.taken("a", 1)
			s.clock.Advance(9 * time.Minute)
			s.admit(request("x", "a"))
		},
	},
	{
		name: "a clock that was far ahead once does not block for ever", global: "2/10m", category: "none",
		run: func(s *subject) {
			s.admit(request("before", "a"))
			s.clock.Advance(24 * time.Hour)
			s.admit(several(2, "ahead", "a")...)
			s.clock.Advance(-24*time.Hour + time.Second)
			result := s.result(several(3, "after", "a")...)
			if result.At != s.clock.Read().UnixMicro() {
				s.t.Fatalf("decided at %d, want %d", result.At, s.clock.Read().UnixMicro())
			}
			for i, verdict := range []Verdict{Admitted, Admitted, Denied} {
				if d := result.Decisions[i]; d.Verdict != verdict || d.Wait > 10*time.Minute {
					s.t.Fatalf("event %d after the jump: %+v", i+1, d)
				}
			}
			s.clock.Advance(10 * time.Minute)
			s.admit(several(2, "later", "a")...)
			// When the clock comes to where it was, time runs on as ever, and what was admitted then counts.
			s.clock.Set(start.Add(24*time.Hour - 30*time.Second))
			if result := s.result(); result.At != s.clock.Read().UnixMicro() {
				s.t.Fatalf("decided at %d, want %d", result.At, s.clock.Read().UnixMicro())
			}
			s.taken("a", 2)
			s.deny(limits.LevelGlobal, 10*time.Minute+30*time.Second, request("x", "a"))
			s.clock.Advance(10*time.Minute + 30*time.Second)
			s.admit(several(2, "at last", "a")...)
		},
	},
	{
		name: "slots that a clock left ahead are waited for in their place", global: "3/10m", category: "none",
		run: func(s *subject) {
			s.clock.Advance(70 * time.Second)
			s.admit(request("ahead", "a"))
			s.clock.Set(start)
			s.admit(request("first", "a"))
			s.clock.Advance(20 * time.Second)
			decisions := s.decide(request("second", "a"), request("1", "a"), request("2", "a").withCost(2), request("3", "a").withCost(3))
			for i, wait := range map[int]time.Duration{1: 10*time.Minute - 20*time.Second, 2: 10 * time.Minute, 3: 10*time.Minute + 50*time.Second} {
				if d := decisions[i]; d.Verdict != Denied || d.Wait != wait {
					s.t.Errorf("event %d: %+v, want a wait of %v", i+1, d, wait)
				}
			}
		},
	},
	{
		name: "large batches and costs", global: "none", category: "20000/1h",
		run: func(s *subject) {
			requests := several(MaxBatch, "e", "a")
			for i := range requests {
				requests[i].Cost = 100
			}
			decisions := s.decide(requests...)
			for i, d := range decisions {
				if want := map[bool]Verdict{true: Admitted, false: Denied}[i < 200]; d.Verdict != want {
					s.t.Fatalf("event %d: verdict %d, want %d", i, d.Verdict, want)
				}
			}
			s.taken("a", 20000)
			s.want(Leased, requests[:200]...)
			s.refund(true, leasesOf(decisions[:200])...)
			s.taken("a", 0)
		},
	},
}

func TestConformance(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	genuine := newClient(t, redis.Options{Addr: server.Addr})
	imitation := miniredis.RunT(t)
	standIn := newClient(t, redis.Options{Addr: imitation.Addr()})
	for name, newSubject := range map[string]func(t *testing.T, s Settings) *subject{
		"memory":    newMemorySubject,
		"redis":     func(t *testing.T, s Settings) *subject { return newRedisSubject(t, genuine, s) },
		"evaluated": func(t *testing.T, s Settings) *subject { return newSingleSubject(t, genuine, s) },
		"functions": func(t *testing.T, s Settings) *subject { return newFunctionsSubject(t, genuine, s) },
		"miniredis": func(t *testing.T, s Settings) *subject { return newRedisSubject(t, standIn, s) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range slices.Concat(conformance, algorithmConformance, guaranteeConformance, changeConformance, shadowConformance, endsConformance(), doubtConformance) {
				t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
					t.Parallel()
					c.run(newSubject(t, c.settings(t)))
				})
			}
		})
	}
}

var (
	_ Store = (*Redis)(nil)
	_ Store = (*Memory)(nil)
)
