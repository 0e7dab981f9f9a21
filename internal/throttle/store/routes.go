package store

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Rules is a [limits.Ruleset] as the stores count by it. It is safe for concurrent use.
type Rules struct {
	limits.Ruleset
	InForce  *Routes
	InShadow *Routes // nil: none
}

// Compile returns the ruleset with no route made yet.
func Compile(r limits.Ruleset) *Rules {
	return &Rules{Ruleset: r, InForce: newRoutes(r.Tree), InShadow: newRoutes(r.Shadow)}
}

// algorithms names those that the limits use, of which the scripts are composed.
func (r *Rules) algorithms() []string {
	used := make(map[algorithm.Algorithm]bool)
	for _, level := range append(r.Tree.Levels(), r.Shadow.Levels()...) {
		for _, limit := range level.Limits {
			used[limit.Algorithm] = true
		}
	}
	var names []string
	for _, a := range slices.Sorted(maps.Keys(used)) {
		names = append(names, a.String())
	}
	return names
}

// shadowKept is how many microseconds an event counts as admitted by the shadow: as long as it can take slots there, which for a limit of
// deliveries in flight is at least the lease. It is 0 without a shadow.
func (r *Rules) shadowKept(lease time.Duration) int64 {
	if r.Shadow == nil {
		return 0
	}
	return max(1, lease.Microseconds(), r.Shadow.LongestWindow().Microseconds())
}

// Routes is a tree and the routes of its categories. It is safe for concurrent use.
type Routes struct {
	*limits.Tree
	guarantees []limits.Guarantee // of the tree

	mu     sync.RWMutex
	cached map[string]*Route // by category
}

// maxCachedRoutes bounds what producers of ever new categories can make a worker remember: a few megabytes.
const maxCachedRoutes = 4096

// newRoutes returns nil for no tree.
func newRoutes(tree *limits.Tree) *Routes {
	if tree == nil {
		return nil
	}
	return &Routes{Tree: tree, guarantees: tree.Guarantees(), cached: make(map[string]*Route)}
}

// Path is [limits.Tree.Path] from the cache. The caller must not change it.
func (t *Routes) Path(category string) []limits.Node { return t.Route(category).nodes }

// following lists a category's buckets that follow deliveries, of those by which an event was evaluated.
func (t *Routes) following(evaluated *Routes, category string) []bucket {
	before := evaluated.Route(category)
	return slices.DeleteFunc(t.Route(category).following(), func(b bucket) bool { return before.named(b.name) < 0 })
}

// routeIn is a category's route in the limits by which an event was evaluated. Buckets that these limits have too count by these:
// the other slots leave them in the same way.
func (t *Routes) routeIn(evaluated *Routes, category string) *Route {
	if evaluated.Tree == t.Tree {
		return t.Route(category)
	}
	r := *evaluated.Route(category)
	r.buckets = slices.Clone(r.buckets)
	for _, now := range t.Route(category).buckets {
		if i := r.named(now.name); i >= 0 {
			r.buckets[i] = now
		}
	}
	return &r
}

// neverFits tells whether a cost is above what a limit ever has for the events of a guarantee, "" for those of none.
func (t *Routes) neverFits(b bucket, limit limits.Limit, guarantee string, cost int64) bool {
	own, others := int64(0), int64(0)
	if b.guaranteed() {
		for _, g := range t.guarantees {
			if g.Path == guarantee {
				own = g.Slots
			} else {
				others += g.Slots
			}
		}
	}
	if cost <= own {
		others = 0
	}
	return cost > limit.Capacity()-others
}

// TakenBefore returns how many slots of a limit were certainly in use when Redis denied an event of that cost, and 0 if unknown. It knows
// this only for a log that denied a single slot. A global log with guarantees may deny some paths before it is full.
func (t *Routes) TakenBefore(d *Decision, cost int) int64 {
	guaranteed := d.Node.Path == "" && len(t.guarantees) > 0
	if d.Verdict != Denied || cost != 1 || !d.Limit.Description().Exact || guaranteed {
		return 0
	}
	return d.Limit.Capacity()
}

// Route returns what counts for a category, of "" the root alone.
func (t *Routes) Route(category string) *Route {
	t.mu.RLock()
	cached := t.cached[category]
	t.mu.RUnlock()
	if cached != nil {
		return cached
	}
	r := &Route{nodes: t.Tree.Path(category), guarantee: t.GuaranteeOf(category)}
	for _, node := range r.nodes {
		r.buckets = append(r.buckets, bucketsOf(node)...)
	}
	for _, b := range r.buckets {
		for _, limit := range b.limits {
			r.Keys = append(r.Keys, r.Key(b.node, limit))
		}
	}
	r.follows = slices.ContainsFunc(r.buckets, bucket.followsDelivery)
	r.timed = slices.ContainsFunc(r.buckets, bucket.timesAdmissions)
	r.fastpath = !slices.ContainsFunc(r.buckets, func(b bucket) bool {
		blocks := func(l limits.Limit) bool { return l.Count == 0 }
		return !b.algorithm.Description().PerNode || b.guaranteed() && len(t.guarantees) > 0 || slices.ContainsFunc(b.limits, blocks)
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.cached) >= maxCachedRoutes {
		clear(t.cached)
	}
	t.cached[strings.Clone(category)] = r
	return r
}

// guaranteeNumber is a guarantee's position among all of them, from 1; 0 for none.
func (t *Routes) guaranteeNumber(path string) int {
	return slices.IndexFunc(t.guarantees, func(g limits.Guarantee) bool { return g.Path == path }) + 1
}
