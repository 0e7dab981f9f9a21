package interleave

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
)

// search visits the states of a configuration breadth first.
type search struct {
	c       *config
	keys    []key    // of the states, in the order in which they were found
	parents []uint32 // of the states
	table   []uint32 // open addressing: numbers of states, plus 1
	calm    []uint32 // edges without a fault: from, to, …
	ended   []bool   // by state: every event has ended
	reached map[failpoint.Point]bool
	most    int // states to visit; 0: all
}

// broken is a promise that a state breaks, or a step from that state.
type broken struct {
	promise string
	state   uint32
	byStep  bool
}

func newSearch(c *config, most int) *search {
	c.orders = orders(c.workers)
	return &search{c: c, table: make([]uint32, 1<<16), reached: make(map[failpoint.Point]bool), most: most}
}

func hash(k *key) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, word := range k {
		high, low := bits.Mul64(h^word, 0xd6e8feb86659fd93)
		h = high ^ low ^ 0x9e3779b97f4a7c15
	}
	return h
}

// add returns the number of a state, and whether it is new.
func (s *search) add(k key, parent uint32) (number uint32, isNew bool) {
	if len(s.keys)*2 >= len(s.table) {
		s.table = make([]uint32, len(s.table)*2)
		for n := range s.keys {
			s.table[s.slot(&s.keys[n])] = uint32(n) + 1
		}
	}
	slot := s.slot(&k)
	if s.table[slot] > 0 {
		return s.table[slot] - 1, false
	}
	s.keys, s.parents = append(s.keys, k), append(s.parents, parent)
	s.table[slot] = uint32(len(s.keys))
	return uint32(len(s.keys)) - 1, true
}

// slot returns the place of a key in the table.
func (s *search) slot(k *key) uint64 {
	mask := uint64(len(s.table) - 1)
	for slot := hash(k) & mask; ; slot = (slot + 1) & mask {
		if n := s.table[slot]; n == 0 || s.keys[n-1] == *k {
			return slot
		}
	}
}

// run visits states until all or enough are visited, or a promise is broken.
func (s *search) run() *broken {
	first := s.c.start()
	s.add(s.c.canonical(&first), 0)
	s.ended = append(s.ended, false)
	level := []state{first}
	for number := uint32(0); len(level) > 0; {
		var next []state
		for i := range level {
			var found *broken
			s.c.next(&level[i], func(by step, to *state) {
				reached, isNew := s.add(s.c.canonical(to), number)
				if by.point != "" {
					s.reached[by.point] = true
				}
				if !by.fault {
					s.calm = append(s.calm, number, reached)
				}
				if by.breaks != "" && found == nil {
					found = &broken{by.breaks, number, true}
				}
				if isNew {
					next, s.ended = append(next, *to), append(s.ended, to.ended(s.c))
				}
			})
			if found != nil {
				return found
			}
			if number++; s.most > 0 && len(s.keys) > s.most {
				for n := number; int(n) < len(s.ended); n++ {
					s.ended[n] = true // nobody knows what follows
				}
				return s.stuck()
			}
		}
		level = next
	}
	return s.stuck()
}

// stuck returns a state from which the events reach no outcome, although no further fault happens.
func (s *search) stuck() *broken {
	counts := make([]uint32, len(s.keys)+1)
	for i := 1; i < len(s.calm); i += 2 {
		counts[s.calm[i]+1]++
	}
	for i := range len(s.keys) {
		counts[i+1] += counts[i]
	}
	sources, at := make([]uint32, len(s.calm)/2), slices.Clone(counts)
	for i := 0; i < len(s.calm); i += 2 {
		to := s.calm[i+1]
		sources[at[to]] = s.calm[i]
		at[to]++
	}
	return s.behind(sources, counts)
}

// behind goes back from the ended states, over steps without a fault, and returns the first state that it does not reach.
func (s *search) behind(sources, first []uint32) *broken {
	good := make([]bool, len(s.keys))
	var queue []uint32
	for n, ended := range s.ended {
		if ended {
			good[n] = true
			queue = append(queue, uint32(n))
		}
	}
	for len(queue) > 0 {
		n := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, source := range sources[first[n]:first[n+1]] {
			if !good[source] {
				good[source] = true
				queue = append(queue, source)
			}
		}
	}
	if n := slices.Index(good, false); n >= 0 {
		return &broken{"without further faults every event ends", uint32(n), false}
	}
	return nil
}

// story returns the steps from the start to a broken promise, one on each line.
func (s *search) story(found *broken) string {
	var path []uint32
	for n := found.state; n != 0; n = s.parents[n] {
		path = append(path, n)
	}
	slices.Reverse(path)
	var story strings.Builder
	now, steps := s.c.start(), 0
	follow := func(is func(step, *state) bool) {
		var by step
		var then state
		known := false
		s.c.next(&now, func(a step, to *state) {
			if !known && is(a, to) {
				by, then, known = a, *to, true
			}
		})
		now, steps = then, steps+1
		text := strings.ReplaceAll(strings.ReplaceAll(by.text, "%[1]s", "worker "+string(rune('1'+by.worker))), "%[2]s", "event "+string(rune('A'+by.event)))
		if by.point != "" {
			text += " at " + string(by.point)
		}
		fmt.Fprintf(&story, "%3d. %s\n", steps, text)
	}
	for _, n := range path {
		follow(func(_ step, to *state) bool { return s.c.canonical(to) == s.keys[n] })
	}
	if found.byStep {
		follow(func(by step, _ *state) bool { return by.breaks == found.promise })
	}
	return story.String()
}
