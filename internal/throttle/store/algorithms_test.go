package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Times in comments are those of the fake clock. It starts at 12:00:00, a multiple of every window here.

// algorithmConformance has the cases of each algorithm.
var algorithmConformance = []conformanceCase{
	{name: "log: the next slots of a larger cost open when enough have left", category: "log:5/10m", run: func(s *subject) {
		for i := range 5 {
			s.admit(request(fmt.Sprint("e", i), "a"))
			s.clock.Advance(time.Minute)
		}
		s.opens(limits.LevelCategory, 7*time.Minute, request("three", "a").withCost(3)) // e2 of 12:02 leaves at 12:12
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, time.Minute-time.Second, request("one", "a"))
		s.taken("a", 5)
	}},
	{name: "log: slots that have left the window are not returned again", category: "log:2/10m", run: func(s *subject) {
		old := s.admit(request("old", "a"))
		s.clock.Advance(10 * time.Minute)
		s.admit(several(2, "e", "a")...)
		s.refund(true, old...)
		s.clock.Advance(time.Second)
		s.deny(limits.LevelCategory, 10*time.Minute-time.Second, request("x", "a"))
	}},
	{name: "fixed: each window has its count, and windows begin by the clock", category: "fixed:3/10m", run: func(s *subject) {
		s.clock.Advance(4 * time.Minute)
		s.admits(3, limits.LevelCategory, several(5, "e", "a")...)
		s.taken("a", 3)
		s.clock.Advance(time.Minute)
		s.opens(limits.LevelCategory, 5*time.Minute, request("x", "a")) // 12:10
		s.taken("a", 1)
		s.clock.Advance(10*time.Minute - time.Microsecond)
		s.taken("a", 1)
		s.clock.Advance(time.Microsecond)
		s.taken("a", 0)
	}},
	{name: "fixed: slots are returned to their own window alone", category: "fixed:3/10m", run: func(s *subject) {
		leases := s.admit(request("two", "a").withCost(2), request("one", "a"))
		s.clock.Advance(time.Minute)
		s.refund(true, leases[0])
		s.taken("a", 1)
		s.clock.Advance(9 * time.Minute)
		s.admit(several(3, "e", "a")...)
		s.refund(true, leases[1])
		s.taken("a", 3)
		s.clock.Advance(time.Second)
		s.deny(limits.LevelCategory, 10*time.Minute-time.Second, request("x", "a"))
	}},
	{name: "token: a smaller burst is all that idling saves", category: "token:6/1h;burst=2", run: func(s *subject) {
		s.want(ExceedsCapacity, request("never", "a").withCost(3))
		s.admits(2, limits.LevelCategory, several(3, "e", "a")...)
		s.clock.Advance(24 * time.Hour)
		s.taken("a", 0)
		s.admits(2, limits.LevelCategory, several(3, "idle", "a")...)
		s.clock.Advance(50 * time.Minute) // less than a window, and more than the burst takes
		s.admits(2, limits.LevelCategory, several(3, "later", "a")...)
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, 20*time.Minute-time.Second, request("two", "a").withCost(2))
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, 10*time.Minute-time.Second, request("one", "a"))
	}},
	{name: "token: times that are no whole microseconds are rounded up", category: "token:7/1h", run: func(s *subject) {
		// Token n comes after n × 514285714.28… µs.
		s.admit(several(7, "e", "a")...)
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, 514285715*time.Microsecond-time.Second, request("first", "a"))
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, (2057142858-514285715)*time.Microsecond-time.Second, request("fourth", "a").withCost(3))
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, (2571428572-2057142858)*time.Microsecond-time.Second, request("fifth", "a"))
	}},
	{name: "token: tokens are returned, but not to a bucket that was full since", category: "token:6/1h", run: func(s *subject) {
		leases := s.admit(request("two", "a").withCost(2), request("one", "a"))
		s.refund(true, leases[0])
		s.clock.Advance(time.Minute)
		s.taken("a", 1)
		s.clock.Advance(9 * time.Minute)
		s.taken("a", 0)
		s.admit(several(6, "e", "a")...)
		s.refund(true, leases[1])
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, 10*time.Minute-time.Second, request("x", "a"))
	}},
	{name: "token: a returned token does not bring what would have run over", category: "token:2/20m", run: func(s *subject) {
		returned := s.admit(request("returned", "a"))
		s.clock.Advance(5 * time.Minute)
		s.admit(request("first", "a")) // takes one of 1.5 tokens; without the first event there would be two
		s.refund(true, returned...)
		s.clock.Advance(time.Microsecond)
		s.admit(request("second", "a"))
		s.clock.Advance(5*time.Minute - time.Microsecond)
		// A bucket of two gives two and a half tokens in five minutes.
		testkit.AtMost(s.t, s.want(Denied, request("third", "a"))[0].Wait, 5*time.Minute, "wait of the third event")
	}},
	{name: "leaky: a cost takes as many intervals, rounded up", category: "leaky:7/1h", run: func(s *subject) {
		s.want(ExceedsCapacity, request("never", "a").withCost(8))
		s.admit(request("three", "a").withCost(3))
		s.taken("a", 3)
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, 1542857143*time.Microsecond-time.Second, request("seven", "a").withCost(7))
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, time.Hour-time.Second, request("one", "a"))
	}},
	{name: "leaky: the latest slot is returned, one that another came after is not", category: "leaky:4/1h", run: func(s *subject) {
		first := s.admit(request("first", "a"))
		s.clock.Advance(15 * time.Minute)
		second := s.admit(request("second", "a"))
		s.clock.Advance(time.Second)
		s.refund(true, first...)
		s.deny(limits.LevelCategory, 15*time.Minute-time.Second, request("x", "a"))
		s.refund(true, second...)
		s.taken("a", 0)
		s.admit(request("x", "a"))
	}},
	{name: "counter: the window before counts by the share that is still covered", category: "counter:8/10m", run: func(s *subject) {
		s.admits(8, limits.LevelCategory, several(9, "e", "a")...)
		s.clock.Advance(15 * time.Minute) // the window covers half of the eight
		s.taken("a", 4)
		s.admits(4, limits.LevelCategory, several(5, "later", "a")...)
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, 75*time.Second-time.Second, request("x", "a")) // the window covers 3 of the 8
		s.taken("a", 8)
		s.clock.Advance(5 * time.Minute) // 12:21:15
		s.taken("a", 5)
	}},
	{name: "counter: slots are returned to the window in which they were taken", category: "counter:10/10m", run: func(s *subject) {
		leases := s.admit(request("two", "a").withCost(2), request("four", "a").withCost(4), request("one", "a"))
		s.clock.Advance(time.Minute)
		s.refund(true, leases[0])
		s.taken("a", 5)
		s.clock.Advance(14 * time.Minute) // the window covers half of the five
		s.taken("a", 3)
		s.refund(true, leases[1])
		s.taken("a", 1)
		s.clock.Advance(10 * time.Minute)
		s.admit(several(10, "e", "a")...)
		s.refund(true, leases[2])
		s.taken("a", 10)
	}},
	{name: "inflight: a slot comes back when its delivery ends", category: "inflight:2/1m", run: func(s *subject) {
		leases := s.admits(2, limits.LevelCategory, several(3, "e", "a")...)
		s.clock.Advance(time.Second)
		s.deny(limits.LevelCategory, 59*time.Second, request("x", "a"))
		s.finish(leases[0])
		s.finish(leases[0])
		s.taken("a", 1)
		third := s.admit(request("third", "a"))
		s.clock.Advance(time.Second)
		s.refund(true, third...)
		s.taken("a", 1)
		fourth := s.admit(request("fourth", "a"))
		s.clock.Advance(time.Second)
		s.extend(0, fourth...)
		s.taken("a", 1)
		s.admit(request("fifth", "a"))
		s.clock.Advance(time.Second)
		s.deny(limits.LevelCategory, 56*time.Second, request("x", "a"))
	}},
	{name: "inflight: no slot comes back before its lease has lapsed", category: "inflight:1/5s", run: func(s *subject) {
		s.admit(request("event", "a"))
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, testLease-time.Second, request("x", "a"))
	}},
	{name: "inflight: a delivery that goes on keeps its slot", category: "inflight:1/1m", run: func(s *subject) {
		leases := s.admit(request("event", "a"))
		for range 10 {
			s.clock.Advance(20 * time.Second)
			leases = s.extend(testLease, leases...)
		}
		s.taken("a", 1)
		s.clock.Advance(time.Second)
		s.deny(limits.LevelCategory, 59*time.Second, request("x", "a"))
		s.finish(leases...)
		s.admit(request("x", "a"))
	}},
	{name: "inflight: whoever takes over a delivery without a slot takes one, or waits", category: "inflight:1/5s", run: func(s *subject) {
		event := request("event", "a")
		s.admit(event)
		s.clock.Advance(testLease)
		s.taken("a", 0)
		other := s.admit(request("other", "a"))
		s.clock.Advance(time.Second)
		testkit.Equal(s.t, s.want(Leased, event)[0].Wait, testLease-time.Second, "wait for a slot")
		s.finish(other...)
		again := leasesOf(s.want(Reclaimed, event))
		s.taken("a", 1)
		s.clock.Advance(time.Second)
		s.deny(limits.LevelCategory, testLease-time.Second, request("x", "a"))
		s.refund(true, again...)
		s.taken("a", 0)
	}},
	{name: "inflight: a lease that lapsed is not renewed without a slot", category: "inflight:1/5s", run: func(s *subject) {
		late := s.admit(request("late", "a"))
		s.clock.Advance(testLease)
		other := s.admit(request("other", "a"))
		s.clock.Advance(time.Second)
		s.lost(testLease, late...) // else two deliveries would be in flight
		s.taken("a", 1)
		s.finish(other...)
	}},
	{name: "inflight: a slot that a clock ran ahead with is lost to its delivery too", category: "inflight:1/1m", run: func(s *subject) {
		early := s.admit(request("early", "a"))
		s.clock.Advance(-2 * tolerance)
		other := s.admit(request("other", "a"))
		s.clock.Advance(time.Second)
		s.lost(testLease, early...) // else two deliveries would be in flight
		s.finish(other...)
		s.extend(testLease, early...)
		s.taken("a", 1)
	}},
	{name: "inflight: a released delivery needs its slot again", category: "inflight:1/1m", run: func(s *subject) {
		event := request("event", "a")
		s.extend(0, s.admit(event)...)
		s.clock.Advance(time.Microsecond)
		other := s.admit(request("other", "a"))
		s.clock.Advance(time.Second)
		testkit.Equal(s.t, s.want(Leased, event)[0].Wait, 59*time.Second, "wait for a slot")
		s.finish(other...)
		s.want(Reclaimed, event)
		s.taken("a", 1)
	}},
	{name: "limits of all algorithms at all levels are evaluated in one call",
		global: "token:9/1h;burst=6+8/1h", category: "counter:7/1h", rules: "a.b=fixed:5/1h+inflight:4/1m,a.b.c=leaky:3600/1h+log:3/1h", run: func(s *subject) {
			decisions := s.decide(
				request("c1", "a.b.c"), request("c2", "a.b.c"), request("b1", "a.b"), request("b2", "a.b").withCost(3),
				request("b3", "a.b").withCost(2), request("b4", "a.b"), request("a1", "a").withCost(2), request("z", "z"), request("a2", "a"),
			)
			for i, want := range []string{"", "a.b.c", "", "a.b", "", "a.b", "", limits.LevelGlobal, limits.LevelGlobal} {
				d := decisions[i]
				admitted := d.Verdict == Admitted
				testkit.Check(s.t, admitted == (want == "") && d.Node.Level == want, "event %d: %+v, want a denial by %q", i+1, d, want)
			}
			testkit.Equal(s.t, decisions[3].Limit.Algorithm, algorithm.InFlight, "algorithm that denies b2")
			s.taken("a.b.c", 6, 6, 4, 1)
			for _, d := range decisions {
				if d.Verdict == Admitted {
					s.refund(true, d.Lease)
				}
			}
			s.taken("a.b.c", 0, 0, 0, 0)
		}},
}

