package telemetry

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// categories bounds the values of the category label. The configured categories have a value each, then the busiest ones. All others
// share "other". A value that was given stays.
type categories struct {
	limit int

	mu      sync.RWMutex
	known   map[string]struct{}
	busiest busiest // guarded by mu too
}

func newCategories(limit int, configured []string) *categories {
	c := &categories{limit: limit, known: make(map[string]struct{})}
	c.configure(configured)
	c.busiest.reserve(limit - len(c.known))
	return c
}

// configure gives values to named categories, as long as there are any, and returns those that are new.
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

// exactPaths returns those rules' labels that name a single category.
func exactPaths(levels []string) (paths []string) {
	for _, level := range levels {
		if level != "global" && level != "category" && !strings.Contains(level, "*") {
			paths = append(paths, level)
		}
	}
	return paths
}

// label returns the value for a category, of which there are n more events. The category of an event that cannot be read is empty.
func (c *categories) label(category string, n int) string {
	if category == "" || category == other || !utf8.ValidString(category) {
		return other
	}
	c.mu.RLock()
	_, known := c.known[category]
	free := c.limit - len(c.known)
	c.mu.RUnlock()
	switch {
	case known:
		return category
	case free <= 0 || n <= 0:
		return other
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range c.busiest.count(category, n, c.limit-len(c.known), time.Now()) {
		c.known[name] = struct{}{}
	}
	if _, known := c.known[category]; known {
		return category
	}
	return other
}

// labels is a set of label values. All other values are "other".
type labels interface {
	label(value string) string
	all() []string
}

// perCategory counts by category and one label of a set. It keeps the counters that it has resolved, so that counting costs one map
// lookup and hashes no labels.
type perCategory struct {
	vec        *prometheus.CounterVec
	categories *categories
	values     labels
	weigh      bool // what it counts tells which categories are the busiest

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
	for _, value := range values.all() {
		p.resolve(categoryValue{other, value})
	}
	return p
}

func (p *perCategory) add(category, value string, n int) { p.addExample(category, value, n, "") }

// addExample counts n, of which one has a trace, unless that is "".
func (p *perCategory) addExample(category, value string, n int, trace string) {
	key := categoryValue{category, value}
	counter, ok := p.lookup(key)
	if !ok {
		// Only labels become keys: an unbounded stream of category names must not fill the map.
		weight := 0
		if p.weigh {
			weight = n
		}
		key = categoryValue{p.categories.label(category, weight), p.values.label(value)}
		if counter, ok = p.lookup(key); !ok {
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

func (p *perCategory) resolve(key categoryValue) prometheus.Counter {
	counter := p.vec.WithLabelValues(key.category, key.value)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counters[key] = counter
	return counter
}
