package throttle

import (
	"fmt"
	"strings"
	"time"
)

// ends are the smallest and largest limits of each algorithm.
var ends = func() []string {
	var texts []string
	for _, a := range algorithms {
		if a.name == TokenBucket.String() {
			continue
		}
		for _, count := range []int{1, MaxCount} {
			texts = append(texts, fmt.Sprintf("%s:%d/1ms", a.name, count), fmt.Sprintf("%s:%d/366d", a.name, count))
		}
	}
	// Of a token bucket the largest count depends on the window.
	for _, largest := range []string{"1/1ms", "1/366d", "10000000/1ms", "10000000/15m719ms", "104249/1d", "284/366d", "7/366d"} {
		texts = append(texts, "token:"+largest)
		if !strings.HasPrefix(largest, "1/") {
			texts = append(texts, "token:"+largest+";burst=1")
		}
	}
	return texts
}()

// endsConformance fills each of these limits, looks when the next slot opens, and whether it is empty again after its window.
func endsConformance() []conformanceCase {
	var cases []conformanceCase
	for _, text := range ends {
		cases = append(cases, conformanceCase{name: "both ends: " + text, global: "none", category: text, run: runEnd})
	}
	return cases
}

func runEnd(s *subject) {
	limit := s.tree.Path("a")[0].Limits[0]
	all := limit.capacity()
	if limit.Algorithm == SlidingLog || limit.Algorithm == InFlight {
		all = min(all, 100) // each slot is a member of a set
	}
	at := s.clock.read()
	s.want(NeverFits, request("never", "a").withCost(int(limit.capacity())+1))
	s.admit(request("all", "a").withCost(int(all)))
	if wait := nextAfterAll(s, limit, at); all == limit.capacity() && wait > time.Microsecond {
		s.clock.advance(time.Microsecond)
		s.opens(LevelCategory, wait-time.Microsecond, request("next", "a"))
	}
	s.clock.advance(2*max(limit.Window, testLease) + time.Second)
	if used := s.used("a")[0][0]; used != 0 {
		s.t.Fatalf("%d slots are taken two windows later", used)
	}
	s.admit(request("again", "a").withCost(int(all)))
}

// nextAfterAll is how long after a limit was filled by one event its next slot opens.
func nextAfterAll(s *subject, limit Limit, at time.Time) time.Duration {
	window := limit.Window.Microseconds()
	untilNext := window - at.UnixMicro()%window
	oneOfAll := (window + limit.Count - 1) / limit.Count
	wait := window
	switch limit.Algorithm {
	case FixedWindow:
		wait = untilNext
	case SlidingCounter:
		estimated := timeUntilCovered(limit.Count, window, limit.Count-1)
		if estimated < oneOfAll || estimated > oneOfAll+1 {
			s.t.Fatalf("one slot of a window is estimated to leave after %d, which is after %d", estimated, oneOfAll)
		}
		wait = untilNext + estimated
	case TokenBucket:
		wait = oneOfAll
	case InFlight:
		wait = max(window, testLease.Microseconds())
	case SlidingLog, LeakyBucket:
	}
	return time.Duration(wait) * time.Microsecond
}
