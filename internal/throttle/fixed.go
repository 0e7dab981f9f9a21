package throttle

// fixedMeter is lua/algorithms/fixed.lua in memory.
type fixedMeter struct {
	start int64
	taken int64
}

// turned is the state as it counts at a time.
func (m fixedMeter) turned(now int64, limit Limit) fixedMeter {
	window := limit.Window.Microseconds()
	start := now - now%window
	if m.start < start || aheadOfTolerance(m.start, now) {
		m.start, m.taken = start, 0
	}
	return m
}

func (m *fixedMeter) wait(e memoryEvent, limits []Limit) (int, int64) {
	state := m.turned(e.now, limits[0])
	if state.taken+e.cost <= limits[0].Count {
		return 0, 0
	}
	return 0, state.start + limits[0].Window.Microseconds() - e.now
}

func (m *fixedMeter) take(e memoryEvent, limits []Limit) {
	*m = m.turned(e.now, limits[0])
	m.taken += e.cost
}

func (m *fixedMeter) giveBack(e memoryEvent, at int64, limits []Limit) {
	*m = m.turned(e.now, limits[0])
	if at >= m.start {
		m.taken = max(0, m.taken-e.cost)
	}
}

func (m *fixedMeter) used(now, _ int64, limit Limit) int64 { return m.turned(now, limit).taken }

func (m *fixedMeter) idle(now int64, limits []Limit) bool { return m.used(now, 0, limits[0]) == 0 }
