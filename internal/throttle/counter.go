package throttle

import (
	"math"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// counterBucket is lua/algorithms/counter.lua in memory.
type counterBucket struct {
	start             int64 // of the current window
	current, previous int64
}

// turned is the state as it counts at a time.
func (b counterBucket) turned(now int64, limit limits.Limit) counterBucket {
	window := limit.Window.Microseconds()
	start := now - now%window
	switch {
	case b.start >= start && !aheadOfTolerance(b.start, now):
		return b
	case b.start == start-window:
		return counterBucket{start: start, previous: b.current}
	}
	return counterBucket{start: start}
}

// covered is how many of a window's slots the rolling window still covers, some time after the window's end. The script does the
// same floating-point operations.
func covered(slots, window, elapsed int64) float64 {
	return float64(slots) * float64(window-max(0, elapsed)) / float64(window)
}

// timeUntilCovered is how long after the window's end the rolling window covers no more slots than there is room for.
func timeUntilCovered(slots, window, room int64) int64 {
	elapsed := int64(math.Ceil(float64(window) * float64(slots-room) / float64(slots)))
	for covered(slots, window, elapsed) > float64(room) {
		elapsed++ // what rounding took
	}
	return elapsed
}

func (b *counterBucket) wait(e memoryEvent, limits []limits.Limit) (int, int64) {
	limit, window := limits[0], limits[0].Window.Microseconds()
	state := b.turned(e.now, limit)
	room := limit.Count - e.cost - state.current
	switch {
	case covered(state.previous, window, e.now-state.start) <= float64(room):
		return 0, 0
	case room >= 0:
		return 0, state.start + timeUntilCovered(state.previous, window, room) - e.now
	default:
		return 0, state.start + window + timeUntilCovered(state.current, window, limit.Count-e.cost) - e.now
	}
}

func (b *counterBucket) take(e memoryEvent, limits []limits.Limit) {
	*b = b.turned(e.now, limits[0])
	b.current += e.cost
}

func (b *counterBucket) giveBack(e memoryEvent, at int64, limits []limits.Limit) {
	*b = b.turned(e.now, limits[0])
	switch {
	case at >= b.start:
		b.current = max(0, b.current-e.cost)
	case at >= b.start-limits[0].Window.Microseconds():
		b.previous = max(0, b.previous-e.cost)
	}
}

func (b *counterBucket) used(now, _ int64, limit limits.Limit) int64 {
	state := b.turned(now, limit)
	return state.current + int64(math.Ceil(covered(state.previous, limit.Window.Microseconds(), now-state.start)))
}
