package throttle

import (
	"cmp"
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// usesKept is how long cached usage is valid: normally until the usage metrics are read again.
const usesKept = 2 * usageEvery

// knownUses is the cached usage of the limits on a category's path.
type knownUses struct {
	asked time.Time
	tree  *store.Routes
	uses  []limits.Usage
}

// learn caches and returns the usage of the limits on a category's path. byPath has the usage by the paths of nodes.
func (u *usage) learn(category string, asked time.Time, tree *store.Routes, byPath map[string][]int64) []limits.Usage {
	var told []limits.Usage
	for _, node := range tree.Path(category) {
		level := cmp.Or(node.Path, limits.LevelGlobal)
		for l, used := range byPath[node.Path] {
			told = append(told, limits.Usage{Level: level, Limit: node.Limits[l].String(), Used: used, Size: node.Limits[l].Capacity()})
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.told) >= maxTouched {
		clear(u.told)
	}
	if known := u.told[category]; known.tree != tree || asked.After(known.asked) {
		u.told[category] = knownUses{asked: asked, tree: tree, uses: told}
	}
	return told
}

func (u *usage) find(category string, tree *store.Routes, now time.Time) ([]limits.Usage, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	known := u.told[category]
	return known.uses, known.tree == tree && now.Sub(known.asked) < usesKept
}

// Uses returns the usage of the limits on a category's path, from the root down, as of a moment ago. It returns nil if Redis does not
// answer. It asks Redis only if KnownUses has no answer.
func (l *Limiter) Uses(ctx context.Context, category string) []limits.Usage {
	asked, tree := time.Now(), l.o.Redis.Rules().InForce
	if told, known := l.KnownUses(category); known {
		return told
	}
	if !l.outage.isAnswering() {
		return nil
	}
	nodes := tree.Path(category)
	used, err := l.o.Redis.Usage(ctx, nodes)
	if err != nil {
		return nil
	}
	return l.usage.learn(category, asked, tree, usedByPath(nodes, used))
}

func usedByPath(nodes []limits.Node, used [][]int64) map[string][]int64 {
	byPath := make(map[string][]int64, len(nodes))
	for i, node := range nodes {
		byPath[node.Path] = used[i]
	}
	return byPath
}

// KnownUses returns what Uses knows without asking Redis.
func (l *Limiter) KnownUses(category string) (told []limits.Usage, known bool) {
	return l.usage.find(category, l.o.Redis.Rules().InForce, time.Now())
}

// LimitOf returns the configured limits of a category at a level. It returns "" if the category has no limit at that level.
func (l *Limiter) LimitOf(category, level string) string {
	if node, found := l.NodeOf(category, level); found {
		return node.Limits.String()
	}
	return ""
}

// Opens returns when the next slot of a category opens, according to the latest denials. It returns the zero time if a slot is open.
func (l *Limiter) Opens(category string) time.Time {
	var opens time.Time
	now := time.Now()
	for _, node := range l.o.Redis.Rules().InForce.Path(category) {
		if opensAt := l.full.opensAt(node.Path); opensAt.After(now) && opensAt.After(opens) {
			opens = opensAt
		}
	}
	return opens
}
