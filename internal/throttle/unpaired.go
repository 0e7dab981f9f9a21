package throttle

import (
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// unpairedFor is the longest time that a pair is assumed not to be open.
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
	upTo  time.Time // all events stored until then were decided; by the clock of the events' storage times
	fires bool      // a firing event of the pair was seen: earlier findings are void
}

func newUnpaired(ttl time.Duration, clock func() time.Time) *unpaired {
	return &unpaired{ttl: min(ttl, unpairedFor), clock: clock, pairs: make(map[string]unpairedPair)}
}

func (u *unpaired) learn(pair string, upTo time.Time, fires bool) {
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
	u.pairs[pair] = unpairedPair{until: now.Add(u.ttl), upTo: upTo, fires: fires}
}

// see records firing events.
func (u *unpaired) see(requests []store.Request) {
	for i := range requests {
		if requests[i].Pair != "" && requests[i].Cost > 0 {
			u.learn(requests[i].Pair, time.Time{}, true)
		}
	}
}

func (u *unpaired) known(pair string, after time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	known, found := u.pairs[pair]
	return found && !known.fires && after.Before(known.upTo) && u.clock().Before(known.until)
}

func (u *unpaired) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.pairs)
}

// LearnUnpaired records that a resolved event was dropped because its pair was not open, although all events stored until decidedUpTo had
// been decided. That time is by the clock of the events' storage times.
func (l *Limiter) LearnUnpaired(pair string, decidedUpTo time.Time) {
	l.unpaired.learn(pair, decidedUpTo, false)
}

// KnownUnpaired reports whether a pair was found not to be open in the last second, when all events stored until some time later than
// `after` had been decided. It reports false if this worker has seen a firing event of the pair since.
func (l *Limiter) KnownUnpaired(pair string, after time.Time) bool {
	return l.unpaired.known(pair, after)
}
