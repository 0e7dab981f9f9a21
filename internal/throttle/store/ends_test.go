package store

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

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
	testkit.Equal(s.t, s.used("a")[0][0], 0, "slots taken two windows later")
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
