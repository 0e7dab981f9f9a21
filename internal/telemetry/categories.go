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
	share int                   // values for unconfigured categories of one first level
	begin func(category string) // makes the series of a category that has got a value

	mu    sync.RWMutex
	known map[string]string // the label values, by themselves
	taken map[string]int    // by first level: values of unconfigured categories
}

func newCategories(limit int, configured []string) *categories {
	c := &categories{limit: limit, begin: func(string) {}, known: make(map[string]string), taken: make(map[string]int)}
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
			c.known[name] = name
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

// label returns the label value of a category, which is no part of a message. An event that cannot be read has the category "".
func (c *categories) label(category string) string {
	if category == "" || category == other || !utf8.ValidString(category) {
		return other
	}
	c.mu.RLock()
	label, known := c.known[category]
	isFull := len(c.known) >= c.limit
	c.mu.RUnlock()
	switch {
	case known:
		return label
	case isFull:
		return other
	}

	first, _, _ := strings.Cut(category, ".")
	c.mu.Lock()
	defer c.mu.Unlock()
	if label, known := c.known[category]; known {
		return label
	}
	if len(c.known) >= c.limit || c.taken[first] >= c.share {
		return other
	}
	// The clones keep the maps and the counters from holding whole messages in memory.
	c.taken[strings.Clone(first)]++
	label = strings.Clone(category)
	c.known[label] = label
	c.begin(label)
	return label
}

// labels is a set of label values. All other values are "other".
type labels interface{ label(value string) string }

// perCategory counts by category and one label of a set.
type perCategory struct {
	vec        *prometheus.CounterVec
	categories *categories
	values     labels
}

func (p perCategory) add(category, value string, n int) { p.addExample(category, value, n, "") }

// addExample counts n events. If trace is not empty, it is stored as an exemplar.
func (p perCategory) addExample(category, value string, n int, trace string) {
	counter := p.vec.WithLabelValues(p.categories.label(category), p.values.label(value))
	if example, adds := counter.(prometheus.ExemplarAdder); adds && trace != "" && n > 0 {
		example.AddWithExemplar(float64(n), exemplar(trace))
		return
	}
	addTo(counter, n)
}
