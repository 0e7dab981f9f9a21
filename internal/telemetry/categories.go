package telemetry

import (
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// categories bounds the values of the category label: the first limit categories seen have a
// value each, all others share "other".
type categories struct {
	limit int

	mu    sync.RWMutex
	known map[string]struct{}
}

func newCategories(limit int) *categories {
	return &categories{limit: limit, known: make(map[string]struct{})}
}

// label returns the value for a category. An empty category is one that could not be read.
func (c *categories) label(category string) string {
	if category == "" || category == other || !utf8.ValidString(category) {
		return other
	}
	c.mu.RLock()
	_, known := c.known[category]
	full := len(c.known) >= c.limit
	c.mu.RUnlock()
	if known {
		return category
	}
	if full {
		return other
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.known[category]; !known {
		if len(c.known) >= c.limit {
			return other
		}
		c.known[category] = struct{}{}
	}
	return category
}

// labels is a set of label values that others are "other" of.
type labels interface {
	label(value string) string
	all() []string
}

// perCategory counts by category and one label of a set. It keeps the counters it has resolved,
// so that counting costs one map lookup instead of hashing every label.
type perCategory struct {
	vec        *prometheus.CounterVec
	categories *categories
	values     labels

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

func (p *perCategory) add(category, value string, n int) {
	key := categoryValue{category, value}
	counter, ok := p.lookup(key)
	if !ok {
		// Only labels become keys: an unbounded stream of category names must not fill the map.
		key = categoryValue{p.categories.label(category), p.values.label(value)}
		if counter, ok = p.lookup(key); !ok {
			counter = p.resolve(key)
		}
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
