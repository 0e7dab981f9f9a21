package pacing

import "time"

// askers are those who wait for the next post of one channel, as in lib/askers.lua.
type askers struct {
	place  time.Time // of the channel in the line of the workspace; zero: it has none
	byName map[string]asker
}

type asker struct {
	order int64
	until time.Time // it does not count any more if it does not ask again by then
}

// counting returns the place and the askers that count. A little later than its askers, the place counts no more either.
func (a askers) counting(now time.Time) askers {
	left, last := askers{byName: make(map[string]asker)}, time.Time{}
	for name, other := range a.byName {
		last = later(last, other.until)
		if !other.until.Before(now) {
			left.byName[name] = other
		}
	}
	if !last.Add(grace).Before(now) {
		left.place = a.place
	}
	return left
}

// before counts the askers that go before one of them.
func (a askers) before(name string) (count int) {
	own := a.byName[name]
	for other, of := range a.byName {
		if of.order < own.order || of.order == own.order && other < name {
			count++
		}
	}
	return count
}

// untilFrontAsks returns until when the asker counts that goes before all others.
func (a askers) untilFrontAsks() time.Time {
	for name, of := range a.byName {
		if a.before(name) == 0 {
			return of.until
		}
	}
	return time.Time{}
}
