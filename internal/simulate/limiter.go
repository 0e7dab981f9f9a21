package simulate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Limiter is a Judge by the limiter that a worker uses when it is alone: it decides as Redis does.
type Limiter struct {
	memory   *throttle.Memory
	now      time.Time
	oneByOne bool

	requests []throttle.Request
	leases   []throttle.Lease
	verdicts []Verdict
}

// deliveryLease is longer than a delivery takes here, which is no time.
const deliveryLease = time.Minute

// NewLimiter makes a limiter without admissions. An ID is remembered for the retention after its event was sent.
func NewLimiter(tree *throttle.Tree, retention time.Duration) *Limiter {
	l := &Limiter{oneByOne: limitsUnderWay(tree)}
	settings := throttle.Settings{Tree: tree, Lease: deliveryLease, Retention: retention}
	l.memory = throttle.NewMemory(settings, func() time.Time { return l.now }, nil)
	return l
}

// limitsUnderWay tells whether some limit is on what is under way at once.
func limitsUnderWay(tree *throttle.Tree) bool {
	return slices.ContainsFunc(tree.Levels(), func(node throttle.Node) bool {
		return slices.ContainsFunc(node.Limits, func(limit throttle.Limit) bool {
			return limit.Algorithm == throttle.InFlight
		})
	})
}

// Judge implements [Judge]. Events of one instant are judged together, so that all of them count at that very instant.
// Only where deliveries under way are limited, one is finished before the next is judged.
func (l *Limiter) Judge(ctx context.Context, at time.Time, events []Event) ([]Verdict, error) {
	l.now = at
	l.verdicts = l.verdicts[:0]
	together := len(events)
	if l.oneByOne {
		together = 1
	}
	for len(events) > 0 {
		if err := l.judge(ctx, events[:together]); err != nil {
			return nil, err
		}
		events = events[together:]
	}
	return l.verdicts, nil
}

func (l *Limiter) judge(ctx context.Context, events []Event) error {
	l.requests, l.leases = l.requests[:0], l.leases[:0]
	for _, e := range events {
		l.requests = append(l.requests, l.request(e))
	}
	ruling, err := l.memory.Decide(ctx, l.requests)
	if err != nil {
		return fmt.Errorf("deciding about events: %w", err)
	}
	for _, decision := range ruling.Decisions {
		switch decision.Verdict {
		case throttle.Admitted:
			l.leases = append(l.leases, decision.Lease)
			l.verdicts = append(l.verdicts, Verdict{Outcome: Sent})
		case throttle.Denied, throttle.NeverFits:
			l.verdicts = append(l.verdicts, Verdict{Outcome: Dropped, Level: decision.Node.Level})
		case throttle.Duplicate, throttle.Done, throttle.Leased, throttle.Repeated:
			// Each event comes once, so it is another one that had its ID.
			l.verdicts = append(l.verdicts, Verdict{Outcome: Duplicate})
		default:
			return fmt.Errorf("deciding about events: unexpected verdict %d", decision.Verdict)
		}
	}
	if len(l.leases) == 0 {
		return nil
	}
	if err := l.memory.Finish(ctx, l.leases); err != nil {
		return fmt.Errorf("finishing deliveries: %w", err)
	}
	return nil
}

// request gives an event without an ID one that no producer can have: theirs hold no control characters.
func (l *Limiter) request(e Event) throttle.Request {
	id := e.ID
	if id == "" {
		id = "\n" + strconv.FormatUint(e.Number, 10)
	}
	return throttle.Request{
		ID:       id,
		Message:  throttle.Message{Stream: "simulate", Sequence: e.Number, Stored: l.now},
		Category: e.Category,
		Cost:     e.Cost,
	}
}
