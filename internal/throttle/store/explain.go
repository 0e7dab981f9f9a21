package store

import (
	"context"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/lua"
)

// Explanation is what Redis knows of an event, and what the limits would answer to one more of its category and cost.
type Explanation struct {
	At      time.Time     // by the deployment's clock
	Leased  time.Time     // end of the event's current or last lease; zero: it was not admitted or is forgotten
	Done    time.Time     // when the record of its delivery expires; zero: no delivery is recorded
	Another bool          // the record is of another message with the event's identity
	Limits  []Explanatory // of the category's path, from the root down

	Pair      PairState
	PairUntil time.Time // it expires; PairUnderWay: the lease of its event ends; PairWaits: its event comes back
}

// PairState is what Redis knows of the pair of an event.
type PairState int64

// The states of a pair.
const (
	NoPair       PairState = iota // the event has no pair or none is recorded
	PairOpen                      // the message of a firing event is out
	PairUnderWay                  // it is being delivered
	PairWaits                     // the firing event waits for a slot
)

// Explanatory is the state of one limit.
type Explanatory struct {
	Node    limits.Node
	Limit   limits.Limit
	Used    int64
	Wait    time.Duration // until the cost fits; 0: it fits now or another limit of this log is full
	Exceeds bool          // the cost never fits
}

// Denies tells whether the limit would deny the event now.
func (e Explanatory) Denies() bool { return e.Exceeds || e.Wait > 0 }

// Denial returns the first limit that would deny the event now, from the root down; nil if the event would be admitted.
func (e Explanation) Denial() *Explanatory {
	first := slices.IndexFunc(e.Limits, func(l Explanatory) bool { return l.Exceeds }) // decided before any limit is counted
	if first < 0 {
		first = slices.IndexFunc(e.Limits, Explanatory.Denies)
	}
	if first < 0 {
		return nil
	}
	return &e.Limits[first]
}

// Explain returns what a decision about an event would find, without deciding. It takes, leases and records nothing.
func (r *Readings) Explain(ctx context.Context, request Request) (Explanation, error) {
	tree := r.Rules().InForce
	books := newPairBooks(r.keys)
	books.of(request)
	buckets := newBucketIndex(r.keys, append([]string{r.keys.calls, r.keys.leased, r.keys.done, r.keys.message}, books.keys...)...)
	path := buckets.appendRoute([]any{max(1, request.Cost)}, tree, tree.Route(request.Category), inForce)
	eventKey, version := request.keyAndVersion()
	arguments := []any{r.settings.Lease.Microseconds(), r.settings.Retention.Microseconds(), eventKey, request.Pair, len(books.numbers)}
	arguments = append(buckets.appendBuckets(arguments), path...)
	const head = 6
	numbers, err := r.runner.RunNumbers(ctx, "asking about an event", lua.Explain, buckets.keys, arguments, head+2*len(buckets.limits))
	if err != nil {
		return Explanation{}, err
	}
	known := Explanation{At: time.UnixMicro(numbers[0]), Leased: recordedTime(numbers[1]), Done: recordedTime(numbers[2])}
	known.Pair, known.PairUntil = PairState(numbers[4]), recordedTime(numbers[5])
	known.Another = version != "" && numbers[3] != 0 && numbers[3] != request.Message.version()
	for i, at := range buckets.limits {
		used, wait := numbers[head+2*i], numbers[head+2*i+1]
		known.Limits = append(known.Limits, Explanatory{Node: at.node, Limit: at.limit, Used: used, Exceeds: wait < 0, Wait: micros(max(0, wait))})
	}
	return known, nil
}

func recordedTime(microseconds int64) time.Time {
	if microseconds == 0 {
		return time.Time{}
	}
	return time.UnixMicro(microseconds)
}