// withEach returns a rule for a path of each algorithm, with the same count and window. A suffix of "@key" makes it a rule of each key.
func withEach(suffix, limit string) string {
	var rules []string
	for _, a := range algorithm.All() {
		rules = append(rules, fmt.Sprintf("%s%s=%s:%s", a, suffix, a, limit))
	}
	return strings.Join(rules, ",")
}

// TestEveryAlgorithmHasCases fails where a new algorithm has no conformance cases.
func TestEveryAlgorithmHasCases(t *testing.T) {
	t.Parallel()
	for _, a := range algorithm.All() {
		cases := 0
		for _, c := range algorithmConformance {
			if len(c.name) > len(a.String()) && c.name[:len(a.String())+1] == a.String()+":" {
				cases++
			}
		}
		testkit.AtLeast(t, cases, 2, "cases of the conformance suite about %s", a.String())
	}
}

// ends has the smallest and largest limits of each algorithm.
var ends = func() []string {
	var texts []string
	for _, a := range algorithm.All() {
		windows := []time.Duration{limits.MinWindow, limits.MaxWindow}
		if a.Description().MaxProduct > 0 { // the largest count depends on the window
			windows = append(windows, 15*time.Minute+719*time.Millisecond, 24*time.Hour)
		}
		for _, window := range windows {
			for _, count := range []int64{1, largestCount(a, window), 7} {
				limit := limits.Limit{Algorithm: a, Count: count, Window: window}
				texts = append(texts, limit.String())
				if limit.Burst = 1; a.Description().Bursts && count > 1 {
					texts = append(texts, limit.String())
				}
			}
		}
	}
	return texts
}()

