package throttle

import "github.com/seed-4578ace9/notifier/internal/limits"

// fixedBucket is lua/algorithms/fixed.lua in memory.
type fixedBucket struct {
	start int64
	taken int64
}

// turned is the state as it counts at a time.
func (b fixedBucket) turned(now int64, limit limits.Limit) fixedBucket {
	window := limit.Window.Microseconds()
	if start := now - now%window; b.start < start || aheadOfTolerance(b.start, now) {
		return fixedBucket{start: start}
	}
	return b
}

func (b *fixedBucket) wait(e memoryEvent, limits []limits.Limit) (int, int64) {
	state := b.turned(e.now, limits[0])
	if state.taken+e.cost <= limits[0].Count {
		return 0, 0
	}
	return 0, state.start + limits[0].Window.Microseconds() - e.now
}

func (b *fixedBucket) take(e memoryEvent, limits []limits.Limit) {
	*b = b.turned(e.now, limits[0])
	b.taken += e.cost
}

func (b *fixedBucket) giveBack(e memoryEvent, at int64, limits []limits.Limit) {
	*b = b.turned(e.now, limits[0])
	if at >= b.start {
		b.taken = max(0, b.taken-e.cost)
	}
}

func (b *fixedBucket) used(now, _ int64, limit limits.Limit) int64 { return b.turned(now, limit).taken }
