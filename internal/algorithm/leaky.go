package algorithm

import (
	"math"
)

// leakyBucket is lua/algorithms/leaky.lua in memory.
type leakyBucket struct {
	last int64 // time of the last admission
	cost int64 // its slots
}

// freeAt returns when the next slot opens.
func (b *leakyBucket) freeAt(now int64, limit Limit) int64 {
	if isAheadOfTolerance(b.last, now) || limit.Count == 0 {
		return 0
	}
	cost, window := min(b.cost, limit.Count), limit.Window.Microseconds()
	return b.last + cost*(window/limit.Count) + (cost*(window%limit.Count)+limit.Count-1)/limit.Count
}

// Wait implements [State].
func (b *leakyBucket) Wait(e Event, limits []Limit) (int, int64) {
	return 0, max(0, b.freeAt(e.Now, limits[0])-e.Now)
}

// Take implements [State].
func (b *leakyBucket) Take(e Event, _ []Limit) { b.last, b.cost = e.Now, e.Cost }

// GiveBack implements [State].
func (b *leakyBucket) GiveBack(e Event, at int64, _ []Limit) {
	if isAheadOfTolerance(b.last, e.Now) {
		*b = leakyBucket{}
	}
	if at == b.last {
		b.cost = 0
	}
}

// Used implements [State].
func (b *leakyBucket) Used(now, _ int64, limit Limit) int64 {
	left := max(0, b.freeAt(now, limit)-now)
	return int64(math.Ceil(float64(left) * float64(limit.Count) / float64(limit.Window.Microseconds())))
}
