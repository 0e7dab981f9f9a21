package throttle

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// LevelUse is what is used of a level: at the place of it whose limit is fullest.
type LevelUse struct {
	Level string
	Path  string // of that place, "" for the root or if nothing is used
	Limit Limit
	Used  int64
	Paths int // places of the level at which something is kept
}

// LevelUsage tells what is used of each level. It looks for the places in use with SCAN, a right that workers do not need;
// a user without it sees the places that rules name.
func (r *Redis) LevelUsage(ctx context.Context) ([]LevelUse, error) {
	tree := r.rules().Tree
	paths, err := r.pathsInUse(ctx)
	if err != nil {
		return nil, err
	}
	for _, entry := range tree.rules.Entries() {
		paths[entry.Pattern.String()] = paths[entry.Pattern.String()] || !strings.Contains(entry.Pattern.String(), "*")
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

func fuller(use LevelUse, node Node, used []int64) LevelUse {
	inUse := false
	for l, limit := range node.Limits {
		candidate := limitUse{used: used[l], size: limit.capacity()}
		if candidate.fuller(limitUse{used: use.Used, size: cmp.Or(use.Limit.capacity(), 1)}) {
			use.Path, use.Limit, use.Used = node.Path, limit, used[l]
		}
		inUse = inUse || used[l] > 0
	}
	if inUse {
		use.Paths++
	}
	return use
}

// pathsInUse lists the places for which something is kept.
func (r *Redis) pathsInUse(ctx context.Context) (map[string]bool, error) {
	var node redis.Cmdable = r.client
	if cluster, isCluster := r.client.(*redis.ClusterClient); isCluster { // all keys of a deployment are in one place
		primary, err := cluster.MasterForKey(ctx, r.keys.calls)
		if err != nil {
			return nil, classify("finding the deployment's node", err)
		}
		node = primary
	}
	paths := make(map[string]bool)
	escaped := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(r.keys.prefix)
	keys := node.Scan(ctx, 0, escaped+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if path, isMeter := pathOfMeter(strings.TrimPrefix(keys.Val(), r.keys.prefix)); isMeter {
			paths[path] = true
		}
	}
	if err := keys.Err(); err != nil && !strings.Contains(err.Error(), "NOPERM") {
		return nil, classify("looking for limits in use", err)
	}
	return paths, nil
}

// pathOfMeter reads the name of a meter; see metersOf.
func pathOfMeter(name string) (path string, isMeter bool) {
	kind, rest, _ := strings.Cut(name, ":")
	at := slices.IndexFunc(algorithms, func(a algorithm) bool { return a.name == kind })
	if at < 0 {
		return "", false
	}
	if !algorithms[at].perNode {
		_, rest, _ = strings.Cut(rest, ":")
	}
	return rest, event.ValidatePath(rest) == nil // else a limit of everything, or a key of another kind
}
