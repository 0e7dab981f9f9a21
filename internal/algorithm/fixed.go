package algorithm

// fixedBucket is lua/algorithms/fixed.lua in memory.
type fixedBucket struct {
	start int64
	taken int64
}

// turned returns the state, rolled over to the window of a time.
func (b fixedBucket) turned(now int64, limit Limit) fixedBucket {
	window := limit.Window.Microseconds()
	if start := now - now%window; b.start < start || isAheadOfTolerance(b.start, now) {
		return fixedBucket{start: start}
	}
	return b
}

// Wait implements [State].
func (b *fixedBucket) Wait(e Event, limits []Limit) (int, int64) {
	state := b.turned(e.Now, limits[0])
	if state.taken+e.Cost <= limits[0].Count {
		return 0, 0
	}
	return 0, state.start + limits[0].Window.Microseconds() - e.Now
}

// Take implements [State].
func (b *fixedBucket) Take(e Event, limits []Limit) {
	*b = b.turned(e.Now, limits[0])
	b.taken += e.Cost
}

// GiveBack implements [State].
func (b *fixedBucket) GiveBack(e Event, at int64, limits []Limit) {
	*b = b.turned(e.Now, limits[0])
	if at >= b.start {
		b.taken = max(0, b.taken-e.Cost)
	}
}

// Used implements [State].
func (b *fixedBucket) Used(now, _ int64, limit Limit) int64 { return b.turned(now, limit).taken }
