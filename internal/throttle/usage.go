package throttle

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/expiring"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

const (
	// usageEvery is how often the usage metrics are read from the logs.
	usageEvery = time.Second

	// usesKept is how long cached usage is valid: normally until the usage metrics are read again.
	usesKept = 2 * usageEvery

	// freeKept is how long a category is tracked after its last slot is free. Reports show for a minute what was dropped, and so that it has slots
	// again.
	freeKept = time.Minute

	// recalledEvents is how many of the events delivered last show an instance, at its start, which categories to track.
	recalledEvents = 5000
)

// UsageMetrics receives how full the limits are. Its methods must be safe for concurrent use.
type UsageMetrics interface {
	Levels(inForce, shadow []string) // the rules that can deny have changed
	LimitUsed(level string, used int64)
	LimitSize(level string, size int64)
	LimitsUnread() // no use can be read: old numbers would look like fresh ones
}

// Usage answers how full the limits are, and whether the failure policy counts instead of Redis. It also updates notifier_limit_used and
// notifier_limit_size, and exports the usage of a level only after it has read one of the level's nodes. It is safe for concurrent use.
type Usage struct {
	redis   *store.Redis
	outage  *outage
	full    *fullLimits
	metrics UsageMetrics
	uses    *expiring.Map[usesKey, []limits.Use] // of the limits on a category's path
	adopted chan struct{}                        // has an element when new limits are in force whose use was not read

	recalled atomic.Bool // touched has the categories of events that were delivered before the start

	mu      sync.Mutex
	tree    *store.Routes
	known   map[string]bool   // levels with a node that was read
	touched byPath[time.Time] // when categories were last evaluated, recalled or seen with slots in use, until freeKept has passed
	latest  []limits.Use      // as read last; nil: not read with the tree in force, or not since the last failure
}

// usesKey is a category in the limits of one moment.
type usesKey struct {
	tree     *store.Routes
	category string
}

func newUsage(redis *store.Redis, outage *outage, full *fullLimits, metrics UsageMetrics) *Usage {
	u := &Usage{
		redis: redis, outage: outage, full: full, metrics: metrics,
		uses: expiring.New[usesKey, []limits.Use](maxPaths, time.Now), adopted: make(chan struct{}, 1),
		known: make(map[string]bool), touched: newByPath[time.Time](),
	}
	u.adopt(redis.Rules())
	return u
}

// adopt exports the limits of other rules.
func (u *Usage) adopt(rules *store.Rules) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tree = rules.InForce
	u.latest = nil
	// This also ends the series of levels that are gone. For readings that are still under way for them, see show.
	u.metrics.Levels(namesOf(rules.Tree.Levels()), namesOf(rules.Shadow.Levels()))
	known := u.known
	u.known = make(map[string]bool, len(known))
	for _, level := range rules.Tree.Levels() {
		u.known[level.Level] = known[level.Level]
		u.metrics.LimitSize(level.Level, level.Limits[0].Capacity())
	}
}

func namesOf(levels []limits.Node) []string {
	var names []string
	for _, level := range levels {
		names = append(names, level.Level)
	}
	return names
}

// touch tracks a category that was evaluated.
func (u *Usage) touch(category string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.touched.put(category, time.Now())
}

// refresh exports, for each rule, the fullest limit of its nodes. It always calls Redis, so that an idle worker notices when Redis is
// unavailable.
func (u *Usage) refresh(ctx context.Context) error {
	if err := u.recall(ctx); err != nil {
		return err
	}
	asked := time.Now()
	tree, nodes, categories := u.nodes()
	if len(nodes) == 0 {
		if err := u.redis.Probe(ctx); err != nil {
			return err
		}
	}
	uses, err := u.redis.Readings.Uses(ctx, nodes)
	if err != nil {
		return err
	}
	u.show(tree, nodes, uses)
	byPath := usesByPath(nodes, uses)
	for _, category := range categories {
		u.learn(category, asked, tree, byPath)
	}
	u.forgetIdle(asked, tree, categories, byPath)
	return nil
}

// unread forgets the use of the limits, which cannot be read.
func (u *Usage) unread() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.latest = nil
	u.metrics.LimitsUnread()
}

// recall tracks, once, the categories of the events that were delivered before this instance started.
func (u *Usage) recall(ctx context.Context) error {
	if u.recalled.Load() {
		return nil
	}
	categories, err := u.redis.Readings.Delivered(ctx, recalledEvents)
	if err != nil {
		return err
	}
	for _, category := range categories {
		u.touch(category)
	}
	u.recalled.Store(true)
	return nil
}

// nodes lists the root and the nodes of the touched categories, each once, in the tree in force.
func (u *Usage) nodes() (tree *store.Routes, nodes []limits.Node, categories []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	tree = u.tree
	nodes, categories = slices.Clone(tree.Path("")), slices.Collect(maps.Keys(u.touched.values))
	seen := map[string]bool{"": true}
	for _, category := range categories {
		for _, node := range tree.Path(category) {
			if !seen[node.Path] {
				seen[node.Path] = true
				nodes = append(nodes, node)
			}
		}
	}
	return tree, nodes, categories
}

