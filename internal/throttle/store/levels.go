package store

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// LevelUse is the usage of a level's fullest limit.
type LevelUse struct {
	Level string
	Path  string // of the limit; "" for the root and if no slot is in use
	Limit limits.Limit
	Used  int64
	Paths int // number of paths of the level that have slots in use
}

// LevelUsage returns the usage of each level. It looks for the paths in use with SCAN, a right that workers do not need. A user without that
// right sees the paths that rules name.
func (r *Readings) LevelUsage(ctx context.Context) ([]LevelUse, error) {
	tree := r.Rules().InForce
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
	uses := Fullest(nodes, used)
	var levels []LevelUse
	for _, level := range tree.Levels() {
		levels = append(levels, uses[level.Level].Of(level))
	}
	return levels, nil
}

// Of returns the usage of a level. If no slot is in use, the level's first limit stands for all.
func (u LevelUse) Of(level limits.Node) LevelUse {
	u.Level = level.Level
	if u.Used == 0 {
		u.Limit = level.Limits[0]
	}
	return u
}

// Fullest finds for each level the path whose limit is fullest, by what is used of the limits of nodes. If nothing is used, the use has
// no limit.
func Fullest(nodes []limits.Node, used [][]int64) map[string]LevelUse {
	uses := make(map[string]LevelUse)
	for i, node := range nodes {
		use, inUse := uses[node.Level], false
		for l, limit := range node.Limits {
			// used/size, without dividing by a limit of 0
			if used[i][l]*cmp.Or(use.Limit.Capacity(), 1) > use.Used*limit.Capacity() {
				use.Path, use.Limit, use.Used = node.Path, limit, used[i][l]
			}
			inUse = inUse || used[i][l] > 0
		}
		if inUse {
			use.Paths++
		}
		uses[node.Level] = use
	}
	return uses
}

// pathsInUse lists the paths that have buckets.
func (r *Readings) pathsInUse(ctx context.Context) (map[string]bool, error) {
	names, err := r.runner.Names(ctx, "looking for limits in use")
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
