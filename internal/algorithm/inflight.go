package algorithm

import (
	"maps"
	"slices"
)

// inFlightBucket is lua/algorithms/inflight.lua in memory.
type inFlightBucket struct {
	underWay map[string]inFlightSlots // by message
}

type inFlightSlots struct {
	cost    int64
	returns int64 // when the slots return by themselves
}

// kept returns how long slots stay taken unless the delivery ends or its lease is renewed.
func (e Event) kept(limit Limit) int64 { return max(limit.Window.Microseconds(), e.Lease) }

// count reports whether the slots are in use. Slots written by a clock that ran too far ahead do not count.
func (s inFlightSlots) count(e Event, limit Limit) bool {
	return s.returns > e.Now && !isAheadOfTolerance(s.returns, e.Now+e.kept(limit))
}

// returnsOf lists the return times of the slots in use, the earliest first.
func (b *inFlightBucket) returnsOf(e Event, limit Limit) []int64 {
	var returns []int64
	for _, slots := range b.underWay {
		if slots.count(e, limit) {
			returns = append(returns, slices.Repeat([]int64{slots.returns}, int(slots.cost))...)
		}
	}
	slices.Sort(returns)
	return returns
}

// Used implements [State].
func (b *inFlightBucket) Used(now, lease int64, limit Limit) int64 {
	return int64(len(b.returnsOf(Event{Now: now, Lease: lease}, limit)))
}

// Wait implements [State].
func (b *inFlightBucket) Wait(e Event, limits []Limit) (int, int64) {
	returns := b.returnsOf(e, limits[0])
	leaving := int64(len(returns)) + e.Cost - limits[0].Count
	if leaving <= 0 {
		return 0, 0
	}
	return 0, returns[leaving-1] - e.Now
}

// Take implements [State].
func (b *inFlightBucket) Take(e Event, limits []Limit) {
	maps.DeleteFunc(b.underWay, func(_ string, slots inFlightSlots) bool { return slots.returns <= e.Now })
	if b.underWay == nil {
		b.underWay = make(map[string]inFlightSlots)
	}
	b.underWay[e.Message] = inFlightSlots{cost: e.Cost, returns: e.Now + e.kept(limits[0])}
}

// Holds implements [Following].
func (b *inFlightBucket) Holds(e Event, limit Limit) bool {
	return b.underWay[e.Message].count(e, limit)
}

// Extend implements [Following].
func (b *inFlightBucket) Extend(e Event, limit Limit) {
	if slots, known := b.underWay[e.Message]; known {
		slots.returns = e.Now + e.kept(limit)
		b.underWay[e.Message] = slots
	}
}

// GiveBack implements [State].
func (b *inFlightBucket) GiveBack(e Event, _ int64, _ []Limit) {
	delete(b.underWay, e.Message)
}
