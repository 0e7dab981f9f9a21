package throttle

import (
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/expiring"
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

	mu    sync.Mutex // a finding must not replace the mark of a firing event
	pairs *expiring.Map[string, unpairedPair]
}

type unpairedPair struct {
	upTo  time.Time // all events stored until then were decided; by the clock of the events' storage times
	fires bool      // a firing event of the pair was seen: earlier findings are void
}

func newUnpaired(ttl time.Duration, clock func() time.Time) *unpaired {
	return &unpaired{ttl: min(ttl, unpairedFor), clock: clock, pairs: expiring.New[string, unpairedPair](maxUnpaired, clock)}
}

func (u *unpaired) learn(pair string, found unpairedPair) {
	if u.ttl == 0 || pair == "" {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if known, _ := u.pairs.Get(pair); known.fires && !found.fires {
		return
	}
	u.pairs.Put(pair, found, u.clock().Add(u.ttl))
}

// see records firing events.
func (u *unpaired) see(requests []store.Request) {
	for i := range requests {
		if requests[i].Pair != "" && requests[i].Cost > 0 {
			u.learn(requests[i].Pair, unpairedPair{fires: true})
		}
	}
}

// LearnUnpaired records that a resolved event was dropped because its pair was not open, although all events stored until decidedUpTo had
// been decided. That time is by the clock of the events' storage times.
func (l *Limiter) LearnUnpaired(pair string, decidedUpTo time.Time) {
	l.unpaired.learn(pair, unpairedPair{upTo: decidedUpTo})
}

// KnownUnpaired reports whether a pair was found not to be open in the last second, when all events stored until some time later than
// `after` had been decided. It reports false if this worker has seen a firing event of the pair since.
func (l *Limiter) KnownUnpaired(pair string, after time.Time) bool {
	known, found := l.unpaired.pairs.Get(pair)
	return found && !known.fires && after.Before(known.upTo)
}
