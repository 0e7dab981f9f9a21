package pacing

import "time"

// askers are the instances that wait for the next post of one channel, as in lib/askers.lua.
type askers struct {
	place  time.Time // place of the channel in the line of the workspace; zero: it has no place
	byName map[string]asker
}

type asker struct {
	order int64
	until time.Time // the asker counts no longer unless it asks again by then
}

// counting returns the askers that still count, and the place, which counts a little longer than the last asker.
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

func (a askers) before(name string) (count int) {
	own := a.byName[name]
	for other, of := range a.byName {
		if of.order < own.order || of.order == own.order && other < name {
			count++
		}
	}
	return count
}

// untilFrontAsks returns until when the first asker counts.
func (a askers) untilFrontAsks() time.Time {
	for name, of := range a.byName {
		if a.before(name) == 0 {
			return of.until
		}
	}
	return time.Time{}
}
