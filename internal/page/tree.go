package page

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// maxLimits is how many limits are shown. A deployment may have as many as it has categories.
const maxLimits = 200

// tree is the limits that are shown.
type tree struct {
	Filter   string
	Branches []*branch
	Hidden   int // limits that are not shown, since there are too many
}

// branch is a path with its limits, and what is shown of the paths below it.
type branch struct {
	Path    string
	Limits  []status.Limit
	Changes []status.Change
	Below   []*branch
	use     float64 // of the fullest limit here and below
}

// grow makes a tree of the limits whose paths contain a text, the fullest first. What stands above such a path is shown too.
func grow(all []status.Limit, changes []status.Change, filter string) tree {
	filter = strings.ToLower(strings.TrimSpace(filter))
	fullestFirst := slices.SortedFunc(slices.Values(all), status.CompareLimits)
	t := tree{Filter: filter}
	branches := make(map[string]*branch)
	for _, limit := range fullestFirst {
		if !strings.Contains(limit.Path, filter) {
			continue
		}
		if branches[limit.Path] == nil && len(branches) >= maxLimits {
			t.Hidden++
			continue
		}
		sprout(branches, limit.Path)
	}
	for _, change := range changes {
		if strings.Contains(change.Path, filter) && len(branches) < 2*maxLimits {
			sprout(branches, change.Path)
			branches[change.Path].Changes = append(branches[change.Path].Changes, change)
		}
	}
	for _, limit := range fullestFirst {
		if b := branches[limit.Path]; b != nil {
			b.Limits = append(b.Limits, limit)
			b.use = max(b.use, limit.Share())
		}
	}
	t.Branches = join(branches)
	return t
}

// sprout adds a path and the paths above it.
func sprout(branches map[string]*branch, path string) {
	for _, above := range append([]string{"", path}, slices.Collect(event.Prefixes(path))...) {
		if branches[above] == nil {
			branches[above] = &branch{Path: above}
		}
	}
}

// join puts each branch that has something to show below the next one above it, and returns those that have none above.
func join(branches map[string]*branch) []*branch {
	lowestFirst := slices.SortedFunc(maps.Keys(branches), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	var top []*branch
	for _, path := range lowestFirst {
		b := branches[path]
		slices.SortStableFunc(b.Below, func(x, y *branch) int { return cmp.Or(cmp.Compare(y.use, x.use), cmp.Compare(x.Path, y.Path)) })
		above, found := parent(branches, path)
		switch {
		case !found && len(b.Limits)+len(b.Changes) == 0:
			top = append(top, b.Below...)
		case !found:
			top = append(top, b)
		case len(b.Limits)+len(b.Changes) == 0:
			above.add(b.Below...)
		default:
			above.add(b)
		}
	}
	return top
}

// add puts branches below this one.
func (b *branch) add(below ...*branch) {
	for _, lower := range below {
		b.Below = append(b.Below, lower)
		b.use = max(b.use, lower.use)
	}
}

// parent is the branch next above a path.
func parent(branches map[string]*branch, path string) (*branch, bool) {
	if path == "" {
		return nil, false
	}
	above := path[:max(0, strings.LastIndexByte(path, '.'))]
	return branches[above], true
}
