package throttle

import "math"

// leakyMeter is lua/algorithms/leaky.lua in memory.
type leakyMeter struct {
	last int64 // when the last slots were taken
	cost int64 // how many
}

func (m *leakyMeter) freeAt(now int64, limit Limit) int64 {
	if aheadOfTolerance(m.last, now) || limit.Count == 0 {
		return 0
	}
	cost, window := min(m.cost, limit.Count), limit.Window.Microseconds()
	return m.last + cost*(window/limit.Count) + (cost*(window%limit.Count)+limit.Count-1)/limit.Count
}

func (m *leakyMeter) wait(e memoryEvent, limits []Limit) (int, int64) {
	return 0, max(0, m.freeAt(e.now, limits[0])-e.now)
}

func (m *leakyMeter) take(e memoryEvent, _ []Limit) { m.last, m.cost = e.now, e.cost }

func (m *leakyMeter) giveBack(e memoryEvent, at int64, _ []Limit) {
	if aheadOfTolerance(m.last, e.now) {
		*m = leakyMeter{}
	}
	if at == m.last {
		m.cost = 0
	}
}

func (m *leakyMeter) used(now, _ int64, limit Limit) int64 {
	left := max(0, m.freeAt(now, limit)-now)
	return int64(math.Ceil(float64(left) * float64(limit.Count) / float64(limit.Window.Microseconds())))
}

func (m *leakyMeter) idle(now int64, limits []Limit) bool { return m.freeAt(now, limits[0]) <= now }
