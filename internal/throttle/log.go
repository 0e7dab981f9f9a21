package throttle

import (
	"cmp"
	"slices"
	"sort"

	"github.com/seed-4578ace9/notifier/internal/limits"
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

// after is the index of the first entry later than t.
func (l *slidingLog) after(t int64) int {
	return sort.Search(len(l.entries), func(i int) bool { return l.entries[i].at > t })
}

// before is the number of slots of all entries ever, ahead of index i.
func (l *slidingLog) before(i int) int64 {
	if i == 0 {
		return l.base
	}
	return l.entries[i-1].through
}

func (l *slidingLog) slots(i int) int64 { return l.entries[i].through - l.before(i) }

// count is the number of slots taken in (from, upto].
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

// remove returns slots of a time, if the log still holds them.
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

// trim forgets what was taken up to a time.
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

// fitsAfter tells whether the event's cost fits once everything taken up to `from` has left the window.
func (b *logBucket) fitsAfter(e memoryEvent, limit limits.Limit, from int64) bool {
	upto := e.now + tolerance.Microseconds()
	var reserved, own int64
	for _, guarantee := range e.guarantees {
		unused := guarantee.Slots
		if log := b.guaranteed[guarantee.Path]; log != nil {
			unused = max(0, unused-log.count(from, upto))
		}
		reserved += unused
		if guarantee.Path == e.guarantee {
			own = unused
		}
	}
	if e.cost <= own {
		if e.inShares {
			return true // others may have exceeded their shares: that takes nothing from this guarantee
		}
		reserved = own
	}
	return b.count(from, upto)+e.cost+reserved-own <= limit.Count
}

func (b *logBucket) wait(e memoryEvent, limits []limits.Limit) (int, int64) {
	for i, limit := range limits {
		window := limit.Window.Microseconds()
		if b.fitsAfter(e, limit, e.now-window) {
			continue
		}
		first := b.after(e.now - window)
		if first == len(b.entries) {
			continue // the cost fits the limit, only not this instance's share
		}
		last := first + sort.Search(len(b.entries)-first-1, func(k int) bool { return b.fitsAfter(e, limit, b.entries[first+k].at) })
		at := b.entries[last].at
		if at > e.now && b.fitsAfter(e, limit, e.now) {
			at = e.now // the guarantee's slots leave before a slot that a clock that ran ahead has left
		}
		return i, at + window - e.now
	}
	return 0, 0
}

func (b *logBucket) take(e memoryEvent, own []limits.Limit) {
	horizon := e.now - limits.Limits(own).LongestWindow().Microseconds()
	b.trim(horizon)
	b.add(e.now, e.cost)
	if e.guarantee == "" || len(e.guarantees) == 0 {
		return
	}
	if b.guaranteed == nil {
		b.guaranteed = make(map[string]*slidingLog)
	}
	log := cmp.Or(b.guaranteed[e.guarantee], &slidingLog{})
	b.guaranteed[e.guarantee] = log
	log.trim(horizon)
	log.add(e.now, e.cost)
}

func (b *logBucket) giveBack(e memoryEvent, at int64, _ []limits.Limit) {
	b.remove(at, e.cost)
	if log := b.guaranteed[e.guarantee]; log != nil {
		log.remove(at, e.cost)
	}
}

func (b *logBucket) used(now, _ int64, limit limits.Limit) int64 {
	return b.count(now-limit.Window.Microseconds(), now+tolerance.Microseconds())
}
