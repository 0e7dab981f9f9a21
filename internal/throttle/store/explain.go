package store

import (
	"context"
	"slices"
	"strings"
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
	Limits  []limits.Use  // of the category's path, from the root down; a full log has one limit with the time of its next slot
	Muted   *limits.Mute  // that would deny the event, whatever the limits say; nil: none
	Denial  *limits.Use   // the first limit that would deny the event now, from the root down; nil: the event would be admitted, or is muted
	OfKeys  []limits.Node // with limits of each key, if the request names no key: they were not asked

	Pair      PairState
	PairUntil time.Time // when the pair expires; PairUnderWay: when the lease of its event ends; PairWaits: when its event comes back
}

// PairState is what Redis knows of the pair of an event.
type PairState int64

// The states of a pair.
const (
	NoPair       PairState = iota // the event has no pair or none is recorded
	PairOpen                      // a firing event was posted
	PairUnderWay                  // a firing event is being delivered
	PairWaits                     // the firing event waits for a slot
)

// Explain returns what a decision about an event would find, without deciding. It takes, leases and records nothing.
func (r *Readings) Explain(ctx context.Context, request Request) (Explanation, error) {
	request.Cost = max(1, request.Cost)
	tree := r.d.rules().InForce
	books := newPairBooks(r.d.keys)
	books.of(request)
	buckets := newBucketIndex(r.d.keys, append([]string{r.d.keys.calls, r.d.keys.leased, r.d.keys.done, r.d.keys.message}, books.keys...)...)
	path := buckets.appendRoute([]any{request.Cost}, tree, tree.Route(request.Category, request.Key), inForce)
	eventKey, version := request.keyAndVersion()
	arguments := []any{r.d.settings.Lease.Microseconds(), r.d.settings.Retention.Microseconds(), eventKey, request.Pair, len(books.numbers)}
	arguments = append(buckets.appendBuckets(arguments), path...)
	const head = 6
	numbers, err := r.d.runner.RunNumbers(ctx, "asking about an event", lua.Explain, buckets.keys, arguments, head+2*len(buckets.limits))
	if err != nil {
		return Explanation{}, err
	}
	known := Explanation{At: time.UnixMicro(numbers[0]), Leased: recordedTime(numbers[1]), Done: recordedTime(numbers[2])}
	known.Pair, known.PairUntil = PairState(numbers[4]), recordedTime(numbers[5])
	known.Another = version != "" && numbers[3] != 0 && numbers[3] != request.Message.version()
	if denial := r.d.rules().Muted(request); denial != nil {
		known.Muted = denial.Mute.Mute
	}
	known.Limits = make([]limits.Use, len(buckets.limits))
	exceeds := false // a cost above a limit's capacity is found before any limit is counted
	for i, at := range buckets.limits {
		used, wait := numbers[head+2*i], numbers[head+2*i+1]
		known.Limits[i] = limits.UseOf(at.node, at.limit, used)
		if wait > 0 {
			next := known.At.Add(micros(wait)).UTC()
			known.Limits[i].Next = &next
		}
		if known.Muted == nil && (wait < 0 && !exceeds || wait > 0 && known.Denial == nil) {
			known.Denial, exceeds = &known.Limits[i], wait < 0
		}
	}
	if request.Key == "" {
		known.OfKeys = slices.DeleteFunc(tree.PathOfKey(request.Category, anyKey), func(n limits.Node) bool { return !n.OfKeys() })
	}
	return known, nil
}

// Unless returns the condition of "it would be sent now", such as ", unless its key has filled payments@key 2/1h": the limits that the
// request could not ask, because it names no key. "" stands for no condition.
func (e Explanation) Unless() string {
	if len(e.OfKeys) == 0 {
		return ""
	}
	var names []string
	for _, node := range e.OfKeys {
		names = append(names, node.Level+" "+node.Limits.String())
	}
	return ", unless its key has filled " + strings.Join(names, " or ")
}

func recordedTime(microseconds int64) time.Time {
	if microseconds == 0 {
		return time.Time{}
	}
	return time.UnixMicro(microseconds)
}
