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

	// usesKept is how long cached usage of a category is valid.
	usesKept = 2 * usageEvery

	// mostPieces bounds the pieces in which the tracked categories are read, and so the age of a reading in seconds.
	mostPieces = 15

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
//
// Each second an instance reads the root, the categories that were evaluated since their last reading, and the categories with a full limit whose
// next slot has opened. It reads the other tracked categories in pieces, one piece a second. There are as many pieces as live instances, up to
// mostPieces, so all instances together cost Redis about as much as one.
type Usage struct {
	o       *LimiterOptions
	outage  *outage
	full    *fullLimits
	uses    *expiring.Map[usesKey, []limits.Use] // of the limits on a category's path
	adopted chan struct{}                        // has an element when new limits are in force whose use was not read

	recalled atomic.Bool // tracked has the categories of events that were delivered before the start

	mu      sync.Mutex
	tree    *store.Routes
	known   map[string]bool         // levels with a node that was read
	tracked byPath[activity]        // categories, until freeKept has passed
	latest  map[string][]limits.Use // as read last, by the path of a node; nil: not read with the tree in force, or not since the last failure
}

// activity is what is known of a tracked category.
type activity struct {
	busy time.Time // when it was last evaluated, recalled or seen with slots in use
	read time.Time // when its use was last asked for; zero: never
}

// usesKey is a category in the limits of one moment.
type usesKey struct {
	tree     *store.Routes
	category string
}

func newUsage(o *LimiterOptions, outage *outage, full *fullLimits) *Usage {
	u := &Usage{
		o: o, outage: outage, full: full,
		uses: expiring.New[usesKey, []limits.Use](maxPaths, time.Now), adopted: make(chan struct{}, 1),
		known: make(map[string]bool), tracked: newByPath[activity](),
	}
	u.adopt(o.Redis.Rules())
	return u
}

// adopt exports the limits of other rules.
func (u *Usage) adopt(rules *store.Rules) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tree = rules.InForce
	u.latest = nil
	// This also ends the series of levels that are gone. For readings that are still under way for them, see show.
	u.o.UsageMetrics.Levels(namesOf(rules.Tree.Levels()), namesOf(rules.Shadow.Levels()))
	known := u.known
	u.known = make(map[string]bool, len(known))
	for _, level := range rules.Tree.Levels() {
		u.known[level.Level] = known[level.Level]
		u.o.UsageMetrics.LimitSize(level.Level, level.Limits[0].Capacity())
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
	u.tracked.put(category, activity{time.Now(), u.tracked.values[category].read})
}

// refresh exports, for each rule, the fullest limit of its nodes. It always calls Redis, so that an idle worker notices when Redis is
// unavailable.
func (u *Usage) refresh(ctx context.Context) error {
	if err := u.recall(ctx); err != nil {
		return err
	}
	asked := time.Now()
	tree, nodes, categories := u.due(asked)
	if len(nodes) == 0 {
		if err := u.o.Redis.Probe(ctx); err != nil {
			return err
		}
	}
	uses, err := u.o.Redis.Readings.Uses(ctx, nodes)
	if err != nil {
		return err
	}
	u.show(tree, nodes, uses)
	byPath := usesByPath(nodes, uses)
	for _, category := range categories {
		u.learn(category, asked, tree, byPath)
	}
	u.forgetIdle(asked, tree, categories)
	return nil
}

// unread forgets the use of the limits, which cannot be read.
func (u *Usage) unread() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.latest = nil
	u.o.UsageMetrics.LimitsUnread()
}

// recall tracks, once, the categories of the events that were delivered before this instance started.
func (u *Usage) recall(ctx context.Context) error {
	if u.recalled.Load() {
		return nil
	}
	categories, err := u.o.Redis.Readings.Delivered(ctx, recalledEvents)
	if err != nil {
		return err
	}
	for _, category := range categories {
		u.touch(category)
	}
	u.recalled.Store(true)
	return nil
}

