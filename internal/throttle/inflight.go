package throttle

import (
	"slices"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// inFlightBucket is lua/algorithms/inflight.lua in memory.
type inFlightBucket struct {
	underWay map[string]inFlightSlots // by message
}

type inFlightSlots struct {
	cost      int64
	comesBack int64 // by themselves
}

// kept is how long slots are taken unless the delivery ends or its lease is renewed.
func (e memoryEvent) kept(limit limits.Limit) int64 { return max(limit.Window.Microseconds(), e.lease) }

// count tells that slots are taken: they have not come back, and no clock that ran ahead has left them.
func (s inFlightSlots) count(e memoryEvent, limit limits.Limit) bool {
	return s.comesBack > e.now && !aheadOfTolerance(s.comesBack, e.now+e.kept(limit))
}

// underWayAt lists when the slots come back that are taken.
func (b *inFlightBucket) underWayAt(e memoryEvent, limit limits.Limit) []int64 {
	var comeBack []int64
	for _, slots := range b.underWay {
		if slots.count(e, limit) {
			comeBack = append(comeBack, slices.Repeat([]int64{slots.comesBack}, int(slots.cost))...)
		}
	}
	slices.Sort(comeBack)
	return comeBack
}

func (b *inFlightBucket) used(now, lease int64, limit limits.Limit) int64 {
	return int64(len(b.underWayAt(memoryEvent{now: now, lease: lease}, limit)))
}

func (b *inFlightBucket) wait(e memoryEvent, limits []limits.Limit) (int, int64) {
	comeBack := b.underWayAt(e, limits[0])
	leaving := int64(len(comeBack)) + e.cost - limits[0].Count
	if leaving <= 0 {
		return 0, 0
	}
	return 0, comeBack[leaving-1] - e.now
}

func (b *inFlightBucket) take(e memoryEvent, limits []limits.Limit) {
	for message, slots := range b.underWay {
		if slots.comesBack <= e.now {
			delete(b.underWay, message)
		}
	}
	if b.underWay == nil {
		b.underWay = make(map[string]inFlightSlots)
	}
	b.underWay[e.message] = inFlightSlots{cost: e.cost, comesBack: e.now + e.kept(limits[0])}
}

func (b *inFlightBucket) holds(e memoryEvent, limits []limits.Limit) bool {
	return b.underWay[e.message].count(e, limits[0])
}

func (b *inFlightBucket) extend(e memoryEvent, limits []limits.Limit) {
	if slots, known := b.underWay[e.message]; known {
		slots.comesBack = e.now + e.kept(limits[0])
		b.underWay[e.message] = slots
	}
}

func (b *inFlightBucket) giveBack(e memoryEvent, _ int64, _ []limits.Limit) {
	delete(b.underWay, e.message)
}

func (b *inFlightBucket) idle(now int64, _ []limits.Limit) bool {
	for _, slots := range b.underWay {
		if slots.comesBack > now {
			return false
		}
	}
	return true
}
