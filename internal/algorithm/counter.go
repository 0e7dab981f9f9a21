package algorithm

import (
	"math"
)

// counterBucket is lua/algorithms/counter.lua in memory.
type counterBucket struct {
	start             int64 // of the current window
	current, previous int64
}

// turned returns the state, rolled over to the window of a time.
func (b counterBucket) turned(now int64, limit Limit) counterBucket {
	window := limit.Window.Microseconds()
	start := now - now%window
	switch {
	case b.start >= start && !isAheadOfTolerance(b.start, now):
		return b
	case b.start == start-window:
		return counterBucket{start: start, previous: b.current}
	}
	return counterBucket{start: start}
}

// covered returns how many of a window's slots the rolling window still covers, some time after the window's end. The script uses identical
// floating-point operations.
func covered(slots, window, elapsed int64) float64 {
	return float64(slots) * float64(window-max(0, elapsed)) / float64(window)
}

// timeUntilCovered returns how long after the window's end the rolling window covers at most `room` slots.
func timeUntilCovered(slots, window, room int64) int64 {
	elapsed := int64(math.Ceil(float64(window) * float64(slots-room) / float64(slots)))
	for covered(slots, window, elapsed) > float64(room) {
		elapsed++ // corrects the rounding
	}
	return elapsed
}

// Wait implements [State].
func (b *counterBucket) Wait(e Event, limits []Limit) (int, int64) {
	limit, window := limits[0], limits[0].Window.Microseconds()
	state := b.turned(e.Now, limit)
	room := limit.Count - e.Cost - state.current
	switch {
	case covered(state.previous, window, e.Now-state.start) <= float64(room):
		return 0, 0
	case room >= 0:
		return 0, state.start + timeUntilCovered(state.previous, window, room) - e.Now
	default:
		return 0, state.start + window + timeUntilCovered(state.current, window, limit.Count-e.Cost) - e.Now
	}
}

// Take implements [State].
func (b *counterBucket) Take(e Event, limits []Limit) {
	*b = b.turned(e.Now, limits[0])
	b.current += e.Cost
}

// GiveBack implements [State].
func (b *counterBucket) GiveBack(e Event, at int64, limits []Limit) {
	*b = b.turned(e.Now, limits[0])
	switch {
	case at >= b.start:
		b.current = max(0, b.current-e.Cost)
	case at >= b.start-limits[0].Window.Microseconds():
		b.previous = max(0, b.previous-e.Cost)
	}
}

// Used implements [State].
func (b *counterBucket) Used(now, _ int64, limit Limit) int64 {
	state := b.turned(now, limit)
	return state.current + int64(math.Ceil(covered(state.previous, limit.Window.Microseconds(), now-state.start)))
}
