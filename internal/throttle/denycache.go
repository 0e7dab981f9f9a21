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
// about anew.
type fullLimit struct {
	path  string
	limit Limit
}

// maxFull bounds the entries; beyond it those that have ended make room, else all do.
const maxFull = 4096

func newDenyCache(ttl time.Duration, clock func() time.Time) *denyCache {
	return &denyCache{ttl: ttl, clock: clock, full: make(map[fullLimit]time.Time)}
}

// find returns the first node on the path, from the root down, that is known to be full.
func (c *denyCache) find(path []Node) (Node, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.full) == 0 {
		return Node{}, false
	}
	now := c.clock()
	for _, node := range path {
		for _, limit := range node.Limits {
			if until, full := c.full[fullLimit{node.Path, limit}]; full && now.Before(until) {
				return node, true
			}
		}
	}
	return Node{}, false
}

// learn takes note of a denial that was asked for at `asked`. Only one of cost 1 says that nothing else fits either.
func (c *denyCache) learn(asked time.Time, d Decision, cost int) {
	if c.ttl == 0 || cost != 1 {
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
	c.full[fullLimit{d.Node.Path, d.Limit}] = asked.Add(wait)
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
