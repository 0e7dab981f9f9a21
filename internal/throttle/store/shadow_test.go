package store

import (
	"fmt"
	"testing"
	"time"

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
		testkit.Require(s.t, d.Shadow.Verdict == verdict && d.Shadow.Node.Level == want[i],
			"event %d of %d, %q: the shadow says %+v, want %q", i+1, len(requests), requests[i].ID, d.Shadow, want[i])
	}
	return decisions
}

// shadowConformance has the cases of shadow limits.
var shadowConformance = []conformanceCase{
	{name: "shadow: it reports beside what is in force what it would have done",
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
				testkit.Require(s.t, d.Verdict == Denied && d.Node.Level == limits.LevelCategory && d.Limit.Count == 1,
					"got %+v, want a denial by the limit of 1", d)
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
				testkit.Check(s.t, d.Verdict == verdict && d.Shadow.Limit == (limits.Limit{Count: 2, Window: 3 * time.Hour}),
					"round %d, event %d: got %+v, want %s, and a denial by 2/3h in the shadow", round, i+1, d, verdict)
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
		shadow: withEach("", "1/1h"), run: func(s *subject) {
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
