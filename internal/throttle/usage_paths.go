package throttle

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// PathUse is what is used of one limit of one path.
type PathUse struct {
	Node  limits.Node
	Limit limits.Limit
	Used  int64
	Opens time.Time // when its next slot opens; zero: one is open, or it is not known
}

// pathUses lists the limits of nodes of which something is used.
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

// PathUses lists the limits of which something is used, as of the last second, on the paths about which this instance decides.
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

// NodeOf is where the rule of a level limits a category.
func (l *Limiter) NodeOf(category, level string) (node limits.Node, found bool) {
	for _, node := range l.o.Redis.rules().tree.Path(category) {
		if node.Level == level {
			return node, true
		}
	}
	return limits.Node{}, false
}
