package simulate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Limiter is a Judge by the limiter that a worker uses when it is alone: it decides as Redis does.
type Limiter struct {
	memory   *throttle.Memory
	now      time.Time
	oneByOne bool

	limited, resolving asked
	leases             []throttle.Lease
	verdicts           []Verdict
}

// asked are requests, and the places of their events in the batch.
type asked struct {
	requests []throttle.Request
	places   []int
}

func (a *asked) reset() { a.requests, a.places = a.requests[:0], a.places[:0] }

func (a *asked) add(place int, e Event) {
	a.requests, a.places = append(a.requests, request(e)), append(a.places, place)
}

// deliveryLease is longer than a delivery takes here, which is no time.
const deliveryLease = time.Minute

// NewLimiter makes a limiter without admissions. An identity is remembered for the retention after its event was sent, and a
// pair for its own time.
func NewLimiter(tree *limits.Tree, retention, pairTTL time.Duration) *Limiter {
	l := &Limiter{oneByOne: limitsUnderWay(tree)}
	settings := throttle.Settings{Tree: tree, Lease: deliveryLease, Retention: retention, PairTTL: pairTTL}
	l.memory = throttle.NewMemory(settings, func() time.Time { return l.now }, nil)
	l.memory.KeepPairs()
	return l
}

// limitsUnderWay tells whether some limit is on what is under way at once.
func limitsUnderWay(tree *limits.Tree) bool {
	return slices.ContainsFunc(tree.Levels(), func(node limits.Node) bool {
		return slices.ContainsFunc(node.Limits, func(limit limits.Limit) bool {
			return limit.Algorithm == limits.InFlight
		})
	})
}

// Judge implements [Judge]. Events of one instant are judged together, so that all of them count at that very instant; those
// that resolve something after the others, as in a worker. Only where deliveries under way are limited, one is finished before
// the next is judged.
func (l *Limiter) Judge(ctx context.Context, at time.Time, events []Event) ([]Verdict, error) {
	l.now = at
	l.verdicts = append(l.verdicts[:0], make([]Verdict, len(events))...)
	l.limited.reset()
	l.resolving.reset()
	for i, e := range events {
		switch {
		case e.Resolves:
			l.resolving.add(i, e)
		default:
			l.limited.add(i, e)
		}
	}
	together := max(1, len(l.limited.requests))
	if l.oneByOne {
		together = 1
	}
	for from := 0; from < len(l.limited.requests); from += together {
		if err := l.judge(ctx, l.limited.requests[from:from+together], l.limited.places[from:]); err != nil {
			return nil, err
		}
	}
	return l.verdicts, l.resolve(ctx)
}

// judge asks the limits.
func (l *Limiter) judge(ctx context.Context, requests []throttle.Request, places []int) error {
	ruling, err := l.memory.Decide(ctx, requests)
	if err != nil {
		return fmt.Errorf("deciding about events: %w", err)
	}
	for i, decision := range ruling.Decisions {
		if err := l.take(places[i], decision); err != nil {
			return err
		}
	}
	return l.deliver(ctx)
}

// resolve asks for the pairs.
func (l *Limiter) resolve(ctx context.Context) error {
	resolutions, err := l.memory.Resolve(ctx, l.resolving.requests)
	if err != nil {
		return fmt.Errorf("asking for what is resolved: %w", err)
	}
	for i, resolution := range resolutions {
		if err := l.take(l.resolving.places[i], resolution); err != nil {
			return err
		}
	}
	return l.deliver(ctx)
}

// take notes the verdict on an event of the batch.
func (l *Limiter) take(place int, decision throttle.Decision) error {
	verdict := &l.verdicts[place]
	switch decision.Verdict {
	case throttle.Admitted:
		l.leases = append(l.leases, decision.Lease)
		verdict.Outcome = Sent
	case throttle.Denied, throttle.ExceedsCapacity:
		*verdict = Verdict{Outcome: Dropped, Level: decision.Node.Level}
	case throttle.Duplicate, throttle.Done, throttle.Leased, throttle.Reclaimed:
		// Each event comes once, so it is another one that had its identity.
		verdict.Outcome = Duplicate
	case throttle.Unpaired:
		verdict.Outcome = Unpaired
	default:
		return fmt.Errorf("deciding about events: unexpected verdict %s", decision.Verdict)
	}
	return nil
}

// deliver ends the deliveries of what was admitted.
func (l *Limiter) deliver(ctx context.Context) error {
	if len(l.leases) == 0 {
		return nil
	}
	_, err := l.memory.Finish(ctx, l.leases)
	l.leases = l.leases[:0]
	if err != nil {
		return fmt.Errorf("finishing deliveries: %w", err)
	}
	return nil
}

// request is the question that a worker asks about the event.
func request(e Event) throttle.Request {
	return throttle.Request{
		ID:       e.Identity,
		Derived:  e.Derived,
		Message:  throttle.Message{Stream: source, Sequence: e.Number, Stored: e.At},
		Category: e.Category,
		Cost:     e.Cost,
		Pair:     e.Pair,
	}
}
