package throttle

import (
	"maps"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// denyCache remembers which limits are full, so that a worker drops a flood without asking Redis. An entry holds until the limit's
// next slot opens, counted from before the question was asked. It never holds longer than ttl: by then a returned slot shows, or a
// limit that was raised elsewhere.
type denyCache struct {
	ttl   time.Duration // 0 turns the cache off
	clock func() time.Time

	mu   sync.RWMutex
	full map[fullLimit]fullUntil
}

// fullUntil is what is known of a full limit.
type fullUntil struct {
	until  time.Time
	denial *Denial
}

// fullLimit is a limit of a path. The limit is part of the key, so that a changed limit is asked about anew. The guarantee is part of
// the key, since a global limit that is full for others is not full for a path with slots of its own.
type fullLimit struct {
	path      string
	limit     limits.Limit
	guarantee string
}

// maxFull bounds the entries.
const maxFull = 4096

func newDenyCache(ttl time.Duration, clock func() time.Time) *denyCache {
	return &denyCache{ttl: ttl, clock: clock, full: make(map[fullLimit]fullUntil)}
}

// find returns the denial by the first bucket on the route, from the root down, of which a limit is known to be full; nil: none is.
func (c *denyCache) find(r *route) *Denial {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.full) == 0 {
		return nil
	}
	now := c.clock()
	for i := range r.buckets {
		b := &r.buckets[i]
		for _, limit := range b.limits {
			if known, full := c.full[b.full(limit, r.guarantee)]; full && now.Before(known.until) {
				return known.denial
			}
		}
	}
	return nil
}

// learn takes note of the denial of an event of a route. Only the denial of a cost of 1 says that nothing else fits either.
func (c *denyCache) learn(asked time.Time, r *route, d Decision, cost int) {
	if c.ttl == 0 || cost != 1 || !algorithms[d.Limit.Algorithm].firm {
		return
	}
	wait := d.Wait
	if d.Verdict == ExceedsCapacity || wait > c.ttl {
		wait = c.ttl
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	makeRoom(c.full, maxFull, func(_ fullLimit, known fullUntil) bool { return !asked.Before(known.until) })
	b := bucket{algorithm: d.Limit.Algorithm, node: d.Node}
	c.full[b.full(d.Limit, r.guarantee)] = fullUntil{asked.Add(wait), d.Denial(asked)}
}

// full is the key of a limit of the bucket, for events of a guarantee.
func (b *bucket) full(limit limits.Limit, guarantee string) fullLimit {
	if !b.guaranteed() {
		guarantee = ""
	}
	return fullLimit{path: b.node.Path, limit: limit, guarantee: guarantee}
}

// makeRoom lets a map have one more entry. If it has so many already, those that have ended go, and if none has, all go.
func makeRoom[K comparable, V any](entries map[K]V, most int, ended func(K, V) bool) {
	if len(entries) < most {
		return
	}
	maps.DeleteFunc(entries, ended)
	if len(entries) >= most {
		clear(entries)
	}
}

// forget drops everything: slots were returned.
func (c *denyCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.full)
}
