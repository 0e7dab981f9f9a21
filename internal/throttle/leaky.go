package throttle

import (
	"math"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// leakyBucket is lua/algorithms/leaky.lua in memory.
type leakyBucket struct {
	last int64 // when the last slots were taken
	cost int64 // how many
}

// freeAt is when the next slot opens.
func (b *leakyBucket) freeAt(now int64, limit limits.Limit) int64 {
	if aheadOfTolerance(b.last, now) || limit.Count == 0 {
		return 0
	}
	cost, window := min(b.cost, limit.Count), limit.Window.Microseconds()
	return b.last + cost*(window/limit.Count) + (cost*(window%limit.Count)+limit.Count-1)/limit.Count
}

func (b *leakyBucket) wait(e memoryEvent, limits []limits.Limit) (int, int64) {
	return 0, max(0, b.freeAt(e.now, limits[0])-e.now)
}

func (b *leakyBucket) take(e memoryEvent, _ []limits.Limit) { b.last, b.cost = e.now, e.cost }

func (b *leakyBucket) giveBack(e memoryEvent, at int64, _ []limits.Limit) {
	if aheadOfTolerance(b.last, e.now) {
		*b = leakyBucket{}
	}
	if at == b.last {
		b.cost = 0
	}
}

func (b *leakyBucket) used(now, _ int64, limit limits.Limit) int64 {
	left := max(0, b.freeAt(now, limit)-now)
	return int64(math.Ceil(float64(left) * float64(limit.Count) / float64(limit.Window.Microseconds())))
}
