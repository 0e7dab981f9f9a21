package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// conformance has the cases of new events, for every store and algorithm.
var conformance = []conformanceCase{
	{name: "a limit is reached exactly", global: "100/30m", category: "10/30m", run: func(s *subject) {
		s.admits(10, limits.LevelCategory, several(12, "e", "orders")...)
		want := Decision{
			Verdict: Denied, Limit: limits.Limit{Count: 10, Window: 30 * time.Minute}, Wait: 30*time.Minute - time.Microsecond, // less the time since the last call
			Node: limits.Node{Path: "orders", Level: limits.LevelCategory, Limits: limits.Limits{{Count: 10, Window: 30 * time.Minute}}},
		}
		testkit.EqualDeeply(s.t, s.decide(request("last", "orders"))[0], want, "denied as")
		s.taken("orders", 10, 10)
		s.taken("refunds", 10, 0)
	}},
	{name: "a muted event takes no slot, and keeps what it has", global: "100/30m", category: "2/30m", shadow: "category=1/30m", run: func(s *subject) {
		admitted := s.admits(1, "", request("before", "payments"))
		s.clock.Advance(2 * testLease) // its lease ends
		rules := limits.Ruleset{Tree: s.tree, Shadow: s.shadow, Position: limits.Position{Generation: 1, Revision: 1}}
		rules.Mutes = []*limits.Mute{{Path: "payments", Spare: "critical", Reason: "migration"}}
		s.adopt(rules)
		critical := request("critical", "payments.refunds")
		critical.Severity = event.SeverityCritical
		decisions := s.decide(request("before", "payments"), request("muted", "payments.refunds"), critical, request("other", "orders"))
		testkit.Equal(s.t, decisions[0].Verdict, Reclaimed, "an event that was admitted before")
		if d := decisions[1]; d.Verdict != Denied || d.Node.Level != limits.LevelMute || d.Muted == nil || d.Muted.Mute.Reason != "migration" || d.Wait != 0 {
			s.t.Fatalf("a muted event: %+v, want it denied by the mute", d)
		}
		testkit.Equal(s.t, decisions[2].Verdict, Admitted, "a critical event")
		testkit.Equal(s.t, decisions[3].Verdict, Admitted, "an event of another path")
		s.taken("payments", 3, 2)
		s.refund(false, admitted...)
		s.refund(true, decisions[0].Lease)
		s.taken("payments", 2, 1)
		s.want(Denied, request("before", "payments"))
		rules.Mutes, rules.Position.Revision = nil, 2
		s.adopt(rules)
		s.admit(request("muted", "payments"))
	}},
	{name: "an answer says when", global: "1/1m", run: func(s *subject) {
		if result := s.result(); result.At != start.UnixMicro() || len(result.Pauses) > 0 {
			s.t.Fatalf("empty batch: got %+v, want no pauses at %d", result, start.UnixMicro())
		}
		s.finish()
		s.extend(time.Second)
		s.refund(true)
		s.taken("a", 0)
		result := s.result(request("event", "a"))
		testkit.Equal(s.t, result.At, start.UnixMicro(), "time of the decision")
		want := Lease{Request: request("event", "a"), End: start.Add(testLease).UnixMicro(), rules: result.Decisions[0].Lease.rules}
		got := result.Decisions[0].Lease
		testkit.Require(s.t, got == want && got.rules.Tree == s.tree, "lease %+v, want %+v", got, want)
	}},
	{name: "the next slot opens at the time of the denial, and no microsecond before", global: "3/10m", run: func(s *subject) {
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
	}},
	{name: "several limits at one node all apply", category: "5/1h+2/1m", run: func(s *subject) {
		s.admit(several(2, "first", "a")...)
		d := s.deny(limits.LevelCategory, time.Minute-time.Microsecond, request("x", "a"))
		testkit.Equal(s.t, d.Limit, limits.Limit{Count: 2, Window: time.Minute}, "denied by")
		s.clock.Advance(time.Minute)
		s.admit(several(2, "second", "a")...)
		s.clock.Advance(time.Minute)
		s.admit(request("third", "a"))
		d = s.deny(limits.LevelCategory, 58*time.Minute-time.Microsecond, request("x", "a"))
		testkit.Equal(s.t, d.Limit, limits.Limit{Count: 5, Window: time.Hour}, "denied by")
		s.clock.Advance(58 * time.Minute)
		s.admit(several(2, "fourth", "a")...)
		s.taken("a", 5)
	}},
	{name: "an event must fit in every node of its path, or is charged to none",
		global: "20/1h", category: "9/1h", rules: "a.*=6/1h,a.b.c=4/1h,a.b.c.d.e.f.g.h=1/1h", run: func(s *subject) {
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
		}},
	{name: "the first full limit from the root down is named", global: "2/1h", category: "2/2h", rules: "a.b=1/3h", run: func(s *subject) {
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
	}},
	{name: "0 blocks and none does not limit", rules: "off=0/1h,off.on=5/1h,on=none", run: func(s *subject) {
		for _, category := range []string{"off", "off.on"} {
			d := s.want(ExceedsCapacity, request("x", category))[0]
			testkit.Require(s.t, d.Node.Level == "off" && d.Limit == (limits.Limit{Count: 0, Window: time.Hour}) && d.Wait == 0,
				"%s: got %+v, want a denial by the level off without a wait", category, d)
		}
		s.taken("off.on", 0, 0)
		s.admit(several(200, "e", "on")...)
		s.want(Leased, several(200, "e", "on")...)
		s.finish(s.admit(request("free", "other"))...)
		s.want(Done, request("free", "other"))
	}},
	{name: "a cost takes that many slots, or none", global: "11/1h", rules: "a=6/1m", run: func(s *subject) {
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
	}},
	{name: "a batch is evaluated in its order", global: "4/1h", category: "3/1h", run: func(s *subject) {
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
			d := decisions[i]
			testkit.Check(s.t, d.Verdict == w.verdict && d.Node.Level == w.level && d.Wait == w.wait, "event %d: %+v, want %+v", i+1, d, w)
		}
		s.taken("a", 4, 3)
		s.taken("b", 4, 1)
	}},
	{name: "what has left the windows makes room", global: "100/1h+60/1m", category: "60/1h", run: func(s *subject) {
		s.admit(several(60, "old", "a")...)
		s.want(Denied, several(60, "x", "b")...)
		s.clock.Advance(time.Minute)
		s.admit(several(40, "new", "b")...)
		s.want(Denied, several(60, "x", "b")...)
		s.clock.Advance(time.Hour)
		s.admit(slices.Concat(several(30, "y", "a"), several(30, "z", "b"))...)
		s.taken("a", 60, 30)
		s.taken("b", 60, 30)
	}},
	{name: "a full log denies those alone whose path it is on", category: "2/1h", run: func(s *subject) {
		s.admit(several(2, "a", "a")...)
		decisions := s.decide(request("x", "a"), request("y", "b"), request("z", "a"))
		wantVerdicts(s.t, decisions, Denied, Admitted, Denied)
		s.taken("a", 2)
		s.taken("b", 1)
		wantVerdicts(s.t, s.decide(request("v", "b"), request("w", "b")), Admitted, Denied)
	}},
	{name: "what never fits is no matter of time, though another limit is full", global: "1/1h", rules: "off=0/1h", run: func(s *subject) {
		s.admit(request("event", "a"))
		s.want(ExceedsCapacity, request("x", "off"))
		wantVerdicts(s.t, s.decide(request("y", "a"), request("z", "off")), Denied, ExceedsCapacity)
	}},
	{name: "an event that is known does not share the answer of the others", global: "3/1h", run: func(s *subject) {
		leases := s.admit(several(3, "e", "a")...)
		s.finish(leases[0])
		decisions := s.decide(request("e1", "a"), request("x", "a"), request("e2", "a"), request("e3", "a").inMessage(9))
		wantVerdicts(s.t, decisions, Done, Denied, Leased, Duplicate)
		s.refund(true, leases[1])
		wantVerdicts(s.t, s.decide(request("e3", "a"), request("x", "a")), Leased, Admitted)
		s.taken("a", 3)
	}},
	{name: "one that comes twice takes one slot, though there is room for both", global: "10/1h", category: "5/1h", run: func(s *subject) {
		event := request("event", "a")
		decisions := s.decide(event, request("f", "b"), event)
		wantVerdicts(s.t, decisions, Admitted, Admitted, Leased)
		testkit.Equal(s.t, decisions[2].Wait, testLease, "leased for")
		s.taken("a", 2, 1)
		s.taken("b", 2, 1)
	}},
}

