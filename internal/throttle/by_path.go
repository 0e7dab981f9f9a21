package throttle

import (
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// maxPaths bounds a byPath. The paths of one first level take at most half of it, so invented categories do not hide other categories.
const maxPaths = 1000

// byPath has values by category, or by the path of a limit.
type byPath[V any] struct {
	values map[string]V
	shares map[string]int // number of paths, by first level
}

func newByPath[V any]() byPath[V] {
	return byPath[V]{values: make(map[string]V), shares: make(map[string]int)}
}

// hasRoom reports whether there is room for a new path.
func (b byPath[V]) hasRoom(path string) bool {
	return len(b.values) < maxPaths && b.shares[event.FirstLevel(path)] < maxPaths/2
}

// put stores the value of a path if the path has one, or if there is room. It reports whether it has stored the value.
func (b byPath[V]) put(path string, value V) bool {
	if _, found := b.values[path]; !found {
		if !b.hasRoom(path) {
			return false
		}
		path = strings.Clone(path) // it may be part of a large body
		b.shares[event.FirstLevel(path)]++
	}
	b.values[path] = value
	return true
}

func (b byPath[V]) remove(path string) {
	if _, found := b.values[path]; !found {
		return
	}
	delete(b.values, path)
	first := event.FirstLevel(path)
	if b.shares[first]--; b.shares[first] == 0 {
		delete(b.shares, first)
	}
}
