package throttle

import (
	"cmp"
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// usesKept is how long uses are told without asking Redis again: as a rule until the usage metrics are read again.
const usesKept = 2 * usageEvery

// knownUses is what was used of the limits on the path of a category.
type knownUses struct {
	asked time.Time
	tree  *routes
	uses  []limits.Usage
}

// learn takes note of what is used, by the paths of nodes, and returns the uses of a category.
func (u *usage) learn(category string, asked time.Time, tree *routes, byPath map[string][]int64) []limits.Usage {
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

func (u *usage) find(category string, tree *routes, now time.Time) ([]limits.Usage, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	known := u.told[category]
	return known.uses, known.tree == tree && now.Sub(known.asked) < usesKept
}

// Uses tells what is used of the limits on a category's path, from the root down, as of a moment ago; nothing if Redis cannot be asked. It
// asks Redis unless KnownUses tells something.
func (l *Limiter) Uses(ctx context.Context, category string) []limits.Usage {
	asked, tree := time.Now(), l.o.Redis.rules().tree
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

// KnownUses is what Uses tells without asking Redis.
func (l *Limiter) KnownUses(category string) (told []limits.Usage, known bool) {
	return l.usage.find(category, l.o.Redis.rules().tree, time.Now())
}

// LimitOf is what a level allows a category, as configured; "" if the category has no limit at that level.
func (l *Limiter) LimitOf(category, level string) string {
	if node, found := l.NodeOf(category, level); found {
		return node.Limits.String()
	}
	return ""
}

// Opens tells when the next slot of a category opens, as far as the latest denials told; the zero time if one is open.
func (l *Limiter) Opens(category string) time.Time {
	var opens time.Time
	now := time.Now()
	for _, node := range l.o.Redis.rules().tree.Path(category) {
		if opensAt := l.full.opensAt(node.Path); opensAt.After(now) && opensAt.After(opens) {
			opens = opensAt
		}
	}
	return opens
}
