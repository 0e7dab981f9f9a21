package throttle

import (
	"context"
	"sync"
	"time"
)

// NodeUse is what is used of one limit on an event's path.
type NodeUse struct {
	Node  string // LevelGlobal or the path
	Limit Limit
	Used  int64
}

// usesKept is how long what is used is told without asking again: until the usage metrics have been read anew, as a rule.
const usesKept = 2 * usageEvery

// uses remembers what was used of the limits on the paths of categories.
type uses struct {
	mu    sync.Mutex
	known map[string]knownUses
}

type knownUses struct {
	asked time.Time
	tree  *Tree
	uses  []NodeUse
}

// learn takes note of what is used, by the paths of nodes, and returns it as it is told of a category.
func (u *uses) learn(category string, asked time.Time, tree *Tree, byPath map[string][]int64) []NodeUse {
	var told []NodeUse
	for _, node := range tree.Path(category) {
		for l, used := range byPath[node.Path] {
			told = append(told, NodeUse{Node: node.name(), Limit: node.Limits[l], Used: used})
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known == nil || len(u.known) >= maxTouched {
		u.known = make(map[string]knownUses)
	}
	if known := u.known[category]; known.tree != tree || asked.After(known.asked) {
		u.known[category] = knownUses{asked: asked, tree: tree, uses: told}
	}
	return told
}

func (u *uses) find(category string, tree *Tree, now time.Time) ([]NodeUse, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	known := u.known[category]
	return known.uses, known.tree == tree && now.Sub(known.asked) < usesKept
}

// Uses tells what is used of the limits on a category's path, from the root down, as of a moment ago; nothing if Redis cannot
// be asked. It asks only about a category of which there was nothing lately.
func (g *Gate) Uses(ctx context.Context, category string) []NodeUse {
	asked, tree := time.Now(), g.rules.Load().Tree
	if told, known := g.KnownUses(category); known {
		return told
	}
	if state, _ := g.currentState(); state != answering {
		return nil
	}
	nodes := tree.Path(category)
	used, err := g.o.Redis.Usage(ctx, nodes)
	if err != nil {
		return nil
	}
	byPath := make(map[string][]int64, len(nodes))
	for i, node := range nodes {
		byPath[node.Path] = used[i]
	}
	return g.usage.uses.learn(category, asked, tree, byPath)
}

// KnownUses is what Uses tells without asking Redis, and whether that is anything.
func (g *Gate) KnownUses(category string) (told []NodeUse, known bool) {
	return g.usage.uses.find(category, g.rules.Load().Tree, time.Now())
}

// name is how people call the node.
func (n Node) name() string {
	if n.Path == "" {
		return LevelGlobal
	}
	return n.Path
}

// LimitOf is what a level allows a category, as configured; "" if it has no limit there.
func (g *Gate) LimitOf(category, level string) string {
	for _, node := range g.rules.Load().Tree.Path(category) {
		if node.Level == level {
			return node.Limits.String()
		}
	}
	return ""
}

// Opens tells when the next slot of a category opens, as far as the latest denials told; the zero time if one is open.
func (g *Gate) Opens(category string) time.Time {
	var opens time.Time
	for _, node := range g.rules.Load().Tree.Path(category) {
		opens = later(opens, g.usage.opensAt(node.Path))
	}
	if !opens.After(time.Now()) {
		return time.Time{}
	}
	return opens
}
