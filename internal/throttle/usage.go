package throttle

import (
	"context"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// usageEvery is how often the usage metrics are read from the logs.
const usageEvery = time.Second

// maxTouched bounds the categories whose usage an instance follows.
const maxTouched = 1000

// usage keeps notifier_limit_used and notifier_limit_size, and when full limits open. What is taken of a level is not known,
// and not shown, until one of its nodes was read.
type usage struct {
	metrics Metrics
	uses    uses // what messages tell of them

	mu      sync.Mutex
	tree    *routes
	known   map[string]bool      // levels of which a node was read
	touched map[string]bool      // categories evaluated since their logs were last seen empty
	opens   map[string]time.Time // by level, as of the latest denial
	full    map[string]time.Time // likewise by the node's path
}

func newUsage(rules *ruleset, metrics Metrics) *usage {
	u := &usage{
		metrics: metrics, known: make(map[string]bool), touched: make(map[string]bool),
		opens: make(map[string]time.Time), full: make(map[string]time.Time),
	}
	u.adopt(rules)
	return u
}

// adopt shows the limits of other rules.
func (u *usage) adopt(rules *ruleset) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tree = rules.tree
	clear(u.opens)
	clear(u.full)
	// This also ends the series of levels that are gone. What was read for them comes too late: see show.
	u.metrics.Levels(levelsOf(rules.Tree), levelsOf(rules.Shadow))
	known := u.known
	u.known = make(map[string]bool, len(known))
	for _, level := range rules.Tree.Levels() {
		u.known[level.Level] = known[level.Level]
		u.metrics.LimitSize(level.Level, level.Limits[0].Capacity())
	}
}

func levelsOf(tree *limits.Tree) []string {
	if tree == nil {
		return nil
	}
	var names []string
	for _, level := range tree.Levels() {
		names = append(names, level.Level)
	}
	return names
}

func (u *usage) current() *routes {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.tree
}

func (u *usage) touch(category string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.touched) < maxTouched {
		u.touched[category] = true
	}
}

func (u *usage) denied(d Decision, asked time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.opens[d.Node.Level] = asked.Add(d.Wait)
	if _, known := u.full[d.Node.Path]; !known && len(u.full) >= maxTouched {
		clear(u.full)
	}
	u.full[d.Node.Path] = asked.Add(d.Wait)
}

func (u *usage) opensAt(path string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.full[path]
}

func (u *usage) nextSlot(now time.Time) (level string, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if global := u.opens[limits.LevelGlobal].Sub(now); global > 0 {
		return limits.LevelGlobal, global
	}
	for name, opens := range u.opens {
		if left := opens.Sub(now); left > 0 && (wait == 0 || left < wait) {
			level, wait = name, left
		}
	}
	return level, wait
}

// refresh shows for each rule the fullest limit of its nodes. It asks Redis something in any case: who is idle has to notice
// when Redis is unavailable.
func (u *usage) refresh(ctx context.Context, store *Redis) error {
	asked, tree := time.Now(), u.current()
	nodes, categories := u.nodes(tree)
	byPath := make(map[string][]int64, len(nodes))
	fullest := make(map[string]limitUse)
	if len(nodes) == 0 {
		if err := store.Probe(ctx); err != nil {
			return err
		}
	}
	inUse := make(map[string]bool)
	for len(nodes) > 0 {
		batch := nodes[:min(len(nodes), MaxBatch)]
		nodes = nodes[len(batch):]
		used, err := store.Usage(ctx, batch)
		if err != nil {
			return err
		}
		for i, node := range batch {
			byPath[node.Path] = used[i]
			for l, limit := range node.Limits {
				use := limitUse{used: used[i][l], size: limit.Capacity()}
				inUse[node.Path] = inUse[node.Path] || use.used > 0
				if other, found := fullest[node.Level]; !found || use.fuller(other) {
					fullest[node.Level] = use
				}
			}
		}
	}
	u.show(tree, fullest)
	for _, category := range categories {
		u.uses.learn(category, asked, tree, byPath)
	}
	u.forgetIdle(categories, inUse)
	return nil
}

// show sets the metrics by what was read with a tree, if that is still in force. Of a level that was read before and has no
// node in use now, nothing is taken.
func (u *usage) show(tree *routes, fullest map[string]limitUse) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tree != tree {
		return
	}
	for _, level := range tree.Levels() {
		use, read := fullest[level.Level]
		if !read {
			use.size = level.Limits[0].Capacity()
		}
		if read || u.known[level.Level] {
			u.known[level.Level] = true
			u.metrics.LimitUsed(level.Level, use.used)
			u.metrics.LimitSize(level.Level, use.size)
		}
	}
}

type limitUse struct{ used, size int64 }

// fuller compares shares of limits: used/size without dividing by a limit of 0.
func (a limitUse) fuller(b limitUse) bool { return a.used*b.size > b.used*a.size }

// nodes lists the root and the nodes of the touched categories, each once.
func (u *usage) nodes(tree *routes) ([]limits.Node, []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var (
		nodes      = append([]limits.Node(nil), tree.Path("")...)
		categories = make([]string, 0, len(u.touched))
		seen       = map[string]bool{"": true}
	)
	for category := range u.touched {
		categories = append(categories, category)
		for _, node := range tree.Path(category) {
			if !seen[node.Path] {
				seen[node.Path] = true
				nodes = append(nodes, node)
			}
		}
	}
	return nodes, categories
}

func (u *usage) forgetIdle(categories []string, inUse map[string]bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, category := range categories {
		busy := false
		for _, node := range u.tree.Path(category) {
			busy = busy || node.Path != "" && inUse[node.Path]
		}
		if !busy {
			delete(u.touched, category)
		}
	}
}
