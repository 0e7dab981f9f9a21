package algorithm

import (
	"math"
	"slices"
)

// tokenBucket is lua/algorithms/token.lua in memory, with identical floating-point numbers and operations.
type tokenBucket struct {
	full  float64 // when the bucket was last full
	since float64 // the time of this state
	owed  float64 // what is missing at that time, times the window
	lows  []tokenLow
}

// tokenLow records an admission: its time, and how much was missing before it.
type tokenLow struct{ at, missing float64 }

// maxLows is LOWS of token.lua.
const maxLows = 8

// missing returns what is missing from a full bucket, times the window. A window after its latest change the bucket is full. The conversion
// keeps the compiler from fusing the product and the difference, because a fused operation rounds differently.
func (b tokenBucket) missing(at float64, limit Limit) float64 {
	elapsed := max(0, at-b.since)
	if elapsed >= float64(limit.Window.Microseconds()) {
		return 0
	}
	return b.owed - float64(elapsed*float64(limit.Count))
}

// advanced returns the state at a later time.
func (b tokenBucket) advanced(now int64, limit Limit) tokenBucket {
	at := float64(now)
	owed := b.missing(at, limit)
	if b.isAhead(now) || owed <= 0 {
		return tokenBucket{full: at, since: at}
	}
	b.since, b.owed = max(b.since, at), owed
	return b
}

// isAhead reports whether a clock that ran too far ahead wrote the state. Such a state is ignored.
func (b tokenBucket) isAhead(now int64) bool { return b.since > float64(now+Tolerance.Microseconds()) }

// Wait implements [State].
func (b *tokenBucket) Wait(e Event, limits []Limit) (int, int64) {
	limit := limits[0]
	now, count, window := float64(e.Now), float64(limit.Count), float64(limit.Window.Microseconds())
	state := *b
	if b.isAhead(e.Now) {
		state = tokenBucket{}
	}
	needed := max(0, state.missing(now, limit)) + float64((float64(e.Cost)-float64(limit.Capacity()))*window)
	if needed <= 0 {
		return 0, 0
	}
	elapsed := math.Ceil(needed / count)
	if elapsed*count < needed {
		elapsed++ // corrects the rounding
	}
	return 0, int64(min(max(state.since, now)+elapsed, state.since+window) - now)
}

// noteLow records how much is missing, and drops the lows that are not lower.
func (b *tokenBucket) noteLow(at float64, limit Limit) {
	here := b.missing(at, limit)
	b.lows = slices.DeleteFunc(slices.Clone(b.lows), func(low tokenLow) bool { return low.missing >= here })
	b.lows = append(b.lows, tokenLow{at, here})
	if len(b.lows) > maxLows {
		b.lows[1].missing = b.lows[0].missing
		b.lows = b.lows[1:]
	}
}

// Take implements [State].
func (b *tokenBucket) Take(e Event, own []Limit) {
	*b = b.advanced(e.Now, own[0])
	if b.owed > 0 {
		b.noteLow(float64(e.Now), own[0])
	}
	b.owed = min(b.owed+float64(float64(e.Cost)*float64(own[0].Window.Microseconds())), MaxTokenProduct) // MOST of token.lua
}

// GiveBack implements [State].
func (b *tokenBucket) GiveBack(e Event, at int64, limits []Limit) {
	if b.isAhead(e.Now) {
		*b = tokenBucket{}
	}
	taken := float64(at)
	if taken < b.full {
		return
	}
	returned := min(float64(e.Cost)*float64(limits[0].Window.Microseconds()), max(0, b.missing(float64(e.Now), limits[0])))
	for _, low := range b.lows {
		if low.at > taken {
			returned = min(returned, low.missing)
		}
	}
	b.lows = slices.Clone(b.lows)
	for i := range b.lows {
		if b.lows[i].at > taken {
			b.lows[i].missing -= returned
		}
	}
	b.owed -= returned
	*b = b.advanced(e.Now, limits[0])
}

// Used implements [State].
func (b *tokenBucket) Used(now, _ int64, limit Limit) int64 {
	if b.isAhead(now) {
		return 0
	}
	return int64(math.Ceil(max(0, b.missing(float64(now), limit)) / float64(limit.Window.Microseconds())))
}
