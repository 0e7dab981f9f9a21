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

// usesKept is how long what is used is told without asking again.
const usesKept = time.Second

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

// Uses tells what is used of the limits on a category's path, from the root down, as of a second ago at most; nothing if
// Redis cannot be asked.
func (g *Gate) Uses(ctx context.Context, category string) []NodeUse {
	g.uses.mu.Lock()
	known := g.uses.known[category]
	g.uses.mu.Unlock()
	asked, tree := time.Now(), g.rules.Load().Tree
	if known.tree == tree && asked.Sub(known.asked) < usesKept {
		return known.uses
	}
	if state, _ := g.currentState(); state != answering {
		return nil
	}
	nodes := tree.Path(category)
	used, err := g.o.Redis.Usage(ctx, nodes)
	if err != nil {
		return nil
	}
	var told []NodeUse
	for i, node := range nodes {
		for l, limit := range node.Limits {
			told = append(told, NodeUse{Node: node.name(), Limit: limit, Used: used[i][l]})
		}
	}
	g.uses.mu.Lock()
	defer g.uses.mu.Unlock()
	if g.uses.known == nil || len(g.uses.known) >= maxTouched {
		g.uses.known = make(map[string]knownUses)
	}
	g.uses.known[category] = knownUses{asked: asked, tree: tree, uses: told}
	return told
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
