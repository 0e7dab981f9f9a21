package status

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/summary"
)

// A spell of drops ends with so long a time without any.
const spellEnds = time.Minute

// Bounds of what is kept of spells.
const (
	mostSpells = 2000
	mostTitles = 3
)

// Suppression keeps, by category and level, how many events were dropped since drops began. Its methods may be called at once.
type Suppression struct {
	clock func() time.Time

	mu     sync.Mutex
	spells map[Denial]*spell
}

type spell struct {
	since, last time.Time
	count       int64
	titles      []string // as plain.Title returns them, the newest first
}

// NewSuppression starts with nothing dropped.
func NewSuppression() *Suppression {
	return &Suppression{clock: time.Now, spells: make(map[Denial]*spell)}
}

// Add counts drops. Beyond mostSpells, drops of further categories and levels are not counted until other spells have ended.
func (s *Suppression) Add(drops []summary.Drop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	for _, drop := range drops {
		key := Denial{drop.Category, drop.Level}
		known := s.spells[key]
		if known == nil || now.Sub(known.last) >= spellEnds {
			if known == nil && len(s.spells) >= mostSpells && !s.forget(now) {
				continue
			}
			known = &spell{since: now}
			s.spells[key] = known
		}
		known.last = now
		known.count += int64(drop.N)
		if drop.Title != "" && !slices.Contains(known.titles, drop.Title) {
			known.titles = append([]string{drop.Title}, known.titles...)
			known.titles = known.titles[:min(mostTitles, len(known.titles))]
		}
	}
}

// forget removes the spells that have ended, and tells whether there were any.
func (s *Suppression) forget(now time.Time) bool {
	before := len(s.spells)
	maps.DeleteFunc(s.spells, func(_ Denial, known *spell) bool { return now.Sub(known.last) >= spellEnds })
	return len(s.spells) < before
}

// Now returns the spells that go on, those with the most drops first.
func (s *Suppression) Now() []Suppressed {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(s.clock())
	var all []Suppressed
	for key, known := range s.spells {
		all = append(all, Suppressed{
			Category: key.Category, Level: key.Level, Count: known.count, Titles: slices.Clone(known.titles), Since: known.since,
		})
	}
	slices.SortFunc(all, compareSuppressed)
	return all
}

// compareSuppressed orders what is suppressed: what has the most drops first.
func compareSuppressed(a, b Suppressed) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Category, b.Category), strings.Compare(a.Level, b.Level))
}

// with adds what another worker drops of the same.
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

// addEnds says of what is suppressed when the limit has its next slot, where the limits tell.
func (s *Status) addEnds() {
	for i := range s.Suppressed {
		suppressed := &s.Suppressed[i]
		for _, limit := range s.Limits {
			covers := limit.Path == "" || limit.Path == suppressed.Category || strings.HasPrefix(suppressed.Category, limit.Path+".")
			if limit.Level == suppressed.Level && covers && limit.Next != nil {
				suppressed.Until = *limit.Next
			}
		}
	}
}
