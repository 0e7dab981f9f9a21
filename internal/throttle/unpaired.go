package throttle

import (
	"sync"
	"time"
)

// unpairedFor is how long it is believed at most that a pair is not open.
const unpairedFor = time.Second

// maxUnpaired bounds the pairs that are remembered.
const maxUnpaired = 10_000

// unpaired remembers which pairs were not open, so that a flood of events that resolve nothing does not cost a call each.
type unpaired struct {
	ttl   time.Duration // 0 turns it off
	clock func() time.Time

	mu    sync.Mutex
	pairs map[string]unpairedPair
}

type unpairedPair struct {
	until time.Time
	asked time.Time // when Redis was, by the clock that says when events were stored
	fires bool      // a firing event of the pair was seen: what was found before says nothing any more
}

func newUnpaired(ttl time.Duration, clock func() time.Time) *unpaired {
	return &unpaired{ttl: min(ttl, unpairedFor), clock: clock, pairs: make(map[string]unpairedPair)}
}

func (u *unpaired) learn(pair string, asked time.Time, fires bool) {
	if u.ttl == 0 || pair == "" {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock()
	ended := func(_ string, known unpairedPair) bool { return !now.Before(known.until) }
	if known := u.pairs[pair]; !fires && known.fires && !ended(pair, known) {
		return
	}
	makeRoom(u.pairs, maxUnpaired, ended)
	u.pairs[pair] = unpairedPair{until: now.Add(u.ttl), asked: asked, fires: fires}
}

// see takes note of firing events.
func (u *unpaired) see(requests []Request) {
	for i := range requests {
		if requests[i].Pair != "" && requests[i].Cost > 0 {
			u.learn(requests[i].Pair, time.Time{}, true)
		}
	}
}

func (u *unpaired) known(pair string, stored time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	known, found := u.pairs[pair]
	return found && !known.fires && stored.Before(known.asked) && u.clock().Before(known.until)
}

func (u *unpaired) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.pairs)
}

// LearnUnpaired takes note that a resolved event was dropped because its pair was not open when Redis was asked. That time is by
// the clock that says when events were stored.
func (l *Limiter) LearnUnpaired(pair string, asked time.Time) { l.unpaired.learn(pair, asked, false) }

// KnownUnpaired tells of a resolved event whether its pair is known not to be open: Redis was asked in the last second, after the event
// was stored, and this worker has seen no firing event of the pair since. Another worker may have delivered one meanwhile.
func (l *Limiter) KnownUnpaired(pair string, stored time.Time) bool {
	return l.unpaired.known(pair, stored)
}
