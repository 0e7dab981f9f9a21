package status

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

const spellEnds = time.Minute

// Bounds of spells in memory.
const (
	mostSpells = 2000
	mostTitles = 3
)

// mostOfFirst bounds the categories and levels that are counted one by one of one first-level category. Its further drops are counted together,
// under the first level. So a flood of invented categories cannot hide the drops of other categories.
const mostOfFirst = 200

// perDenial has a value for each denial, and one for the further denials of a first level.
type perDenial[T any] struct {
	values map[Denial]*T
	firsts map[string]int // number of values, by first level
}

// of returns the value of a denial, which is zero at first. It returns nil if the denial is new and there may not be another value.
func (p *perDenial[T]) of(d Denial, mayGrow func(values int) bool) *T {
	if known := p.values[d]; known != nil {
		return known
	}
	if first := event.FirstLevel(d.Category); p.firsts[first] >= mostOfFirst {
		d.Category = first
	}
	value := p.values[d]
	if value == nil && mayGrow(len(p.values)) {
		if p.values == nil {
			p.values, p.firsts = make(map[Denial]*T), make(map[string]int)
		}
		d = Denial{strings.Clone(d.Category), strings.Clone(d.Level)} // they may be part of a large body
		value = new(T)
		p.values[d] = value
		p.firsts[event.FirstLevel(d.Category)]++
	}
	return value
}

func (p *perDenial[T]) forget(d Denial) {
	delete(p.values, d)
	first := event.FirstLevel(d.Category)
	if p.firsts[first]--; p.firsts[first] == 0 {
		delete(p.firsts, first)
	}
}

// Suppression counts drops by category and level since they began. Its methods may be called concurrently.
type Suppression struct {
	clock func() time.Time

	mu      sync.Mutex
	spells  perDenial[spell]
	nextEnd time.Time // no spell ends earlier
}

type spell struct {
	since, last time.Time
	count       int64
	titles      []string // as plain.Title returns them, the newest first
}

// NewSuppression returns a Suppression without drops.
func NewSuppression() *Suppression {
	return &Suppression{clock: time.Now}
}

// Add counts drops. With mostSpells spells, it ignores new categories and levels until a spell has ended.
func (s *Suppression) Add(drops []summary.Drop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	for _, drop := range drops {
		if drop.N == 0 { // it only changes what a report about a mute has of a key
			continue
		}
		known := s.spell(now, Denial{drop.Category, drop.Level})
		if known == nil {
			continue
		}
		known.last = now
		known.count += int64(drop.N)
		if drop.Title != "" && !slices.Contains(known.titles, drop.Title) {
			known.titles = append([]string{strings.Clone(drop.Title)}, known.titles...) // a short title may be part of a large body
			known.titles = known.titles[:min(mostTitles, len(known.titles))]
		}
	}
}

// spell returns the present spell of a denial; nil if there is no place for it.
func (s *Suppression) spell(now time.Time, of Denial) *spell {
	known := s.spells.of(of, func(spells int) bool { return spells < mostSpells || s.forget(now) })
	if known != nil && now.Sub(known.last) >= spellEnds {
		*known = spell{since: now}
	}
	return known
}

// forget removes ended spells, and reports whether there were any. It looks only if one may have ended: new categories call it for each drop.
func (s *Suppression) forget(now time.Time) bool {
	if now.Before(s.nextEnd) {
		return false
	}
	before := len(s.spells.values)
	s.nextEnd = now.Add(spellEnds)
	for key, known := range s.spells.values {
		if end := known.last.Add(spellEnds); !now.Before(end) {
			s.spells.forget(key)
		} else if end.Before(s.nextEnd) {
			s.nextEnd = end
		}
	}
	return len(s.spells.values) < before
}

// Now returns the present spells, in the order of byFirstLevel.
func (s *Suppression) Now() []Suppressed {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(s.clock())
	var all []Suppressed
	for key, known := range s.spells.values {
		all = append(all, Suppressed{
			Category: key.Category, Level: key.Level, Count: known.count, Titles: slices.Clone(known.titles), Since: known.since,
		})
	}
	return byFirstLevel(all)
}

// byFirstLevel sorts by drops, in descending order, with the largest entry of each first level before all other entries. Readers see the first
// few entries, so the categories of one first level cannot hide another first level.
func byFirstLevel(all []Suppressed) []Suppressed {
	slices.SortStableFunc(all, func(a, b Suppressed) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Category, b.Category), strings.Compare(a.Level, b.Level))
	})
	var largest, rest []Suppressed
	seen := make(map[string]bool)
	for _, each := range all {
		if first := event.FirstLevel(each.Category); seen[first] {
			rest = append(rest, each)
		} else {
			seen[first] = true
			largest = append(largest, each)
		}
	}
	return append(largest, rest...)
}

func (s Suppressed) with(other Suppressed) Suppressed {
	if s.Count == 0 {
		return other
	}
	s.Count += other.Count
	if other.Since.Before(s.Since) {
		s.Since = other.Since
	}
	for _, title := range other.Titles {
		if len(s.Titles) < mostTitles && !slices.Contains(s.Titles, title) {
			s.Titles = append(s.Titles, title)
		}
	}
	return s
}

// addEnds fills in when each suppression's limit next has a slot or its mute ends, or that nothing suppresses it any more, or that the limit has no
// slots, if known.
func (s *Status) addEnds() {
	for i := range s.Suppressed {
		suppressed := &s.Suppressed[i]
		if suppressed.Level == limits.LevelMute {
			suppressed.Until = s.muteEnd(suppressed.Category)
			suppressed.Open = suppressed.Until.IsZero()
			continue
		}
		isKnown, isFull := false, false
		for _, limit := range s.Limits {
			if limit.Level != suppressed.Level || !event.IsBelow(suppressed.Category, limit.Path) {
				continue
			}
			isKnown, isFull = true, isFull || limit.Full()
			suppressed.Never = suppressed.Never || limit.Size == 0
			if limit.Next != nil && limit.Next.After(suppressed.Until) {
				suppressed.Until = *limit.Next
			}
		}
		suppressed.Open = isKnown && !isFull
	}
}

// muteEnd returns when the last mute of a category ends; zero: the category is not muted.
func (s *Status) muteEnd(category string) (end time.Time) {
	for _, mute := range s.Mutes {
		covering := limits.Mute{Path: mute.Path}
		if covering.Covers(category) && mute.Until.After(s.At) && mute.Until.After(end) {
			end = mute.Until
		}
	}
	return end
}