// show exports the usage of nodes, if it was read with the tree in force. A level that was read before, but has no node here, has no slots
// in use.
func (u *Usage) show(tree *store.Routes, nodes []limits.Node, uses [][]limits.Use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tree != tree {
		return
	}
	u.latest = append([]limits.Use{}, slices.Concat(uses...)...)
	for _, node := range nodes {
		u.known[node.Level] = true
	}
	for _, use := range store.FullestOf(tree.Tree, uses) {
		if u.known[use.Level] {
			u.metrics.LimitUsed(use.Level, use.Used)
			u.metrics.LimitSize(use.Level, use.Size)
		}
	}
}

// forgetIdle stops tracking categories that have had no slots in use below the root for freeKept, and were not evaluated for that long. While a
// category has no limit there, its slots are not known: a live limit may count them again. Such a category is forgotten only to make room for
// other categories, and any category without slots in use at the time asked may be forgotten for that.
func (u *Usage) forgetIdle(asked time.Time, tree *store.Routes, categories []string, byPath map[string][]limits.Use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tree != tree {
		return
	}
	isTaken := func(use limits.Use) bool { return use.Used > 0 }
	isLimited := func(n limits.Node) bool { return n.Path != "" }
	inUse := func(n limits.Node) bool { return isLimited(n) && slices.ContainsFunc(byPath[n.Path], isTaken) }
	for _, category := range categories {
		path, last := tree.Path(category), u.touched.values[category]
		switch {
		case !last.Before(asked):
		case slices.ContainsFunc(path, inUse):
			u.touched.put(category, asked)
		case !u.touched.hasRoom(category), slices.ContainsFunc(path, isLimited) && last.Before(asked.Add(-freeKept)):
			u.touched.remove(category)
		}
	}
}

// learn caches and returns the uses of the limits on a category's path, without the times of their next slots. byPath has the uses by the
// paths of nodes.
func (u *Usage) learn(category string, asked time.Time, tree *store.Routes, byPath map[string][]limits.Use) []limits.Use {
	var uses []limits.Use
	for _, node := range tree.Path(category) {
		uses = append(uses, byPath[node.Path]...)
	}
	for i := range uses {
		uses[i].Next = nil
	}
	u.uses.PutLater(usesKey{tree, category}, uses, asked.Add(usesKept))
	return uses
}

func usesByPath(nodes []limits.Node, uses [][]limits.Use) map[string][]limits.Use {
	byPath := make(map[string][]limits.Use, len(nodes))
	for i, node := range nodes {
		byPath[node.Path] = uses[i]
	}
	return byPath
}

// PolicyActs reports whether the failure policy applies, because Redis is unavailable.
func (u *Usage) PolicyActs() bool {
	state, _ := u.outage.current()
	return u.outage.isPolicy(state)
}

// Latest lists the use of the limits, as of the last second, on the paths of the categories that this instance tracks. Without a reading of the
// limits in force, as while Redis is unavailable, known is false.
func (u *Usage) Latest() (uses []limits.Use, known bool) {
	u.mu.Lock()
	latest := u.latest
	u.mu.Unlock()
	now := time.Now()
	for _, use := range latest {
		if use.Next != nil && !use.Next.After(now) {
			use.Next = nil // it has a slot by now
		}
		uses = append(uses, use)
	}
	return uses, latest != nil
}

// Uses returns the use of the limits on a category's path, from the root down, as of a moment ago. It returns nil if Redis does not
// answer.
func (u *Usage) Uses(ctx context.Context, category string) []limits.Use {
	asked, tree := time.Now(), u.redis.Rules().InForce
	if uses, known := u.uses.Get(usesKey{tree, category}); known {
		return uses
	}
	if !u.outage.isAnswering() {
		return nil
	}
	nodes := tree.Path(category)
	uses, err := u.redis.Readings.Uses(ctx, nodes)
	if err != nil {
		return nil
	}
	return u.learn(category, asked, tree, usesByPath(nodes, uses))
}

// NodeOf returns the node where the rule of a level limits a category. For a rule of each key, it is the node of the path.
func (u *Usage) NodeOf(category, level string) (node limits.Node, found bool) {
	for _, node := range u.redis.Rules().InForce.PathOfKey(category, "any") {
		if node.Level == level {
			node.Key = ""
			return node, true
		}
	}
	return limits.Node{}, false
}

// LimitOf returns the configured limits of a category at a level. It returns "" if the category has no limit at that level.
func (u *Usage) LimitOf(category, level string) string {
	if node, found := u.NodeOf(category, level); found {
		return node.Limits.String()
	}
	return ""
}

// Opens returns when the next slot of a category opens, according to the latest denials. It returns the zero time if a slot is open.
func (u *Usage) Opens(category string) time.Time {
	var opens time.Time
	now := time.Now()
	for _, key := range u.redis.Rules().InForce.Route(category, "").Keys {
		if opensAt := u.full.opensAt(key); opensAt.After(now) && opensAt.After(opens) {
			opens = opensAt
		}
	}
	return opens
}
