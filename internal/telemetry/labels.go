package telemetry

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// other is the label value of categories without a series of their own, and of values outside a closed set.
const other = "other"

// The closed sets of label values. They are part of the public contract: dashboards and alerts name them.
var (
	outcomes = closedSet{"sent", "dropped", "duplicate", "dead", "expired", "folded"}
	reasons  = closedSet{
		"bad_json", "bad_utf8", "empty", "too_large", "bad_category", "bad_field",
		"bad_cloudevent", "rejected",
	}
	verdicts = closedSet{
		"admitted", "denied", "exceeds_capacity", "reclaimed", "leased", "done", "duplicate", "unknown", "unpaired", "folded", "deferred",
	}
	sources = closedSet{"redis", "cache", "local"}
	results = closedSet{"ok", "rate_limited", "transient", "rejected", "misconfigured", "unknown"}

	summaryResults = closedSet{"sent", "given_up"}
	pairings       = closedSet{"paired", "unpaired"}
	waits          = closedSet{"slot", "pair", "redis", "body", "channel", "ready", "update", "steady"}
	refusals       = closedSet{"slot", "pair", "redis", "body", "channel", "part", "update", "steady"}
	paceBudgets    = closedSet{"channels", "workspace", "updates", "lookups"}
	places         = closedSet{"room", "dead_letters", "journal", "limits"}
)

// RoomReasons lists what events wait for in the room. Events that are ready wait for a worker.
func RoomReasons() []string { return slices.Clone(waits) }

// PaceBudgets lists the budgets of requests to Slack that have gauges.
func PaceBudgets() []string { return slices.Clone(paceBudgets) }

// A closedSet is short, so that looking through it costs less than hashing.
type closedSet []string

// label returns value if it is in the set. Any other value is a mistake of the caller. It counts as "other", which shows the mistake
// and costs one series.
func (set closedSet) label(value string) string {
	if i := slices.Index(set, value); i >= 0 {
		return set[i]
	}
	return other
}

// growingSet is a set of label values that can grow: operators add rules.
type growingSet struct {
	mu     sync.RWMutex
	values closedSet
}

func (set *growingSet) label(value string) string {
	set.mu.RLock()
	defer set.mu.RUnlock()
	return set.values.label(value)
}

// add adds values up to maxLevels, and returns the new values.
func (set *growingSet) add(values []string) (added []string) {
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, value := range values {
		if !slices.Contains(set.values, value) && len(set.values) < maxLevels {
			set.values = append(set.values, value)
			added = append(added, value)
		}
	}
	return added
}

func (set *growingSet) all() []string {
	set.mu.RLock()
	defer set.mu.RUnlock()
	return slices.Clone(set.values)
}

// maxLevels bounds the rules that have series of their own over the life of a process; more count as "other".
const maxLevels = 1000

// closedCounter counts by one label with a closed set of values.
type closedCounter struct {
	vec    *prometheus.CounterVec
	values closedSet
}

func newClosedCounter(vec *prometheus.CounterVec, values closedSet) closedCounter {
	c := closedCounter{vec, values}
	for _, value := range values {
		c.add(value, 0)
	}
	return c
}

func (c closedCounter) add(value string, n int) {
	addTo(c.vec.WithLabelValues(c.values.label(value)), n)
}
