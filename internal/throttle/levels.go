package throttle

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// LevelUse is what is used of a level: at its path whose limit is fullest.
type LevelUse struct {
	Level string
	Path  string // that path, "" for the root or if nothing is used
	Limit limits.Limit
	Used  int64
	Paths int // paths of the level at which something is kept
}

// LevelUsage tells what is used of each level. It looks for the paths in use with SCAN, a right that workers do not need;
// a user without it sees the paths that rules name.
func (r *Redis) LevelUsage(ctx context.Context) ([]LevelUse, error) {
	tree := r.rules().tree
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
	uses := make(map[string]LevelUse)
	for batch := range slices.Chunk(nodes, MaxBatch) {
		used, err := r.Usage(ctx, batch)
		if err != nil {
			return nil, err
		}
		for i, node := range batch {
			uses[node.Level] = fuller(uses[node.Level], node, used[i])
		}
	}
	var levels []LevelUse
	for _, level := range tree.Levels() {
		use := uses[level.Level]
		use.Level = level.Level
		if use.Limit.Count == 0 {
			use.Limit = level.Limits[0]
		}
		levels = append(levels, use)
	}
	return levels, nil
}

func fuller(use LevelUse, node limits.Node, used []int64) LevelUse {
	inUse := false
	for l, limit := range node.Limits {
		candidate := limitUse{used: used[l], size: limit.Capacity()}
		if candidate.fuller(limitUse{used: use.Used, size: cmp.Or(use.Limit.Capacity(), 1)}) {
			use.Path, use.Limit, use.Used = node.Path, limit, used[l]
		}
		inUse = inUse || used[l] > 0
	}
	if inUse {
		use.Paths++
	}
	return use
}

// pathsInUse lists the paths for which something is kept.
func (r *Redis) pathsInUse(ctx context.Context) (map[string]bool, error) {
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
	algorithm, known := limits.AlgorithmNamed(kind)
	if !known {
		return "", false
	}
	if !algorithms[algorithm].perNode {
		_, rest, _ = strings.Cut(rest, ":")
	}
	return rest, event.ValidatePath(rest) == nil // else a limit of everything, or a key of another kind
}
