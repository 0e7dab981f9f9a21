package pacing

import (
	"slices"
	"time"
)

// slots are the requests of a budget, as in lib/window.lua.
type slots struct {
	window Window
	times  []time.Time // in ascending order, without requests that no longer count
}

// next returns the slot of a request with that many requests before it.
func (s *slots) next(now time.Time, behind int) time.Time {
	if s.window.Count == 0 {
		return now
	}
	windows := behind / s.window.Count
	at := now
	if oldest := len(s.times) - s.window.Count + behind%s.window.Count; oldest >= 0 {
		at = later(at, s.times[oldest].Add(s.window.Length))
	}
	return at.Add(time.Duration(windows) * s.window.Length)
}

func (s *slots) unused(slot time.Time) time.Time {
	for s.window.Count > 0 {
		if _, taken := slices.BinarySearchFunc(s.times, slot, time.Time.Compare); !taken {
			break
		}
		slot = slot.Add(time.Microsecond)
	}
	return slot
}

func (s *slots) add(now, slot time.Time) {
	if s.window.Count == 0 {
		return
	}
	s.times = slices.DeleteFunc(s.times, func(t time.Time) bool { return !t.After(now.Add(-s.window.Length)) })
	at, _ := slices.BinarySearchFunc(s.times, slot, time.Time.Compare)
	s.times = slices.Insert(s.times, at, slot)
}

// use counts the requests of the last window, and those to come.
func (s *slots) use(now time.Time) (used, reserved int) {
	for _, t := range s.times {
		switch {
		case t.After(now):
			reserved++
		case t.After(now.Add(-s.window.Length)):
			used++
		}
	}
	return used, reserved
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