// due lists the categories to read at a time, and the root and the nodes of these categories, each once, in the tree in force.
func (u *Usage) due(now time.Time) (tree *store.Routes, nodes []limits.Node, categories []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	tree, nodes = u.tree, slices.Clone(u.tree.Path(""))
	all := slices.SortedFunc(maps.Keys(u.tracked.values), func(a, b string) int {
		return u.tracked.values[a].read.Compare(u.tracked.values[b].read)
	})
	pieces := min(max(1, u.o.Instances()), mostPieces)
	if u.latest == nil {
		pieces = 1
	}
	piece := (len(all) + pieces - 1) / pieces
	for i, category := range all {
		if i < piece || u.mayHaveChanged(category, now) {
			categories = append(categories, category)
		}
	}
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

// mayHaveChanged reports whether a category was evaluated since its last reading, or whether a full limit of it has had its next slot since.
func (u *Usage) mayHaveChanged(category string, now time.Time) bool {
	if known := u.tracked.values[category]; known.busy.After(known.read) {
		return true
	}
	hasOpened := func(use limits.Use) bool { return use.Next != nil && !use.Next.After(now) }
	return slices.ContainsFunc(u.tree.Path(category), func(node limits.Node) bool {
		return node.Path != "" && slices.ContainsFunc(u.latest[node.Path], hasOpened)
	})
}

// show exports the usage of nodes, if it was read with the tree in force, and the usage of the other nodes as read before. A level that was read
// before, but has no node here, has no slots in use.
func (u *Usage) show(tree *store.Routes, nodes []limits.Node, uses [][]limits.Use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tree != tree {
		return
	}
	if u.latest == nil {
		u.latest = make(map[string][]limits.Use, len(nodes))
	}
	for i, used := range uses {
		u.known[nodes[i].Level] = true
		u.latest[nodes[i].Path] = used
	}
	for _, use := range store.FullestOf(tree.Tree, slices.Collect(maps.Values(u.latest))) {
		if u.known[use.Level] {
			u.o.UsageMetrics.LimitUsed(use.Level, use.Used)
			u.o.UsageMetrics.LimitSize(use.Level, use.Size)
		}
	}
}

// forgetIdle stops tracking categories that have had no slots in use below the root for freeKept, and were not evaluated for that long. While a
// category has no limit there, its slots are not known: a live limit may count them again. Such a category is forgotten only to make room for
// other categories, and any category without slots in use when it was last read may be forgotten for that. These categories were read now.
func (u *Usage) forgetIdle(asked time.Time, tree *store.Routes, categories []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tree != tree {
		return
	}
	for _, category := range categories {
		if known, tracked := u.tracked.values[category]; tracked {
			u.tracked.put(category, activity{known.busy, asked})
		}
	}
	isTaken := func(use limits.Use) bool { return use.Used > 0 }
	isLimited := func(n limits.Node) bool { return n.Path != "" }
	inUse := func(n limits.Node) bool { return isLimited(n) && slices.ContainsFunc(u.latest[n.Path], isTaken) }
	shown := map[string]bool{"": true}
	for category, known := range u.tracked.values {
		path := tree.Path(category)
		switch {
		case !known.busy.Before(known.read):
		case slices.ContainsFunc(path, inUse):
			u.tracked.put(category, activity{known.read, known.read})
		case !u.tracked.hasRoom(category), slices.ContainsFunc(path, isLimited) && known.busy.Before(asked.Add(-freeKept)):
			u.tracked.remove(category)
			continue
		}
		for _, node := range path {
			shown[node.Path] = true
		}
	}
	maps.DeleteFunc(u.latest, func(path string, _ []limits.Use) bool { return !shown[path] })
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

// PolicyActs returns why Redis is unavailable if the failure policy applies; nil: it does not.
func (u *Usage) PolicyActs() error {
	if state, cause := u.outage.current(); u.outage.isPolicy(state) {
		return unavailableBecause(cause)
	}
	return nil
}

// Latest lists the use of the limits, as read last, on the paths of the categories that this instance tracks. Without a reading of the limits in
// force, as while Redis is unavailable, known is false.
func (u *Usage) Latest() (uses []limits.Use, known bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	for _, ofNode := range u.latest {
		for _, use := range ofNode {
			if use.Next != nil && !use.Next.After(now) {
				use.Next = nil // it has a slot by now
			}
			uses = append(uses, use)
		}
	}
	return uses, u.latest != nil
}

// Uses returns the use of the limits on a category's path, from the root down, as of a moment ago. It returns nil if Redis does not
// answer.
func (u *Usage) Uses(ctx context.Context, category string) []limits.Use {
	asked, tree := time.Now(), u.o.Redis.Rules().InForce
	if uses, known := u.uses.Get(usesKey{tree, category}); known {
		return uses
	}
	if !u.outage.isAnswering() {
		return nil
	}
	nodes := tree.Path(category)
	uses, err := u.o.Redis.Readings.Uses(ctx, nodes)
	if err != nil {
		return nil
	}
	return u.learn(category, asked, tree, usesByPath(nodes, uses))
}

// NodeOf returns the node where the rule of a level limits a category. For a rule of each key, it is the node of the path.
func (u *Usage) NodeOf(category, level string) (node limits.Node, found bool) {
	for _, node := range u.o.Redis.Rules().InForce.PathOfKey(category, "any") {
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
	for _, key := range u.o.Redis.Rules().InForce.Route(category, "").Keys {
		if opensAt := u.full.opensAt(key); opensAt.After(now) && opensAt.After(opens) {
			opens = opensAt
		}
	}
	return opens
}
