package algorithm

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// slidingLog holds one node's admissions, the oldest first.
type slidingLog struct {
	entries []logEntry
	base    int64 // slots of all entries that were trimmed from the front
}

// logEntry holds the slots taken at one time. Running totals make a count two binary searches.
type logEntry struct {
	at      int64
	through int64 // slots of all entries ever, up to and including this one
}

// after returns the index of the first entry later than t.
func (l *slidingLog) after(t int64) int {
	return sort.Search(len(l.entries), func(i int) bool { return l.entries[i].at > t })
}

// before returns the number of slots of all entries ever, ahead of index i.
func (l *slidingLog) before(i int) int64 {
	if i == 0 {
		return l.base
	}
	return l.entries[i-1].through
}

func (l *slidingLog) slots(i int) int64 { return l.entries[i].through - l.before(i) }

// count returns the number of slots taken in (from, upto].
func (l *slidingLog) count(from, upto int64) int64 {
	first, end := l.after(from), l.after(upto)
	if first >= end {
		return 0
	}
	return l.entries[end-1].through - l.before(first)
}

// add takes slots at a time.
func (l *slidingLog) add(at, slots int64) {
	i := l.after(at)
	if i == 0 || l.entries[i-1].at != at {
		l.entries = slices.Insert(l.entries, i, logEntry{at: at, through: l.before(i)})
		i++
	}
	for j := i - 1; j < len(l.entries); j++ {
		l.entries[j].through += slots
	}
}

// remove gives back slots taken at a time, if the log still holds them.
func (l *slidingLog) remove(at, slots int64) {
	i := l.after(at) - 1
	if i < 0 || l.entries[i].at != at {
		return
	}
	slots = min(slots, l.slots(i))
	for j := i; j < len(l.entries); j++ {
		l.entries[j].through -= slots
	}
	if l.slots(i) == 0 {
		l.entries = slices.Delete(l.entries, i, i+1)
	}
}

// trim drops the slots taken up to a time.
func (l *slidingLog) trim(upto int64) {
	first := l.after(upto)
	l.base = l.before(first)
	l.entries = l.entries[first:]
}

// logBucket is lua/algorithms/log.lua in memory.
type logBucket struct {
	slidingLog
	guaranteed map[string]*slidingLog // by the path of the guarantee
}

// fitsAfter reports whether the event's cost fits once everything taken up to `from` has left the window.
func (b *logBucket) fitsAfter(e Event, limit Limit, from int64) bool {
	upto := e.Now + Tolerance.Microseconds()
	var reserved, own int64
	for _, guarantee := range e.Guarantees {
		unused := guarantee.Slots
		if log := b.guaranteed[guarantee.Path]; log != nil {
			unused = max(0, unused-log.count(from, upto))
		}
		reserved += unused
		if guarantee.Path == e.Guarantee {
			own = unused
		}
	}
	if e.Cost <= own {
		if e.InShares {
			return true // other events may have exceeded their shares: that takes nothing from this guarantee
		}
		reserved = own
	}
	return b.count(from, upto)+e.Cost+reserved-own <= limit.Count
}

// Wait implements [State].
func (b *logBucket) Wait(e Event, limits []Limit) (int, int64) {
	for i, limit := range limits {
		window := limit.Window.Microseconds()
		if b.fitsAfter(e, limit, e.Now-window) {
			continue
		}
		first := b.after(e.Now - window)
		if first == len(b.entries) {
			continue // the cost fits the limit, but not this instance's share
		}
		last := first + sort.Search(len(b.entries)-first-1, func(k int) bool { return b.fitsAfter(e, limit, b.entries[first+k].at) })
		at := b.entries[last].at
		if at > e.Now && b.fitsAfter(e, limit, e.Now) {
			at = e.Now // the guarantee's slots expire before a slot written by a clock that ran ahead
		}
		return i, at + window - e.Now
	}
	return 0, 0
}

// Take implements [State].
func (b *logBucket) Take(e Event, own []Limit) {
	longest := time.Duration(0)
	for _, limit := range own {
		longest = max(longest, limit.Window)
	}
	horizon := e.Now - longest.Microseconds()
	b.trim(horizon)
	b.add(e.Now, e.Cost)
	if e.Guarantee == "" || len(e.Guarantees) == 0 {
		return
	}
	if b.guaranteed == nil {
		b.guaranteed = make(map[string]*slidingLog)
	}
	log := cmp.Or(b.guaranteed[e.Guarantee], &slidingLog{})
	b.guaranteed[e.Guarantee] = log
	log.trim(horizon)
	log.add(e.Now, e.Cost)
}

// GiveBack implements [State].
func (b *logBucket) GiveBack(e Event, at int64, _ []Limit) {
	b.remove(at, e.Cost)
	if log := b.guaranteed[e.Guarantee]; log != nil {
		log.remove(at, e.Cost)
	}
}

// Used implements [State].
func (b *logBucket) Used(now, _ int64, limit Limit) int64 {
	return b.count(now-limit.Window.Microseconds(), now+Tolerance.Microseconds())
}
