package throttle

import (
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// denyCache remembers which limits are full, so that a flood is dropped without asking Redis. An entry holds until the
// limit's next slot opens, counted from before the question was asked, and never longer than ttl: a slot that is
// returned, or a raised limit elsewhere, shows by then.
type denyCache struct {
	ttl   time.Duration // 0 turns the cache off
	clock func() time.Time

	mu   sync.RWMutex
	full map[fullLimit]time.Time // until when
}

// fullLimit is a limit of a path. The limit is part of the key: a path whose limit was changed is asked
// about anew. So is the guarantee: a global limit that is full for others is not full for a path with slots of its own.
type fullLimit struct {
	path      string
	limit     limits.Limit
	guarantee string
}

// maxFull bounds the entries; beyond it those that have ended make room, else all do.
const maxFull = 4096

func newDenyCache(ttl time.Duration, clock func() time.Time) *denyCache {
	return &denyCache{ttl: ttl, clock: clock, full: make(map[fullLimit]time.Time)}
}

// find returns the first bucket on the route, from the root down, of which a limit is known to be full.
func (c *denyCache) find(r *route) (limits.Node, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.full) == 0 {
		return limits.Node{}, false
	}
	now := c.clock()
	for i := range r.buckets {
		b := &r.buckets[i]
		for _, limit := range b.limits {
			if until, full := c.full[b.full(limit, r.guarantee)]; full && now.Before(until) {
				return b.node, true
			}
		}
	}
	return limits.Node{}, false
}

// learn takes note of a denial that was asked for at `asked`, of an event of a route. Only one of cost 1 says that nothing
// else fits either.
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
	if len(c.full) >= maxFull {
		c.makeRoom(asked)
	}
	b := bucket{algorithm: d.Limit.Algorithm, node: d.Node}
	c.full[b.full(d.Limit, r.guarantee)] = asked.Add(wait)
}

// full is how the cache calls a limit of the bucket, for events of a guarantee.
func (b *bucket) full(limit limits.Limit, guarantee string) fullLimit {
	if !b.guaranteed() {
		guarantee = ""
	}
	return fullLimit{path: b.node.Path, limit: limit, guarantee: guarantee}
}

func (c *denyCache) makeRoom(now time.Time) {
	for key, until := range c.full {
		if !now.Before(until) {
			delete(c.full, key)
		}
	}
	if len(c.full) >= maxFull {
		clear(c.full)
	}
}

// forget drops everything: slots were returned.
func (c *denyCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.full)
}
