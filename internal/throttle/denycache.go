package throttle

import (
	"sync"
	"time"
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

// fullLimit is a limit at a place in the tree. The limit is part of the key: a place whose limit was changed is asked
// about anew. So is the guarantee: a global limit that is full for others is not full for a path with slots of its own.
type fullLimit struct {
	path      string
	limit     Limit
	guarantee string
}

// maxFull bounds the entries; beyond it those that have ended make room, else all do.
const maxFull = 4096

func newDenyCache(ttl time.Duration, clock func() time.Time) *denyCache {
	return &denyCache{ttl: ttl, clock: clock, full: make(map[fullLimit]time.Time)}
}

// find returns the first meter on the route, from the root down, of which a limit is known to be full.
func (c *denyCache) find(r *route) (Node, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.full) == 0 {
		return Node{}, false
	}
	now := c.clock()
	for i := range r.meters {
		m := &r.meters[i]
		for _, limit := range m.limits {
			if until, full := c.full[m.full(limit, r.guarantee)]; full && now.Before(until) {
				return m.node, true
			}
		}
	}
	return Node{}, false
}

// learn takes note of a denial that was asked for at `asked`, of an event of a route. Only one of cost 1 says that nothing
// else fits either.
func (c *denyCache) learn(asked time.Time, r *route, d Decision, cost int) {
	if c.ttl == 0 || cost != 1 || !algorithms[d.Limit.Algorithm].firm {
		return
	}
	wait := d.Wait
	if d.Verdict == NeverFits || wait > c.ttl {
		wait = c.ttl
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.full) >= maxFull {
		c.makeRoom(asked)
	}
	m := meter{algorithm: d.Limit.Algorithm, node: d.Node}
	c.full[m.full(d.Limit, r.guarantee)] = asked.Add(wait)
}

// full is how the cache calls a limit of the meter, for events of a guarantee.
func (m *meter) full(limit Limit, guarantee string) fullLimit {
	if !m.guaranteed() {
		guarantee = ""
	}
	return fullLimit{path: m.node.Path, limit: limit, guarantee: guarantee}
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
