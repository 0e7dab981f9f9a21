package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// guaranteeConformance has the cases of guarantees.
var guaranteeConformance = []conformanceCase{
	{name: "guarantee: others never take its slots, and it has them always",
		global: "10/1h", guarantees: "security=3,payments.refunds=2", run: func(s *subject) {
			s.admits(5, limits.LevelGlobal, several(7, "others", "orders")...)
			s.clock.Advance(time.Second)
			s.deny(limits.LevelGlobal, time.Hour-time.Second, request("x", "payments"))
			s.admits(3, limits.LevelGlobal, several(4, "security", "security.login")...)
			s.clock.Advance(time.Second)
			s.deny(limits.LevelGlobal, time.Hour-2*time.Second, request("x", "security"))
			s.admits(2, limits.LevelGlobal, several(3, "refunds", "payments.refunds")...)
			s.taken("orders", 10)
		}},
	{name: "guarantee: others wait for a slot of others", global: "10/1h", guarantees: "security=3,refunds=2", run: func(s *subject) {
		s.admit(request("s", "security"))
		for i := range 5 {
			s.clock.Advance(time.Minute)
			s.admit(request(fmt.Sprint("o", i), "orders"))
		}
		s.clock.Advance(time.Minute)
		// The slot of security returns to its guarantee.
		s.opens(limits.LevelGlobal, 55*time.Minute, request("x", "orders"))
		s.clock.Advance(time.Second)
		s.opens(limits.LevelGlobal, time.Minute-time.Second, request("y", "orders"))
		s.admit(several(3, "s", "security")...)
	}},
	{name: "guarantee: of nested ones the most specific counts, and it alone",
		global: "10/1h", guarantees: "payments=2,payments.refunds=3", run: func(s *subject) {
			s.admits(8, limits.LevelGlobal, several(9, "refunds", "payments.refunds.failed")...)
			s.clock.Advance(time.Second)
			s.want(Denied, request("x", "payments.refunds"), request("x", "orders"))
			s.admits(2, limits.LevelGlobal, request("p1", "payments"), request("p2", "payments.other"), request("p3", "payments"))
		}},
	{name: "guarantee: a returned slot goes back to it", global: "10/1h", guarantees: "security=3,refunds=2", run: func(s *subject) {
		security := s.admit(request("s1", "security"), request("s2", "security").withCost(2))
		orders := s.admit(several(5, "o", "orders")...)
		s.clock.Advance(time.Second)
		s.refund(true, security[1])
		s.taken("orders", 6)
		s.deny(limits.LevelGlobal, time.Hour-time.Second+time.Microsecond, request("x", "orders"))
		s.admits(2, limits.LevelGlobal, several(3, "more", "security")...)
		s.clock.Advance(time.Second)
		s.refund(true, orders[0])
		s.admits(1, limits.LevelGlobal, request("x", "security"), request("y", "orders"))
	}},
	{name: "guarantee: a cost above what others leave never fits", global: "10/1h", guarantees: "a=6,b=3", run: func(s *subject) {
		s.want(ExceedsCapacity, request("x", "others").withCost(2), request("x", "a").withCost(8), request("x", "b").withCost(5))
		s.admit(request("a", "a").withCost(7))
		s.clock.Advance(time.Second)
		s.want(Denied, request("y", "others"))
		s.admit(request("b", "b").withCost(3))
	}},
	{name: "guarantee: where guarantees take all, others have nothing", global: "5/1h", guarantees: "a=3,b=2", run: func(s *subject) {
		d := s.want(ExceedsCapacity, request("x", "others"))[0]
		testkit.Equal(s.t, d.Node.Level, limits.LevelGlobal, "level that denies")
		s.admits(3, limits.LevelGlobal, several(4, "a", "a")...)
		s.admits(2, limits.LevelGlobal, several(3, "b", "b")...)
		s.clock.Advance(time.Second)
		s.opens(limits.LevelGlobal, time.Hour-time.Second, request("a", "a"))
	}},
	{name: "guarantee: not above a limit that was lowered below what is taken", global: "10/1h", guarantees: "security=3", run: func(s *subject) {
		s.admits(7, limits.LevelGlobal, several(8, "o", "orders")...)
		s.clock.Advance(time.Minute)
		s.change(guarded(s.t, newPlan(s.t, "5/1h", "none", ""), "security=3"))
		s.opens(limits.LevelGlobal, 59*time.Minute, request("s", "security"))
		s.taken("security", 1)
	}},
	{name: "guarantee: it holds in each global window, beside other limits",
		global: "10/1h+4/1m+token:100/1h", rules: "security=leaky:3600/1h", guarantees: "security=3", run: func(s *subject) {
			s.admits(1, limits.LevelGlobal, several(2, "o", "orders")...)
			s.clock.Advance(time.Second)
			s.admits(1, "security", several(2, "s", "security")...)
			s.clock.Advance(time.Second)
			s.admit(request("s2", "security"))
			s.clock.Advance(time.Second)
			s.admit(request("s3", "security"))
			s.clock.Advance(time.Second)
			s.opens(limits.LevelGlobal, 56*time.Second, request("x", "orders"))
			s.clock.Advance(3 * time.Second)
			s.opens(limits.LevelGlobal, time.Minute-3*time.Second, request("y", "orders"))
		}},
}

// TestGuaranteesInShares checks that instances admit guaranteed events without Redis, by their shares.
func TestGuaranteesInShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		global, guarantees string
		instances          int
		cost               int
	}{{"10/1h", "security=6", 4, 2}, {"7/1h", "security=6", 2, 1}, {"10/1h", "security=4,refunds=4", 3, 1}, {"5/1h", "security=1", 9, 1}} {
		plan := guarded(t, newPlan(t, c.global, "none", ""), c.guarantees)
		settings := Settings{Tree: newRuleset(t, plan, "").Tree, Lease: testLease, Retention: testRetention}
		clock := testkit.NewClock(nil)
		admitted := map[string]int64{}
		for instance := range c.instances {
			m := newMemory(settings, clock.Read, func() int { return c.instances })
			for _, category := range []string{"orders", "security"} {
				for i := range 10 {
					cost := map[bool]int{true: c.cost, false: 1}[category == "orders"]
					d := decisionsOf(t, m, request(fmt.Sprint(category, instance, i), category).withCost(cost))[0]
					if d.Verdict == Admitted {
						admitted[category] += int64(cost)
					} else if d.Verdict != Denied || d.Wait <= 0 {
						t.Fatalf("%+v: %+v", c, d)
					}
				}
			}
		}
		testkit.AtLeast(t, admitted["security"], 1, "%+v: admitted events of security", c)
	}
}