func TestConformance(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	genuine := newClient(t, redis.Options{Addr: server.Addr})
	imitation := miniredis.RunT(t)
	standIn := newClient(t, redis.Options{Addr: imitation.Addr()})
	others := slices.Concat(keyConformance, recordConformance, algorithmConformance, guaranteeConformance, changeConformance, shadowConformance, endsConformance(), doubtConformance)
	run := func(name string, newSubject func(*testing.T, Settings) *subject, cases []conformanceCase) {
		t.Run(name, func(t *testing.T) {
			for _, c := range cases {
				t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
					t.Parallel()
					c.run(newSubject(t, c.settings(t)))
				})
			}
		})
	}
	run("memory", newMemorySubject, slices.Concat(conformance, others))
	run("redis", func(t *testing.T, s Settings) *subject { return newRedisSubject(t, genuine, s) }, slices.Concat(conformance, others))
	// The same scripts, called in other ways and executed by another interpreter.
	run("evaluated", func(t *testing.T, s Settings) *subject { return newSingleSubject(t, genuine, s) }, conformance)
	if servertest.HasFunctions(t) {
		run("functions", func(t *testing.T, s Settings) *subject { return newFunctionsSubject(t, genuine, s) }, conformance)
	}
	run("miniredis", func(t *testing.T, s Settings) *subject { return newRedisSubject(t, standIn, s) }, conformance)
}
