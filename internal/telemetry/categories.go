package telemetry

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// categories bounds the values of the category label. Configured categories have a value each. Then other categories get one with their
// first event, first come, first served, until none is free. The categories below one first level take at most half of these values,
// however many categories a producer invents. All other categories share "other". A category keeps its value.
type categories struct {
	limit int
	share int // values for unconfigured categories of one first level

	mu    sync.RWMutex
	known map[string]struct{}
	taken map[string]int // by first level: values of unconfigured categories
}

func newCategories(limit int, configured []string) *categories {
	c := &categories{limit: limit, known: make(map[string]struct{}), taken: make(map[string]int)}
	c.configure(configured)
	c.share = max(1, (limit-len(c.known))/2)
	return c
}

// configure gives values to named categories while values are free, and returns the new categories.
func (c *categories) configure(names []string) (added []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		if _, known := c.known[name]; !known && name != other && len(c.known) < c.limit {
			c.known[name] = struct{}{}
			added = append(added, name)
		}
	}
	return added
}

func (c *categories) all() []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Sorted(maps.Keys(c.known))
}

// exactPaths returns the categories that rules name by their labels, also those of the rules for each key of a category.
func exactPaths(levels []string) (paths []string) {
	for _, level := range levels {
		if path, _, _ := strings.Cut(level, "@"); path != "global" && path != "category" && !strings.Contains(path, "*") {
			paths = append(paths, path)
		}
	}
	return paths
}

// label returns the label value of a category. An event that cannot be read has the category "".
func (c *categories) label(category string) string {
	if category == "" || category == other || !utf8.ValidString(category) {
		return other
	}
	c.mu.RLock()
	_, known := c.known[category]
	isFull := len(c.known) >= c.limit
	c.mu.RUnlock()
	switch {
	case known:
		return category
	case isFull:
		return other
	}

	first, _, _ := strings.Cut(category, ".")
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.known[category]; known {
		return category
	}
	if len(c.known) >= c.limit || c.taken[first] >= c.share {
		return other
	}
	// The clones keep the maps from holding whole messages in memory.
	c.taken[strings.Clone(first)]++
	c.known[strings.Clone(category)] = struct{}{}
	return category
}

// labels is a set of label values. All other values are "other".
type labels interface{ label(value string) string }

// perCategory counts by category and one label of a set. It caches counters by their labels, so that counting costs one map lookup
// and hashes no labels.
type perCategory struct {
	vec        *prometheus.CounterVec
	categories *categories
	values     labels
	closed     closedSet // the values, if their set is closed: each category has all of them from its first event on

	mu       sync.RWMutex
	counters map[categoryValue]prometheus.Counter
}

type categoryValue struct{ category, value string }

func newPerCategory(vec *prometheus.CounterVec, c *categories, values labels) *perCategory {
	p := &perCategory{
		vec:        vec,
		categories: c,
		values:     values,
		counters:   make(map[categoryValue]prometheus.Counter),
	}
	p.closed, _ = values.(closedSet)
	for _, value := range p.closed {
		p.resolve(categoryValue{other, value})
	}
	return p
}

func (p *perCategory) add(category, value string, n int) { p.addExample(category, value, n, "") }

// addExample counts n events. If trace is not empty, it is stored as an exemplar.
func (p *perCategory) addExample(category, value string, n int, trace string) {
	key := categoryValue{category, value}
	counter, ok := p.lookup(key)
	if !ok {
		// The keys are labels, not categories: an unbounded stream of category names must not fill the map.
		key = categoryValue{p.categories.label(category), p.values.label(value)}
		if counter, ok = p.lookup(key); !ok {
			for _, value := range p.closed {
				p.resolve(categoryValue{key.category, value})
			}
			counter = p.resolve(key)
		}
	}
	if example, adds := counter.(prometheus.ExemplarAdder); adds && trace != "" && n > 0 {
		example.AddWithExemplar(float64(n), exemplar(trace))
		return
	}
	addTo(counter, n)
}

func (p *perCategory) lookup(key categoryValue) (prometheus.Counter, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	counter, ok := p.counters[key]
	return counter, ok
}

// resolve makes the counter of labels. The clones keep it from holding whole messages in memory.
func (p *perCategory) resolve(key categoryValue) prometheus.Counter {
	key = categoryValue{strings.Clone(key.category), strings.Clone(key.value)}
	counter := p.vec.WithLabelValues(key.category, key.value)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counters[key] = counter
	return counter
}
