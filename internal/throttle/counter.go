package throttle

import "math"

// counterMeter is lua/algorithms/counter.lua in memory.
type counterMeter struct {
	start             int64 // of the current window
	current, previous int64
}

// turned is the state as it counts at a time.
func (m counterMeter) turned(now int64, limit Limit) counterMeter {
	window := limit.Window.Microseconds()
	start := now - now%window
	switch {
	case aheadOfTolerance(m.start, now):
		m.start, m.current, m.previous = start, 0, 0
	case m.start >= start:
	case m.start == start-window:
		m.start, m.current, m.previous = start, 0, m.current
	default:
		m.start, m.current, m.previous = start, 0, 0
	}
	return m
}

// covered is how many of a window's slots the rolling window still covers, some time after that window's end. The scripts
// compute with the same floating-point operations.
func covered(slots, window, elapsed int64) float64 {
	return float64(slots) * float64(window-max(0, elapsed)) / float64(window)
}

func timeUntilCovered(slots, window, room int64) int64 {
	elapsed := int64(math.Ceil(float64(window) * float64(slots-room) / float64(slots)))
	for covered(slots, window, elapsed) > float64(room) {
		elapsed++ // what rounding took
	}
	return elapsed
}

func (m *counterMeter) wait(e memoryEvent, limits []Limit) (int, int64) {
	limit, window := limits[0], limits[0].Window.Microseconds()
	state := m.turned(e.now, limit)
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

func (m *counterMeter) take(e memoryEvent, limits []Limit) {
	*m = m.turned(e.now, limits[0])
	m.current += e.cost
}

func (m *counterMeter) giveBack(e memoryEvent, at int64, limits []Limit) {
	*m = m.turned(e.now, limits[0])
	switch {
	case at >= m.start:
		m.current = max(0, m.current-e.cost)
	case at >= m.start-limits[0].Window.Microseconds():
		m.previous = max(0, m.previous-e.cost)
	}
}

func (m *counterMeter) used(now, _ int64, limit Limit) int64 {
	state := m.turned(now, limit)
	return state.current + int64(math.Ceil(covered(state.previous, limit.Window.Microseconds(), now-state.start)))
}

func (m *counterMeter) idle(now int64, limits []Limit) bool {
	state := m.turned(now, limits[0])
	return state.current == 0 && state.previous == 0
}
