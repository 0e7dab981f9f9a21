package throttle

import (
	"maps"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// denyCache remembers which limits are full, so that a worker drops a flood without asking Redis. An entry expires when the limit's next
// slot opens, counted from before the call to Redis. It expires after ttl at the latest, so that the worker notices refunded slots and
// limits that were raised elsewhere.
type denyCache struct {
	ttl   time.Duration // 0 turns the cache off
	clock func() time.Time

	mu   sync.RWMutex
	full map[store.LimitKey]fullUntil
}

// fullUntil is the cache entry of a full limit.
type fullUntil struct {
	until  time.Time
	denial *store.Denial
}

// maxFull bounds the entries.
const maxFull = 4096

func newDenyCache(ttl time.Duration, clock func() time.Time) *denyCache {
	return &denyCache{ttl: ttl, clock: clock, full: make(map[store.LimitKey]fullUntil)}
}

// find returns the cached denial by the first full limit on the route, from the root down. It returns nil if the cache holds none.
func (c *denyCache) find(r *store.Route) *store.Denial {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.full) == 0 {
		return nil
	}
	now := c.clock()
	for i := range r.Keys {
		if known, full := c.full[r.Keys[i]]; full && now.Before(known.until) {
			return known.denial
		}
	}
	return nil
}

// learn caches the denial of an event of cost 1. After the denial of a higher cost, a cheaper event may still fit.
func (c *denyCache) learn(asked time.Time, r *store.Route, d store.Decision, cost int) {
	if c.ttl == 0 || cost != 1 || !d.Limit.Description().Firm() {
		return
	}
	wait := d.Wait
	if d.Verdict == store.ExceedsCapacity || wait > c.ttl {
		wait = c.ttl
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	makeRoom(c.full, maxFull, func(_ store.LimitKey, known fullUntil) bool { return !asked.Before(known.until) })
	c.full[r.Key(d.Node, d.Limit)] = fullUntil{asked.Add(wait), d.Denial(asked)}
}

// makeRoom makes room for one more entry in a full map. It evicts the expired entries. If none has expired, it clears the map.
func makeRoom[K comparable, V any](entries map[K]V, most int, ended func(K, V) bool) {
	if len(entries) < most {
		return
	}
	maps.DeleteFunc(entries, ended)
	if len(entries) >= most {
		clear(entries)
	}
}

// forget clears the cache, for example after slots were returned.
func (c *denyCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.full)
}
