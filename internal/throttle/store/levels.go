package store

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// LevelUsage returns the usage of each level. It looks for the paths in use with SCAN, a right that workers do not need. A user without that
// right sees the paths that rules name.
func (r *Readings) LevelUsage(ctx context.Context) ([]LevelUse, error) {
	tree := r.d.rules().InForce
	paths, err := r.pathsInUse(ctx)
	if err != nil {
		return nil, err
	}
	for _, pattern := range tree.Patterns() {
		paths[pattern.String()] = paths[pattern.String()] || !strings.Contains(pattern.String(), "*")
	}
	nodes := slices.Clone(tree.Path(""))
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		for _, node := range tree.Path(path) {
			if paths[path] && node.Path == path {
				nodes = append(nodes, node)
			}
		}
	}
	used, err := r.Usage(ctx, nodes)
	if err != nil {
		return nil, err
	}
	return FullestOf(tree.Tree, nodes, used), nil
}

// LevelUse is the use of a level's fullest limit. If no slot is in use, it is the level's first limit, without a path.
type LevelUse struct {
	limits.Use
	Paths int // number of paths of the level that have slots in use
}

// FullestOf returns the use of each level of a tree, by what is used of the limits of nodes.
func FullestOf(tree *limits.Tree, nodes []limits.Node, used [][]int64) []LevelUse {
	levels := tree.Levels()
	uses, at := make([]LevelUse, len(levels)), make(map[string]*LevelUse)
	for i, level := range levels {
		uses[i].Use = limits.UseOf(limits.Node{Level: level.Level}, level.Limits[0], 0)
		at[level.Level] = &uses[i]
	}
	for i, node := range nodes {
		use, inUse := at[node.Level], false
		for l, limit := range node.Limits {
			// used/size, without dividing by a limit of 0
			if used[i][l] > 0 && (use.Used == 0 || used[i][l]*max(use.Size, 1) > use.Used*limit.Capacity()) {
				use.Use = limits.UseOf(node, limit, used[i][l])
			}
			inUse = inUse || used[i][l] > 0
		}
		if inUse {
			use.Paths++
		}
	}
	return uses
}

// pathsInUse lists the paths that have buckets.
func (r *Readings) pathsInUse(ctx context.Context) (map[string]bool, error) {
	names, err := r.d.runner.Names(ctx, "looking for limits in use")
	if err != nil && !strings.Contains(err.Error(), "NOPERM") {
		return nil, err
	}
	paths := make(map[string]bool)
	for _, name := range names {
		if path, isBucket := pathOfBucket(name); isBucket {
			paths[path] = true
		}
	}
	return paths, nil
}

// pathOfBucket reads the name of a bucket; see bucketsOf.
func pathOfBucket(name string) (path string, isBucket bool) {
	kind, rest, _ := strings.Cut(name, ":")
	counting, known := algorithm.Named(kind)
	if !known {
		return "", false
	}
	if !counting.Description().PerNode {
		_, rest, _ = strings.Cut(rest, ":")
	}
	return rest, event.ValidatePath(rest) == nil // otherwise a global bucket or another kind of key
}
