package throttle

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// PathUse is the usage of one limit of one path.
type PathUse struct {
	Node  limits.Node
	Limit limits.Limit
	Used  int64
	Opens time.Time // when its next slot opens; zero: a slot is open or the time is unknown
}

// pathUses lists the limits of nodes that have slots in use.
func pathUses(nodes []limits.Node, used [][]int64) (uses []PathUse) {
	for i, node := range nodes {
		for l, limit := range node.Limits {
			if used[i][l] > 0 {
				uses = append(uses, PathUse{Node: node, Limit: limit, Used: used[i][l]})
			}
		}
	}
	return uses
}

// PathUses lists the limits that have slots in use, as of the last second, on the paths that this instance decides about.
func (l *Limiter) PathUses() []PathUse {
	u, now := l.usage, time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	uses := make([]PathUse, len(u.latest))
	for i, use := range u.latest {
		if opens := l.full.opensAt(use.Node.Path); opens.After(now) && use.Used >= use.Limit.Capacity() {
			use.Opens = opens
		}
		uses[i] = use
	}
	return uses
}

// NodeOf returns the node where the rule of a level limits a category.
func (l *Limiter) NodeOf(category, level string) (node limits.Node, found bool) {
	for _, node := range l.o.Redis.Rules().InForce.Path(category) {
		if node.Level == level {
			return node, true
		}
	}
	return limits.Node{}, false
}
