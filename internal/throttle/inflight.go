package throttle

import (
	"maps"
	"slices"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// inFlightBucket is lua/algorithms/inflight.lua in memory.
type inFlightBucket struct {
	underWay map[string]inFlightSlots // by message
}

type inFlightSlots struct {
	cost    int64
	returns int64 // when the slots return by themselves
}

// kept is how long slots are taken unless the delivery ends or its lease is renewed.
func (e memoryEvent) kept(limit limits.Limit) int64 { return max(limit.Window.Microseconds(), e.lease) }

// count tells whether slots are taken. Slots that a clock has left which ran too far ahead are not.
func (s inFlightSlots) count(e memoryEvent, limit limits.Limit) bool {
	return s.returns > e.now && !aheadOfTolerance(s.returns, e.now+e.kept(limit))
}

// returnsOf lists, for each slot that is taken, when it returns.
func (b *inFlightBucket) returnsOf(e memoryEvent, limit limits.Limit) []int64 {
	var returns []int64
	for _, slots := range b.underWay {
		if slots.count(e, limit) {
			returns = append(returns, slices.Repeat([]int64{slots.returns}, int(slots.cost))...)
		}
	}
	slices.Sort(returns)
	return returns
}

func (b *inFlightBucket) used(now, lease int64, limit limits.Limit) int64 {
	return int64(len(b.returnsOf(memoryEvent{now: now, lease: lease}, limit)))
}

func (b *inFlightBucket) wait(e memoryEvent, limits []limits.Limit) (int, int64) {
	returns := b.returnsOf(e, limits[0])
	leaving := int64(len(returns)) + e.cost - limits[0].Count
	if leaving <= 0 {
		return 0, 0
	}
	return 0, returns[leaving-1] - e.now
}

func (b *inFlightBucket) take(e memoryEvent, limits []limits.Limit) {
	maps.DeleteFunc(b.underWay, func(_ string, slots inFlightSlots) bool { return slots.returns <= e.now })
	if b.underWay == nil {
		b.underWay = make(map[string]inFlightSlots)
	}
	b.underWay[e.message] = inFlightSlots{cost: e.cost, returns: e.now + e.kept(limits[0])}
}

// holds tells whether a delivery that is taken over still has its slots.
func (b *inFlightBucket) holds(e memoryEvent, limit limits.Limit) bool {
	return b.underWay[e.message].count(e, limit)
}

// extend keeps the slots of a delivery as long as its lease.
func (b *inFlightBucket) extend(e memoryEvent, limit limits.Limit) {
	if slots, known := b.underWay[e.message]; known {
		slots.returns = e.now + e.kept(limit)
		b.underWay[e.message] = slots
	}
}

func (b *inFlightBucket) giveBack(e memoryEvent, _ int64, _ []limits.Limit) {
	delete(b.underWay, e.message)
}
