package throttle

import "slices"

// inFlightMeter is lua/algorithms/inflight.lua in memory.
type inFlightMeter struct {
	underWay map[string]inFlightSlots // by message
}

type inFlightSlots struct {
	cost      int64
	comesBack int64 // by themselves
}

// kept is how long slots are taken unless the delivery ends or its lease is renewed.
func (e memoryEvent) kept(limit Limit) int64 { return max(limit.Window.Microseconds(), e.lease) }

// count tells that slots are taken: they have not come back, and no clock that ran ahead has left them.
func (s inFlightSlots) count(e memoryEvent, limit Limit) bool {
	return s.comesBack > e.now && !aheadOfTolerance(s.comesBack, e.now+e.kept(limit))
}

// underWayAt lists when the slots come back that are taken.
func (m *inFlightMeter) underWayAt(e memoryEvent, limit Limit) []int64 {
	var comeBack []int64
	for _, slots := range m.underWay {
		if slots.count(e, limit) {
			comeBack = append(comeBack, slices.Repeat([]int64{slots.comesBack}, int(slots.cost))...)
		}
	}
	slices.Sort(comeBack)
	return comeBack
}

func (m *inFlightMeter) used(now, lease int64, limit Limit) int64 {
	return int64(len(m.underWayAt(memoryEvent{now: now, lease: lease}, limit)))
}

func (m *inFlightMeter) wait(e memoryEvent, limits []Limit) (int, int64) {
	comeBack := m.underWayAt(e, limits[0])
	leaving := int64(len(comeBack)) + e.cost - limits[0].Count
	if leaving <= 0 {
		return 0, 0
	}
	return 0, comeBack[leaving-1] - e.now
}

func (m *inFlightMeter) take(e memoryEvent, limits []Limit) {
	for message, slots := range m.underWay {
		if slots.comesBack <= e.now {
			delete(m.underWay, message)
		}
	}
	if m.underWay == nil {
		m.underWay = make(map[string]inFlightSlots)
	}
	m.underWay[e.message] = inFlightSlots{cost: e.cost, comesBack: e.now + e.kept(limits[0])}
}

func (m *inFlightMeter) holds(e memoryEvent, limits []Limit) bool {
	return m.underWay[e.message].count(e, limits[0])
}

func (m *inFlightMeter) extend(e memoryEvent, limits []Limit) {
	if slots, known := m.underWay[e.message]; known {
		slots.comesBack = e.now + e.kept(limits[0])
		m.underWay[e.message] = slots
	}
}

func (m *inFlightMeter) giveBack(e memoryEvent, _ int64, _ []Limit) { delete(m.underWay, e.message) }

func (m *inFlightMeter) idle(now int64, _ []Limit) bool {
	for _, slots := range m.underWay {
		if slots.comesBack > now {
			return false
		}
	}
	return true
}
