package telemetry

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// other is the category label of every event whose category has no series of its own, and the
// stand-in for a value that is not in a closed set.
const other = "other"

// The closed sets of label values. They are part of the public contract: dashboards and alerts
// name them.
var (
	outcomes = closedSet{"sent", "dropped", "duplicate", "dead", "expired"}
	reasons  = closedSet{
		"bad_json", "bad_utf8", "empty", "too_large", "bad_category", "bad_field",
		"bad_cloudevent", "slack_rejected",
	}
	verdicts = closedSet{"admitted", "denied", "repeated"}
	sources  = closedSet{"redis", "cache", "local"}
	results  = closedSet{"ok", "rate_limited", "transient", "rejected", "misconfigured", "unknown"}
)

// A closedSet is short, so that looking through it costs less than hashing.
type closedSet []string

// label returns value if it is in the set. Anything else is a mistake of the caller: it is
// counted as "other", which shows the mistake at the price of one series.
func (set closedSet) label(value string) string {
	if slices.Contains(set, value) {
		return value
	}
	return other
}

// closedCounter counts by one label with a closed set of values.
type closedCounter struct {
	vec      *prometheus.CounterVec
	values   closedSet
	counters map[string]prometheus.Counter // never changes, so it needs no lock
}

func newClosedCounter(vec *prometheus.CounterVec, values closedSet) closedCounter {
	c := closedCounter{vec, values, make(map[string]prometheus.Counter, len(values))}
	for _, value := range values {
		c.counters[value] = vec.WithLabelValues(value)
	}
	return c
}

func (c closedCounter) add(value string, n int) {
	counter, ok := c.counters[value]
	if !ok {
		counter = c.vec.WithLabelValues(c.values.label(value))
	}
	addTo(counter, n)
}
