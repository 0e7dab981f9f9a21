package throttle

import (
	"cmp"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/expiring"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// denyCache remembers which limits are full, so that a worker drops a flood without asking Redis. An entry expires when the limit's next
// slot opens, counted from before the call to Redis. It expires after ttl at the latest, so that the worker notices refunded slots and
// limits that were raised elsewhere.
type denyCache struct {
	ttl  time.Duration                                // 0 turns the cache off
	full *expiring.Map[store.LimitKey, *store.Denial] // the limits of paths
	keys *expiring.Map[store.LimitKey, *store.Denial] // the limits of each key; they evict no limit of a path
}

// maxFull bounds the entries of each map.
const maxFull = 4096

func newDenyCache(ttl time.Duration, clock func() time.Time) *denyCache {
	return &denyCache{
		ttl: ttl, full: expiring.New[store.LimitKey, *store.Denial](maxFull, clock), keys: expiring.New[store.LimitKey, *store.Denial](maxFull, clock),
	}
}

// of returns the map with the entry of a limit.
func (c *denyCache) of(key store.LimitKey) *expiring.Map[store.LimitKey, *store.Denial] {
	if key.Key == "" {
		return c.full
	}
	return c.keys
}

func (c *denyCache) isEmpty() bool { return c.full.Len() == 0 && c.keys.Len() == 0 }

func (c *denyCache) clear() {
	c.full.Clear()
	c.keys.Clear()
}

// find returns the cached denial by the first full limit on the route, from the root down. It returns nil if the cache holds none.
func (c *denyCache) find(r *store.Route) *store.Denial {
	if c.isEmpty() {
		return nil
	}
	for i := range r.Keys {
		if denial, full := c.of(r.Keys[i]).Get(r.Keys[i]); full {
			return denial
		}
	}
	return nil
}

// learn caches the denial of an event of cost 1. After the denial of a higher cost, a cheaper event may still fit.
func (c *denyCache) learn(asked time.Time, r *store.Route, d store.Decision, cost int) {
	if c.ttl == 0 || cost != 1 || d.Limit.Description().FollowsDelivery() {
		return
	}
	wait := d.Wait
	if d.Verdict == store.ExceedsCapacity || wait > c.ttl {
		wait = c.ttl
	}
	key := r.Key(d.Node, d.Limit)
	c.of(key).Put(key, d.Denial(asked), asked.Add(wait))
}

// denials knows the limits that are full: in force, and in the shadow.
type denials struct {
	redis   *store.Redis
	cache   *denyCache
	shadow  *denyCache
	full    *fullLimits // logs them
	metrics Metrics
}

// learn remembers the denial in an answer of a store.
func (d *denials) learn(asked time.Time, source string, request store.Request, decision *store.Decision) {
	rules := d.redis.Rules()
	if decision.Muted != nil {
		return
	}
	if source == SourceRedis && decision.Verdict.IsDenial() { // a share of a limit is full sooner than the limit
		route := rules.InForce.Route(request.Category, request.Key)
		decision.Used = rules.InForce.TakenBefore(decision, request.Cost)
		d.cache.learn(asked, route, *decision, request.Cost)
		// No line is logged for each key, and a limit without room for a costly event may have free slots.
		if decision.Verdict == store.Denied && decision.Node.Key == "" && request.Cost == 1 {
			d.full.denied(route.Key(decision.Node, decision.Limit), decision, asked)
		}
	}
	if source == SourceRedis && decision.Verdict == store.Admitted && !request.Slotless && d.full.some.Load() {
		d.full.admitted(rules.InForce.Route(request.Category, "").Keys, asked)
	}
	shadow := decision.Shadow
	if shadow.Verdict == 0 {
		return
	}
	d.metrics.ShadowDecision(cmp.Or(shadow.Node.Level, LevelNone), shadow.Verdict.String(), 1)
	if shadow.Verdict.IsDenial() && source == SourceRedis && rules.InShadow != nil {
		denied := store.Decision{Verdict: shadow.Verdict, Node: shadow.Node, Limit: shadow.Limit, Wait: shadow.Wait}
		d.shadow.learn(asked, rules.InShadow.Route(request.Category, request.Key), denied, request.Cost)
	}
}

// find returns the cached denial of an event of the category and the key, and counts the decision. It returns nil if there is none. Shadow
// limits must deny the event too: otherwise they would miss the event.
func (d *denials) find(category, key string) *store.Denial {
	rules := d.redis.Rules()
	route := rules.InForce.Route(category, key)
	denial := d.cache.find(route)
	if denial == nil {
		return nil
	}
	if rules.InShadow != nil {
		shadowed := d.shadow.find(rules.InShadow.Route(category, key))
		if shadowed == nil {
			return nil
		}
		d.metrics.ShadowDecision(shadowed.Level, store.Denied.String(), 1)
	}
	d.metrics.Decision(store.Denied.String(), SourceCache, 1)
	if denial.Key == "" {
		d.full.deniedAgain(route.Key(limits.Node{Path: denial.Path}, denial.Limit))
	}
	return denial
}

// forget clears the caches, for example after slots were returned.
func (d *denials) forget() {
	d.cache.clear()
	d.shadow.clear()
}

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
