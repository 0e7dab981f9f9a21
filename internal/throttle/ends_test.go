package throttle

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// ends has the smallest and largest limits of each algorithm.
var ends = func() []string {
	var texts []string
	for _, a := range limits.Algorithms() {
		if a == limits.TokenBucket {
			continue
		}
		for _, count := range []int{1, limits.MaxCount} {
			texts = append(texts, fmt.Sprintf("%s:%d/1ms", a.String(), count), fmt.Sprintf("%s:%d/366d", a.String(), count))
		}
	}
	// The largest count of a token bucket depends on its window.
	for _, largest := range []string{"1/1ms", "1/366d", "10000000/1ms", "10000000/15m719ms", "104249/1d", "284/366d", "7/366d"} {
		texts = append(texts, "token:"+largest)
		if !strings.HasPrefix(largest, "1/") {
			texts = append(texts, "token:"+largest+";burst=1")
		}
	}
	return texts
}()

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
	if limit.Algorithm == limits.SlidingLog || limit.Algorithm == limits.InFlight {
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
	switch limit.Algorithm {
	case limits.FixedWindow:
		wait = untilNext
	case limits.SlidingCounter:
		estimated := timeUntilCovered(limit.Count, window, limit.Count-1)
		if estimated < oneOfAll || estimated > oneOfAll+1 {
			s.t.Fatalf("one slot of a window is estimated to leave after %d, which is after %d", estimated, oneOfAll)
		}
		wait = untilNext + estimated
	case limits.TokenBucket:
		wait = oneOfAll
	case limits.InFlight:
		wait = max(window, testLease.Microseconds())
	case limits.SlidingLog, limits.LeakyBucket:
	}
	return time.Duration(wait) * time.Microsecond
}
