package throttle

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// act decides without Redis.
func (l *Limiter) act(ctx context.Context, requests []Request) []Decision {
	if l.o.Policy == Closed && !l.o.Forward {
		decisions := make([]Decision, len(requests))
		for i := range decisions {
			decisions[i] = Decision{Verdict: Denied, Node: limits.Node{Level: LevelClosed}}
		}
		l.o.Metrics.Decision(Denied.String(), string(SourceLocal), len(requests))
		return decisions
	}
	asked := time.Now()
	result, err := l.local.Decide(ctx, requests)
	if err != nil { // the in-memory store has no way to fail
		panic(fmt.Sprintf("throttle: the in-memory store failed: %v", err))
	}
	if l.o.Policy == Open {
		for i := range result.Decisions {
			if d := &result.Decisions[i]; d.Verdict == Denied || d.Verdict == ExceedsCapacity {
				*d = Decision{Verdict: Admitted, Lease: d.Lease}
			}
		}
	}
	l.take(SourceLocal, asked, result.Decisions, requests)
	var admitted []*granted
	for i := range result.Decisions {
		grant, isGrant := result.Decisions[i].Grant.(*grant)
		if !isGrant {
			continue
		}
		grant.local, grant.admitted = true, asked
		if result.Decisions[i].Verdict == Admitted {
			admitted = append(admitted, &grant.granted)
		}
	}
	l.outage.admittedLocally(admitted)
	return result.Decisions
}