func largestCount(a algorithm.Algorithm, window time.Duration) int64 {
	most := a.Description().MaxProduct
	if most == 0 {
		return limits.MaxCount
	}
	return min(limits.MaxCount, most/window.Microseconds())
}

// endsConformance fills each limit of ends, compares when the next slot opens, and finds the limit empty two windows later.
func endsConformance() []conformanceCase {
	var cases []conformanceCase
	for _, text := range ends {
		cases = append(cases, conformanceCase{name: "both ends: " + text, global: "none", category: text, run: runEnd})
	}
	return cases
}

func runEnd(s *subject) {
	limit := s.tree.Path("a")[0].Limits[0]
	all := limit.Capacity()
	if kind := limit.Description(); kind.PerNode || kind.FollowsDelivery() {
		all = min(all, 100) // each slot is a member of a set
	}
	at := s.clock.Read()
	s.want(ExceedsCapacity, request("never", "a").withCost(int(limit.Capacity())+1))
	s.admit(request("all", "a").withCost(int(all)))
	if wait := nextAfterAll(s, limit, at); all == limit.Capacity() && wait > time.Microsecond {
		s.clock.Advance(time.Microsecond)
		s.opens(limits.LevelCategory, wait-time.Microsecond, request("next", "a"))
	}
	s.clock.Advance(2*max(limit.Window, testLease) + time.Second)
	testkit.Equal(s.t, s.slots("a")[0][0], 0, "slots taken two windows later")
	s.admit(request("again", "a").withCost(int(all)))
}

// nextAfterAll returns when the next slot opens after one event has filled a limit.
func nextAfterAll(s *subject, limit limits.Limit, at time.Time) time.Duration {
	window := limit.Window.Microseconds()
	untilNext := window - at.UnixMicro()%window
	oneOfAll := (window + limit.Count - 1) / limit.Count
	wait := window
	switch limit.Description().Frees {
	case algorithm.AtBoundaries:
		wait = untilNext
	case algorithm.ByEstimate:
		state := limit.Description().Memory()
		event := algorithm.Event{Now: at.UnixMicro(), Cost: limit.Capacity()}
		state.Take(event, []limits.Limit{limit})
		event.Cost = 1
		_, wait = state.Wait(event, []limits.Limit{limit})
		if estimated := wait - untilNext; estimated < oneOfAll || estimated > oneOfAll+1 {
			s.t.Fatalf("one slot of a window is estimated to leave after %d, which is after %d", estimated, oneOfAll)
		}
	case algorithm.ByRate:
		wait = oneOfAll
	case algorithm.OnDelivery:
		wait = max(window, testLease.Microseconds())
	case algorithm.WithTheWindow, algorithm.BySpacing:
	}
	return time.Duration(wait) * time.Microsecond
}
