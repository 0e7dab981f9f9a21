package summary

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Drop is that notifications of one category and title were dropped for good.
type Drop struct {
	Category string
	Level    string // that denied them
	Title    string // "" if it is not known
	N        int
}

// maxTitle is how many characters of a title are kept.
const maxTitle = 150

// Counter counts drops until they are told to the other instances. A nil Counter counts nothing. Add may be called by any
// number of goroutines.
type Counter struct {
	wake chan struct{} // filled by the first drop after a rest

	mu         sync.Mutex
	categories map[string]*counts
	leftOut    int64 // drops of categories that had no room
	dropping   bool  // something was counted since the last time that there was nothing to take
}

// counts are those of one category.
type counts struct {
	total       int64
	first, last time.Time
	levels      []throttle.NameCount
	titles      map[string]*int64
}

func newCounter() *Counter {
	return &Counter{wake: make(chan struct{}, 1), categories: make(map[string]*counts)}
}

// Add counts drops. It keeps no memory of the caller's.
func (c *Counter) Add(drops []Drop) {
	if c == nil || len(drops) == 0 {
		return
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	var (
		current  *counts
		category string
	)
	for i := range drops {
		d := &drops[i]
		if current == nil || d.Category != category {
			current, category = c.of(d.Category, now), d.Category
		}
		if current == nil {
			c.leftOut += int64(d.N)
			continue
		}
		current.add(d)
	}
	if !c.dropping {
		c.dropping = true
		select {
		case c.wake <- struct{}{}:
		default: // it has not been seen yet
		}
	}
}

// of returns the counts of a category, nil if there is no room for it. The lock is held.
func (c *Counter) of(category string, now time.Time) *counts {
	of, known := c.categories[category]
	switch {
	case known:
	case len(c.categories) >= throttle.MaxDropCategories:
		return nil
	default:
		of = &counts{first: now, titles: make(map[string]*int64)}
		c.categories[strings.Clone(category)] = of
	}
	of.last = now
	return of
}

func (c *counts) add(d *Drop) {
	c.total += int64(d.N)
	c.addLevel(d.Level, int64(d.N))
	title := d.Title[:min(len(d.Title), utf8.UTFMax*maxTitle)]
	switch count, known := c.titles[title]; {
	case known:
		*count += int64(d.N)
	case title != "" && len(c.titles) < throttle.MaxDropNames:
		n := int64(d.N)
		c.titles[strings.Clone(title)] = &n
	}
}

func (c *counts) addLevel(level string, n int64) {
	for i := range c.levels {
		if c.levels[i].Name == level {
			c.levels[i].Count += n
			return
		}
	}
	if level != "" && len(c.levels) < throttle.MaxDropNames {
		c.levels = append(c.levels, throttle.NameCount{Name: strings.Clone(level), Count: n})
	}
}

// take returns what was counted since the last time, and how many drops were left out.
func (c *Counter) take() (drops []throttle.Drops, leftOut int64) {
	c.mu.Lock()
	taken := c.categories
	leftOut, c.leftOut = c.leftOut, 0
	if len(taken) == 0 {
		c.dropping = false
		c.mu.Unlock()
		return nil, leftOut
	}
	c.categories = make(map[string]*counts, len(taken))
	c.mu.Unlock()

	for _, category := range slices.Sorted(maps.Keys(taken)) {
		of := taken[category]
		drops = append(drops, throttle.Drops{
			Category: category, Total: of.total, First: of.first, Last: of.last, Levels: of.levels, Titles: of.cleanTitles(),
		})
	}
	return drops, leftOut
}

// cleanTitles are the titles as they are kept, the most frequent first.
func (c *counts) cleanTitles() []throttle.NameCount {
	byTitle := make(map[string]int64, len(c.titles))
	for title, count := range c.titles {
		if title = cleanTitle(title); title != "" {
			byTitle[title] += *count
		}
	}
	titles := make([]throttle.NameCount, 0, len(byTitle))
	for title, count := range byTitle {
		titles = append(titles, throttle.NameCount{Name: title, Count: count})
	}
	slices.SortFunc(titles, func(a, b throttle.NameCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Name, b.Name))
	})
	return titles
}

// cleanTitle is a title as one line of valid UTF-8, cut.
func cleanTitle(title string) string {
	title = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(title, ""))
	title = strings.Join(strings.Fields(title), " ")
	if utf8.RuneCountInString(title) <= maxTitle {
		return title
	}
	return string([]rune(title)[:maxTitle-1]) + "…"
}
