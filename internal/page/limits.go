package page

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// maxLimits is how many paths are rendered. A deployment may have one path per category.
const maxLimits = 200

type limitList struct {
	folded[path]

	Filter string
	Hidden int  // number of paths beyond maxLimits
	Known  bool // a worker has reported the use of its limits
}

type path struct {
	Path    string
	Limits  []status.Limit // the fullest first
	Changes []status.Change
}

// listLimits lists the limits of the paths that contain a text: first the global limits, then the fullest. It includes the paths above,
// since their limits deny too.
func listLimits(limits []status.Limit, changes []status.Change, filter string) limitList {
	paths := make(map[string]*path)
	at := func(name string) *path {
		if paths[name] == nil {
			paths[name] = &path{Path: name}
		}
		return paths[name]
	}
	for _, limit := range slices.SortedFunc(slices.Values(limits), status.CompareLimits) {
		at(limit.Path).Limits = append(at(limit.Path).Limits, limit)
	}
	for _, change := range changes {
		at(change.LimitPath()).Changes = append(at(change.LimitPath()).Changes, change)
	}
	wanted := make(map[string]bool)
	for name := range paths {
		if strings.Contains(name, filter) {
			wanted[""], wanted[name] = true, true
			for above := range event.Prefixes(name) {
				wanted[above] = true
			}
		}
	}
	var all []path
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		if wanted[name] {
			all = append(all, *paths[name])
		}
	}
	slices.SortStableFunc(all, comparePaths)
	list := limitList{Filter: filter, Hidden: max(0, len(all)-maxLimits)}
	all = all[:len(all)-list.Hidden]
	top := topLimits
	if filter != "" {
		top = maxLimits
	}
	list.folded = fold(all, top)
	return list
}

// rank orders kinds of paths: the global one, those with a used limit, all others.
func (p path) rank() int {
	switch {
	case p.Path == "":
		return 0
	case len(p.Limits) > 0:
		return 1
	}
	return 2
}

// comparePaths orders paths: the global one, then by their fullest limits. Paths without a used limit are last.
func comparePaths(a, b path) int {
	if order := cmp.Compare(a.rank(), b.rank()); order != 0 || len(a.Limits) == 0 {
		return order
	}
	return status.CompareLimits(a.Limits[0], b.Limits[0])
}
