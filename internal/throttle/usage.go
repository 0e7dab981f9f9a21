package throttle

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// usageEvery is how often the usage metrics are read from the logs.
const usageEvery = time.Second

// maxTouched bounds the categories that an instance tracks.
const maxTouched = 1000

// usage updates notifier_limit_used and notifier_limit_size. It exports the usage of a level only after it has read one of the level's
// nodes.
type usage struct {
	metrics Metrics

	mu      sync.Mutex
	tree    *store.Routes
	known   map[string]bool      // levels with a node that was read
	touched map[string]bool      // categories evaluated since their logs were last seen empty
	latest  []PathUse            // as read last
	told    map[string]knownUses // by category, for messages
}

func newUsage(rules *store.Rules, metrics Metrics) *usage {
	u := &usage{metrics: metrics, known: make(map[string]bool), touched: make(map[string]bool), told: make(map[string]knownUses)}
	u.adopt(rules)
	return u
}

// adopt exports the limits of other rules.
func (u *usage) adopt(rules *store.Rules) {
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

func (u *usage) touch(category string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.touched) < maxTouched {
		u.touched[category] = true
	}
}

// refresh exports, for each rule, the fullest limit of its nodes. It always calls Redis, so that an idle worker notices when Redis is
// unavailable.
func (u *usage) refresh(ctx context.Context, shared *store.Redis) error {
	asked := time.Now()
	tree, nodes, categories := u.nodes()
	if len(nodes) == 0 {
		if err := shared.Probe(ctx); err != nil {
			return err
		}
	}
	used, err := shared.Usage(ctx, nodes)
	if err != nil {
		return err
	}
	u.show(tree, nodes, used)
	byPath := usedByPath(nodes, used)
	for _, category := range categories {
		u.learn(category, asked, tree, byPath)
	}
	u.forgetIdle(categories, byPath)
	return nil
}

// show exports the usage of nodes, if it was read with the tree in force. A level that was read before, but has no node here, has no slots
// in use.
func (u *usage) show(tree *store.Routes, nodes []limits.Node, used [][]int64) {
	latest, uses := pathUses(nodes, used), store.Fullest(nodes, used)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tree != tree {
		return
	}
	u.latest = latest
	for _, level := range tree.Levels() {
		use, read := uses[level.Level]
		if read || u.known[level.Level] {
			use = use.Of(level)
			u.known[level.Level] = true
			u.metrics.LimitUsed(level.Level, use.Used)
			u.metrics.LimitSize(level.Level, use.Limit.Capacity())
		}
	}
}

// nodes lists the root and the nodes of the touched categories, each once, in the tree in force.
func (u *usage) nodes() (tree *store.Routes, nodes []limits.Node, categories []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	tree = u.tree
	nodes, categories = slices.Clone(tree.Path("")), slices.Collect(maps.Keys(u.touched))
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

// forgetIdle stops tracking categories that have no slots in use below the root.
func (u *usage) forgetIdle(categories []string, byPath map[string][]int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	isTaken := func(slots int64) bool { return slots > 0 }
	for _, category := range categories {
		inUse := func(n limits.Node) bool { return n.Path != "" && slices.ContainsFunc(byPath[n.Path], isTaken) }
		if !slices.ContainsFunc(u.tree.Path(category), inUse) {
			delete(u.touched, category)
		}
	}
}
