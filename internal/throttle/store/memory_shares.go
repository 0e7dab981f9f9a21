package store

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// shares divide the limits among the instances.
type shares struct {
	instances func() int // number of instances that split each limit
	lease     time.Duration
}

// event returns the event of a request in this call.
func (s shares) event(now int64, r *Route, request Request) algorithm.Event {
	by := s.divisor()
	e := algorithm.Event{
		Now: now, Lease: s.lease.Microseconds(), Cost: int64(request.Cost), Guarantee: r.guarantee, InShares: by > 1,
	}
	if r.follows {
		e.Message = request.messageName()
	}
	for _, guarantee := range r.guarantees {
		share := max(guarantee.Slots/by, 1)
		if guarantee.Path == e.Guarantee {
			share = max(share, min(e.Cost, guarantee.Slots))
		}
		guarantee.Slots = share
		e.Guarantees = append(e.Guarantees, guarantee)
	}
	return e
}

func (s shares) divisor() int64 { return int64(max(1, s.instances())) }

// divided returns this instance's share of a bucket's limits. An event that fits the limit fits its share too. If a limit has guarantees,
// the unguaranteed slots are divided, and the shares of the guarantees are added.
func (s shares) divided(of bucket, e algorithm.Event) []limits.Limit {
	by := s.divisor()
	if by == 1 {
		return of.limits
	}
	guaranteed, shares := int64(0), int64(0)
	for i, guarantee := range of.guarantees {
		guaranteed += guarantee.Slots
		shares += e.Guarantees[i].Slots
	}
	divided := make([]limits.Limit, len(of.limits))
	for i, limit := range of.limits {
		divided[i] = limit
		if limit.Description().Bursts {
			divided[i].Burst = max(limit.Capacity()/by, e.Cost)
		}
		divided[i].Count = shares
		if free := limit.Count - guaranteed; free > 0 {
			divided[i].Count += max(free/by, min(e.Cost, free))
		}
	}
	return divided
}
