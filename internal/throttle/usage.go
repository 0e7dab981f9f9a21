package throttle

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// usageEvery is how often the usage metrics are read from the logs.
const usageEvery = time.Second

// maxTouched bounds the categories whose usage an instance follows.
const maxTouched = 1000

// usage keeps notifier_limit_used and notifier_limit_size. It does not show what is taken of a level until it has read one of
// the level's nodes.
type usage struct {
	metrics Metrics

	mu      sync.Mutex
	tree    *routes
	known   map[string]bool      // levels of which a node was read
	touched map[string]bool      // categories evaluated since their logs were last seen empty
	latest  []PathUse            // as read last
	told    map[string]knownUses // by category, for messages
}

func newUsage(rules *ruleset, metrics Metrics) *usage {
	u := &usage{metrics: metrics, known: make(map[string]bool), touched: make(map[string]bool), told: make(map[string]knownUses)}
	u.adopt(rules)
	return u
}

// adopt shows the limits of other rules.
func (u *usage) adopt(rules *ruleset) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tree = rules.tree
	u.latest = nil
	// This also ends the series of levels that are gone. For what is still being read for them, see show.
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

// refresh shows for each rule the fullest limit of its nodes. It asks Redis something in any case: an idle worker has to notice when
// Redis is unavailable.
func (u *usage) refresh(ctx context.Context, store *Redis) error {
	asked := time.Now()
	tree, nodes, categories := u.nodes()
	if len(nodes) == 0 {
		if err := store.Probe(ctx); err != nil {
			return err
		}
	}
	used, err := store.Usage(ctx, nodes)
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

// show takes over what is used of nodes, if the tree with which that was read is still in force. A level without a node here, read before,
// has nothing taken.
func (u *usage) show(tree *routes, nodes []limits.Node, used [][]int64) {
	latest, uses := pathUses(nodes, used), fullest(nodes, used)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tree != tree {
		return
	}
	u.latest = latest
	for _, level := range tree.Levels() {
		use, read := uses[level.Level]
		if read || u.known[level.Level] {
			use = use.of(level)
			u.known[level.Level] = true
			u.metrics.LimitUsed(level.Level, use.Used)
			u.metrics.LimitSize(level.Level, use.Limit.Capacity())
		}
	}
}

// nodes lists the root and the nodes of the touched categories, each once, in the tree in force.
func (u *usage) nodes() (tree *routes, nodes []limits.Node, categories []string) {
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

// forgetIdle stops following categories below the root of whose paths nothing is taken.
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
