package simulate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Limiter is the Evaluator that decides as Redis does. It uses the limiter of a worker that is alone.
type Limiter struct {
	memory   *store.Memory
	now      time.Time
	oneByOne bool
}

// deliveryLease is longer than a simulated delivery, which takes no time.
const deliveryLease = time.Minute

// NewLimiter returns a limiter without admissions. It remembers an identity for the retention after its event was sent, and a pair for
// pairTTL.
func NewLimiter(tree *limits.Tree, retention, pairTTL time.Duration) *Limiter {
	l := &Limiter{oneByOne: limitsUnderWay(tree)}
	settings := store.Settings{Tree: tree, Lease: deliveryLease, Retention: retention, PairTTL: pairTTL}
	l.memory = store.NewMemory(settings, func() time.Time { return l.now }, nil)
	l.memory.KeepPairs()
	return l
}

// limitsUnderWay reports whether a limit bounds the deliveries under way at once.
func limitsUnderWay(tree *limits.Tree) bool {
	return slices.ContainsFunc(tree.Levels(), func(node limits.Node) bool {
		return slices.ContainsFunc(node.Limits, func(limit limits.Limit) bool {
			return limit.Description().FollowsDelivery()
		})
	})
}

// Evaluate implements [Evaluator]. Events of one instant are evaluated together, so that all of them count at that instant. Resolved events
// follow, as in a worker. With an inflight limit, each delivery finishes before the next event is evaluated.
func (l *Limiter) Evaluate(ctx context.Context, events []Event) ([]Verdict, error) {
	l.now = events[0].At
	var limited, resolving []int // places in events
	for i, e := range events {
		if e.Resolves {
			resolving = append(resolving, i)
		} else {
			limited = append(limited, i)
		}
	}
	together := max(1, len(limited))
	if l.oneByOne {
		together = 1
	}
	verdicts := make([]Verdict, len(events))
	for places := range slices.Chunk(limited, together) {
		ruling, err := l.memory.Decide(ctx, requests(events, places))
		if err != nil {
			return nil, fmt.Errorf("deciding about events: %w", err)
		}
		if err := l.settle(ctx, ruling.Decisions, verdicts, places); err != nil {
			return nil, err
		}
	}
	resolutions, err := l.memory.Resolve(ctx, requests(events, resolving))
	if err != nil {
		return nil, fmt.Errorf("asking for what is resolved: %w", err)
	}
	return verdicts, l.settle(ctx, resolutions, verdicts, resolving)
}

// settle sets the verdicts on the events at these places, and finishes the deliveries of admitted events.
func (l *Limiter) settle(ctx context.Context, decisions []store.Decision, verdicts []Verdict, places []int) error {
	var leases []store.Lease
	for i, decision := range decisions {
		verdict := &verdicts[places[i]]
		switch decision.Verdict {
		case store.Admitted:
			leases = append(leases, decision.Lease)
			verdict.Outcome = Sent
		case store.Denied, store.ExceedsCapacity:
			*verdict = Verdict{Outcome: Dropped, Level: decision.Node.Level}
		case store.Duplicate, store.Done, store.Leased, store.Reclaimed:
			// Each event comes once, so another event had its identity.
			verdict.Outcome = Duplicate
		case store.Unpaired:
			*verdict = Verdict{Outcome: Dropped, Level: store.LevelUnpaired}
		default:
			return fmt.Errorf("deciding about events: unexpected verdict %s", decision.Verdict)
		}
	}
	if len(leases) == 0 {
		return nil
	}
	if _, err := l.memory.Finish(ctx, leases); err != nil {
		return fmt.Errorf("finishing deliveries: %w", err)
	}
	return nil
}

// requests returns the requests that a worker makes about the events at these places.
func requests(events []Event, places []int) []store.Request {
	asked := make([]store.Request, len(places))
	for i, place := range places {
		e := events[place]
		asked[i] = store.Request{
			ID:       e.Identity,
			Derived:  e.Derived,
			Message:  store.Message{Stream: source, Sequence: e.Number, Stored: e.At},
			Category: e.Category,
			Cost:     e.Cost,
			Pair:     e.Pair,
		}
	}
	return asked
}
