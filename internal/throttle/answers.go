package throttle

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// answers completes the decisions of a store: it adds the grants, and notes what the decisions show about limits.
type answers struct {
	o       *LimiterOptions
	denials *denials
	usage   *Usage
	grants  *grants
	logOnce *logOnce
}

// take adds grants to the decisions of a store, and updates the caches and the local store.
func (a *answers) take(source string, asked time.Time, decisions []store.Decision, requests []store.Request) {
	for i := range decisions {
		d, request := &decisions[i], requests[i] // a Decision is large
		if d.Verdict == store.ExceedsCapacity {
			a.logOnce.exceedsCapacity(request, *d)
		}
		a.denials.learn(asked, source, request, d)
		a.usage.touch(request.Category)
	}
	a.grants.give(source, asked, decisions, requests)
	a.count(source, decisions)
}

// count counts decisions by their verdicts. Empty decisions do not count.
func (a *answers) count(source string, decisions []store.Decision) {
	var counts [store.Deferred + 1]int
	for i := range decisions {
		counts[decisions[i].Verdict]++
	}
	for verdict, n := range counts {
		if n > 0 && verdict > 0 {
			a.o.Metrics.Decision(store.Verdict(verdict).String(), source, n)
		}
	}
}

// deferred returns the decisions about events that cannot be decided now.
func (a *answers) deferred(requests []store.Request, err error) []store.Decision {
	decisions := make([]store.Decision, len(requests))
	for i := range decisions {
		decisions[i] = store.Decision{Verdict: store.Deferred, Err: err}
	}
	a.o.Metrics.Decision(store.Deferred.String(), SourceLocal, len(requests))
	return decisions
}
