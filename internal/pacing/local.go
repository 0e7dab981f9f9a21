package pacing

import (
	"maps"
	"sync"
	"time"
)

// maxPauses bounds the destinations and paths that an instance remembers. A workspace has fewer busy channels.
const maxPauses = 10_000

// local paces this instance alone.
type local struct {
	pace Pace

	mu       sync.Mutex
	ends     map[string]time.Time // by destination: when, at its interval, all that is reserved will be through
	mentions map[string]mentioned // by path
}

type mentioned struct {
	id    string
	until time.Time
}

func newLocal(pace Pace) *local {
	return &local{pace: pace, ends: make(map[string]time.Time), mentions: make(map[string]mentioned)}
}

// pause takes note that a destination is paused. No burst follows.
func (l *local) pause(now time.Time, destination string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(now, destination, later(l.ends[destination], now.Add(d+l.pace.ahead())))
}

// reserve does what pace.lua does, for a destination that is paused for a time.
func (l *local) reserve(now time.Time, destination string, paused, maxWait time.Duration) Reservation {
	if l.pace.Interval == 0 {
		return Reservation{Wait: paused, OK: paused <= maxWait}
	}
	if paused > 0 {
		l.pause(now, destination, paused)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.ends[destination]
	at := later(now.Add(paused), end.Add(-l.pace.ahead()))
	reservation := Reservation{Wait: at.Sub(now), OK: at.Sub(now) <= maxWait}
	if reservation.OK {
		l.set(now, destination, later(end, at).Add(l.pace.Interval))
	}
	return reservation
}

// learn takes note of a reservation that Redis made. When Redis is unavailable, this instance goes on behind it, without a burst.
func (l *local) learn(now time.Time, destination string, reservation Reservation) {
	if l.pace.Interval == 0 || !reservation.OK {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	end := now.Add(reservation.Wait + l.pace.Interval + l.pace.ahead())
	l.set(now, destination, later(l.ends[destination], end)) // replies may come in another order than the reservations
}

func (l *local) set(now time.Time, destination string, end time.Time) {
	if len(l.ends) >= maxPauses {
		maps.DeleteFunc(l.ends, func(_ string, until time.Time) bool { return !until.After(now) })
	}
	if len(l.ends) >= maxPauses {
		clear(l.ends)
	}
	l.ends[destination] = end
}

func (l *local) mention(now time.Time, path, id string, d time.Duration) mention {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := l.mentions[path]; now.Before(last.until) {
		if last.id == id {
			return hasMention
		}
		return noMention
	}
	if len(l.mentions) >= maxPauses {
		clear(l.mentions)
	}
	l.mentions[path] = mentioned{id: id, until: now.Add(d)}
	return takesMention
}

func (l *local) returnMention(path, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mentions[path].id == id {
		delete(l.mentions, path)
	}
}

// pauses remembers which destinations are paused.
type pauses struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (p *pauses) learn(now time.Time, durations map[string]time.Duration) {
	if len(durations) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil || len(p.until) >= maxPauses {
		p.until = make(map[string]time.Time)
	}
	for destination, d := range durations {
		if until := now.Add(d); until.After(p.until[destination]) {
			p.until[destination] = until
		}
	}
}

func (p *pauses) left(destination string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := time.Until(p.until[destination])
	if left <= 0 {
		delete(p.until, destination)
	}
	return max(left, 0)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
