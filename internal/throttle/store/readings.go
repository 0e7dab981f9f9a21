package store

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/lua"
)

// LevelUsage returns the usage of each level. It looks for the paths in use with SCAN, a right that workers do not need. For a user without
// that right it reads the paths that rules name and the reported paths, which are those that workers know; nil: not every worker reports its paths.
func (r *Readings) LevelUsage(ctx context.Context, reported []string) ([]LevelUse, error) {
	tree := r.d.rules().InForce
	paths, keys, mayScan, err := r.pathsInUse(ctx)
	if err != nil {
		return nil, err
	}
	if !mayScan {
		for _, path := range reported {
			paths[path] = true
		}
	}
	for _, level := range tree.AllLevels() {
		if namesPath(level.Level) {
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
	ofNodes, err := r.Uses(ctx, nodes)
	if err != nil {
		return nil, err
	}
	uses := FullestOf(tree.Tree, ofNodes)
	for path, n := range keys {
		rule, _ := tree.KeyRule(path)
		if i := slices.IndexFunc(uses, func(use LevelUse) bool { return use.Level == rule.Level }); i >= 0 {
			uses[i].Keys += n
		}
	}
	for i, use := range uses {
		uses[i].Unknown = !mayScan && (use.OfKeys || reported == nil && use.Level != limits.LevelGlobal && !namesPath(use.Level))
	}
	return uses, nil
}

// namesPath reports whether a level is the rule of one path.
func namesPath(level string) bool {
	return event.ValidatePath(level) == nil && level != limits.LevelGlobal && level != limits.LevelCategory
}

// LevelUse is the use of a level's fullest limit, without the time of its next slot. If no slot is in use, it is the level's first limit,
// without a path. The use of one key is not known.
type LevelUse struct {
	limits.Use
	Paths   int  // number of paths of the level that have slots in use
	OfKeys  bool // the level limits each key
	Keys    int  // number of its keys that have buckets
	Unknown bool // the paths or keys of the level could not be looked for, so the numbers of a level of many paths or keys say nothing
}

// FullestOf returns the use of each level of a tree, by the uses of the limits of each node.
func FullestOf(tree *limits.Tree, ofNodes [][]limits.Use) []LevelUse {
	levels := tree.Levels()
	uses, at := make([]LevelUse, len(levels)), make(map[string]*LevelUse)
	for i, level := range levels {
		uses[i].Use, uses[i].OfKeys = limits.UseOf(limits.Node{Level: level.Level}, level.Limits[0], 0), level.OfKeys()
		at[level.Level] = &uses[i]
	}
	for _, ofNode := range ofNodes {
		inUse := false
		for _, found := range ofNode {
			use := at[found.Level]
			// used/size, without dividing by a limit of 0
			if found.Used > 0 && (use.Used == 0 || found.Used*max(use.Size, 1) > use.Used*found.Size) {
				use.Use, use.Next = found, nil
			}
			inUse = inUse || found.Used > 0
		}
		if inUse {
			at[ofNode[0].Level].Paths++
		}
	}
	return uses
}

// pathsInUse lists the paths that have buckets, and counts the keys of each path that have buckets, if the user may SCAN.
func (r *Readings) pathsInUse(ctx context.Context) (paths map[string]bool, keys map[string]int, mayScan bool, err error) {
	names, err := r.d.runner.Names(ctx, "looking for limits in use")
	mayScan = err == nil
	if err != nil && !strings.Contains(err.Error(), "NOPERM") {
		return nil, nil, false, err
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
	return paths, keys, mayScan, nil
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

// Explanation is what Redis knows of an event, and what the limits would answer to one more of its category and cost.
type Explanation struct {
	At      time.Time     // by the deployment's clock
	Leased  time.Time     // end of the event's current or last lease; zero: it was not admitted or is forgotten
	Done    time.Time     // when the record of its delivery expires; zero: no delivery is recorded
	Another bool          // the record is of another message with the event's identity
	Fold    *Fold         // of a folded event, which is recorded as a delivered event is; nil for any other event
	Limits  []limits.Use  // of the category's path, from the root down; a full log has one limit with the time of its next slot
	Muted   *limits.Mute  // that would deny the event, whatever the limits say; nil: none
	Denial  *limits.Use   // the first limit that would deny the event now, from the root down; nil: the event would be admitted, or is muted
	OfKeys  []limits.Node // with limits of each key, if the request names no key: they were not asked

	Pair      PairState
	PairUntil time.Time // when the pair expires; PairUnderWay: when the lease of its event ends; PairWaits: when its event comes back
}

// PairState is what Redis knows of the pair of an event.
type PairState int64

// The states of a pair.
const (
	NoPair       PairState = iota // the event has no pair or none is recorded
	PairOpen                      // a firing event was posted
	PairUnderWay                  // a firing event is being delivered
	PairWaits                     // the firing event waits for a slot
)

// Explain returns what a decision about an event would find, without deciding. It takes, leases and records nothing.
func (r *Readings) Explain(ctx context.Context, request Request) (Explanation, error) {
	request.Cost = max(1, request.Cost)
	tree := r.d.rules().InForce
	books := r.d.keys.newPairBooks(r.d.keys.calls, r.d.keys.leased, r.d.keys.done, r.d.keys.message, r.d.keys.taken)
	books.of(request)
	buckets := newBucketIndex(r.d.keys, books.levels.keys...)
	path := buckets.appendRoute([]any{request.Cost}, tree.Route(request.Category, request.Key), inForce)
	eventKey, version := request.keyAndVersion()
	arguments := []any{r.d.settings.Lease.Microseconds(), r.d.settings.Retention.Microseconds(), eventKey, request.Pair, len(books.levels.firsts)}
	arguments = append(buckets.appendBuckets(arguments), path...)
	const head = 8
	numbers, err := r.d.runner.RunNumbers(ctx, "asking about an event", lua.Explain, buckets.keys, arguments, head+2*len(buckets.limits))
	if err != nil {
		return Explanation{}, err
	}
	known := Explanation{At: time.UnixMicro(numbers[0]), Leased: recordedTime(numbers[1]), Done: recordedTime(numbers[2])}
	known.Pair, known.PairUntil = PairState(numbers[6]), recordedTime(numbers[7])
	if numbers[4] > 0 && !known.Done.IsZero() {
		known.Fold = newFold(numbers[4], numbers[5])
	}
	known.Another = version != "" && numbers[3] != 0 && numbers[3] != request.Message.version()
	if denial := r.d.rules().Muted(request); denial != nil {
		known.Muted = denial.Mute.Mute
	}
	known.Limits = make([]limits.Use, len(buckets.limits))
	exceeds := false // a cost above a limit's capacity is found before any limit is counted
	for i, at := range buckets.limits {
		wait := numbers[head+2*i+1]
		known.Limits[i] = useOf(at.node, at.limit, numbers[head+2*i:], known.At)
		if known.Muted == nil && (wait < 0 && !exceeds || wait > 0 && known.Denial == nil) {
			known.Denial, exceeds = &known.Limits[i], wait < 0
		}
	}
	if request.Key == "" {
		known.OfKeys = slices.DeleteFunc(tree.PathOfKey(request.Category, anyKey), func(n limits.Node) bool { return !n.OfKeys() })
	}
	return known, nil
}

// Unless returns the condition of "it would be sent now", such as ", unless its key has filled payments@key 2/1h": the limits that the
// request could not ask, because it names no key. "" stands for no condition.
func (e Explanation) Unless() string {
	if len(e.OfKeys) == 0 {
		return ""
	}
	var names []string
	for _, node := range e.OfKeys {
		names = append(names, node.Level+" "+node.Limits.String())
	}
	return ", unless its key has filled " + strings.Join(names, " or ")
}

func recordedTime(microseconds int64) time.Time {
	if microseconds == 0 {
		return time.Time{}
	}
	return time.UnixMicro(microseconds)
}
