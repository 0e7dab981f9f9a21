package store

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// LevelUsage returns the usage of each level. It looks for the paths in use with SCAN, a right that workers do not need. A user without that
// right sees the paths that rules name.
func (r *Readings) LevelUsage(ctx context.Context) ([]LevelUse, error) {
	tree := r.d.rules().InForce
	paths, keys, err := r.pathsInUse(ctx)
	if err != nil {
		return nil, err
	}
	for _, level := range tree.AllLevels() {
		if event.ValidatePath(level.Level) == nil && level.Level != limits.LevelGlobal && level.Level != limits.LevelCategory {
			paths[level.Level] = true
		}
	}
	nodes := slices.Clone(tree.Path(""))
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		for _, node := range tree.Path(path) {
			if node.Path == path {
				nodes = append(nodes, node)
			}
		}
	}
	used, err := r.Usage(ctx, nodes)
	if err != nil {
		return nil, err
	}
	uses := FullestOf(tree.Tree, nodes, used)
	for path, n := range keys {
		rule, _ := tree.KeyRule(path)
		if i := slices.IndexFunc(uses, func(use LevelUse) bool { return use.Level == rule.Level }); i >= 0 {
			uses[i].Keys += n
		}
	}
	return uses, nil
}

// LevelUse is the use of a level's fullest limit. If no slot is in use, it is the level's first limit, without a path. The use of one key
// is not known.
type LevelUse struct {
	limits.Use
	Paths  int  // number of paths of the level that have slots in use
	OfKeys bool // the level limits each key
	Keys   int  // number of its keys that have buckets
}

// FullestOf returns the use of each level of a tree, by what is used of the limits of nodes.
func FullestOf(tree *limits.Tree, nodes []limits.Node, used [][]int64) []LevelUse {
	levels := tree.Levels()
	uses, at := make([]LevelUse, len(levels)), make(map[string]*LevelUse)
	for i, level := range levels {
		uses[i].Use, uses[i].OfKeys = limits.UseOf(limits.Node{Level: level.Level}, level.Limits[0], 0), level.OfKeys()
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

// pathsInUse lists the paths that have buckets, and counts the keys of each path that have buckets.
func (r *Readings) pathsInUse(ctx context.Context) (paths map[string]bool, keys map[string]int, err error) {
	names, err := r.d.runner.Names(ctx, "looking for limits in use")
	if err != nil && !strings.Contains(err.Error(), "NOPERM") {
		return nil, nil, err
	}
	paths, keys = make(map[string]bool), make(map[string]int)
	places := make(map[string]bool) // a key may have several buckets
	for _, name := range names {
		place, isBucket := placeOfBucket(name)
		if !isBucket || places[place] {
			continue
		}
		places[place] = true
		if path, key := limits.SplitKey(place); key != "" {
			keys[path]++
		} else {
			paths[path] = true
		}
	}
	return paths, keys, nil
}

// Delivered lists the categories of the last recorded deliveries, the newest first. It reads at most `most` deliveries.
func (r *Readings) Delivered(ctx context.Context, most int64) (categories []string, err error) {
	var recorded []string
	err = r.d.runner.Read(ctx, "looking for delivered events", func(ctx context.Context, client redis.Cmdable) (err error) {
		recorded, err = client.ZRange(ctx, r.d.keys.done, -most, -1).Result()
		return err
	})
	seen := make(map[string]bool)
	for _, eventKey := range slices.Backward(recorded) {
		identity, _, _ := strings.Cut(eventKey, " ")
		category, _, _ := strings.Cut(identity, "#") // in front of the name of a part: see event.Identity
		if !seen[category] && event.ValidatePath(category) == nil {
			seen[category] = true
			categories = append(categories, category)
		}
	}
	return categories, err
}

// placeOfBucket reads the name of a bucket; see bucketsOf.
func placeOfBucket(name string) (place string, isBucket bool) {
	kind, rest, _ := strings.Cut(name, ":")
	counting, known := algorithm.Named(kind)
	if !known {
		return "", false
	}
	if !counting.Description().PerNode {
		_, rest, _ = strings.Cut(rest, ":")
	}
	path, _ := limits.SplitKey(rest)
	return rest, event.ValidatePath(path) == nil // otherwise a global bucket or another kind of key
}
