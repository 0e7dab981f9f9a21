package throttle

import (
	"sync"
	"time"
)

// unpairedFor is how long it is believed at most that a pair is not open.
const unpairedFor = time.Second

// maxUnpaired bounds the pairs that are remembered.
const maxUnpaired = 10_000

// unpaired remembers which pairs were found not to be open, so that a flood of events that resolve nothing does not cost a call
// each.
type unpaired struct {
	ttl   time.Duration // 0 turns it off
	clock func() time.Time

	mu    sync.Mutex
	pairs map[string]unpairedPair
}

type unpairedPair struct {
	until time.Time
	asked time.Time // when Redis was, by the clock that says when events were stored
	fires bool      // a firing event of it was seen: what was found before that says nothing any more
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
	if known, found := u.pairs[pair]; !fires && found && known.fires && now.Before(known.until) {
		return
	}
	if len(u.pairs) >= maxUnpaired {
		for name, known := range u.pairs {
			if !now.Before(known.until) {
				delete(u.pairs, name)
			}
		}
		if len(u.pairs) >= maxUnpaired {
			clear(u.pairs)
		}
	}
	u.pairs[pair] = unpairedPair{until: now.Add(u.ttl), asked: asked, fires: fires}
}

func (u *unpaired) known(pair string, stored time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.pairs) == 0 {
		return false
	}
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

// KnownUnpaired tells of a resolved event, stored at a time, whether its pair was found not to be open in the last second, after the
// event was stored, and this worker has seen no firing event of it since. Of firing events that were stored before the question too,
// and that another worker has delivered since, it knows nothing.
func (l *Limiter) KnownUnpaired(pair string, stored time.Time) bool {
	return l.unpaired.known(pair, stored)
}

// see takes note of firing events.
func (u *unpaired) see(requests []Request) {
	for i := range requests {
		if requests[i].Pair != "" && requests[i].Cost > 0 {
			u.learn(requests[i].Pair, time.Time{}, true)
		}
	}
}
