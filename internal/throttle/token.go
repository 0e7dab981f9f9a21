package throttle

import (
	"math"
	"slices"
)

// tokenMeter is lua/algorithms/token.lua in memory, with the same floating-point numbers and operations.
type tokenMeter struct {
	full  float64 // when the bucket was full last
	since float64 // when it was looked at last
	owed  float64 // what was missing then, times the window
	lows  []tokenLow
}

// tokenLow is when a token was taken, and how much was missing before it was.
type tokenLow struct{ at, missing float64 }

// maxLows is LOWS of token.lua.
const maxLows = 8

// missing is what is missing from a full bucket, times the window. The conversion keeps the compiler from computing the
// difference in one step with another result.
func (m tokenMeter) missing(at float64, limit Limit) float64 {
	return m.owed - float64(max(0, at-m.since)*float64(limit.Count))
}

// mostTokens is MOST of token.lua: the most that count × window in microseconds may be, for a floating-point number to be exact.
const mostTokens = 1 << 53

// advanced is the state as counted from a later time on.
func (m tokenMeter) advanced(now int64, limit Limit) tokenMeter {
	at := float64(now)
	owed := m.missing(at, limit)
	if m.isAhead(now) || owed <= 0 {
		return tokenMeter{full: at, since: at}
	}
	m.since, m.owed = max(m.since, at), owed
	return m
}

// isAhead tells that the state is of a clock that had run too far ahead, and counts for nothing.
func (m tokenMeter) isAhead(now int64) bool { return m.since > float64(now+tolerance.Microseconds()) }

func (m *tokenMeter) wait(e memoryEvent, limits []Limit) (int, int64) {
	limit := limits[0]
	state := m.advanced(e.now, limit)
	count, window := float64(limit.Count), float64(limit.Window.Microseconds())
	needed := state.owed + float64((float64(e.cost)-float64(limit.capacity()))*window)
	if max(0, float64(e.now)-state.since)*count >= needed {
		return 0, 0
	}
	elapsed := math.Ceil(needed / count)
	if elapsed*count < needed {
		elapsed++ // what rounding took
	}
	return 0, int64(state.since + elapsed - float64(e.now))
}

// noteLow notes how much is missing, where that is less than ever since.
func (m *tokenMeter) noteLow(at float64, limit Limit) {
	here := m.missing(at, limit)
	m.lows = slices.DeleteFunc(slices.Clone(m.lows), func(low tokenLow) bool { return low.missing >= here })
	m.lows = append(m.lows, tokenLow{at, here})
	if len(m.lows) > maxLows {
		m.lows[1].missing = m.lows[0].missing
		m.lows = m.lows[1:]
	}
}

func (m *tokenMeter) take(e memoryEvent, limits []Limit) {
	*m = m.advanced(e.now, limits[0])
	if m.owed > 0 {
		m.noteLow(float64(e.now), limits[0])
	}
	m.owed = min(m.owed+float64(float64(e.cost)*float64(limits[0].Window.Microseconds())), mostTokens)
}

func (m *tokenMeter) giveBack(e memoryEvent, at int64, limits []Limit) {
	if m.isAhead(e.now) {
		*m = tokenMeter{}
	}
	taken := float64(at)
	if taken < m.full {
		return
	}
	returned := min(float64(e.cost)*float64(limits[0].Window.Microseconds()), max(0, m.missing(float64(e.now), limits[0])))
	for _, low := range m.lows {
		if low.at > taken {
			returned = min(returned, low.missing)
		}
	}
	m.lows = slices.Clone(m.lows)
	for i := range m.lows {
		if m.lows[i].at > taken {
			m.lows[i].missing -= returned
		}
	}
	m.owed -= returned
}

func (m *tokenMeter) used(now, _ int64, limit Limit) int64 {
	if m.isAhead(now) {
		return 0
	}
	return int64(math.Ceil(max(0, m.missing(float64(now), limit)) / float64(limit.Window.Microseconds())))
}

func (m *tokenMeter) idle(now int64, limits []Limit) bool { return m.used(now, 0, limits[0]) == 0 }
