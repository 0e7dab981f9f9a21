package summary

import (
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
	Unpaired bool   // no level did: they resolve what nobody was told of
	Title    string // "" if it is not known
	N        int
}

// maxTitle is how many characters of a title are kept.
const maxTitle = 150

// Counter counts drops until they are told to the other instances. A nil Counter counts nothing. Add may be called by any
// number of goroutines.
type Counter struct {
	channelOf func(category string) string
	wake      chan struct{} // filled by the first drop after a rest

	mu       sync.Mutex
	channels map[string]*channelCounts
	paths    map[string]*pathCounts // by category: those that are counted by name
	dropping bool                   // something was counted since the last time that there was nothing to take
}

// channelCounts are those of one channel.
type channelCounts struct {
	first, last    time.Time
	unpaired, more int64
	groups         map[string]*groupCounts // by first level
}

// groupCounts are those of the categories with one first level.
type groupCounts struct {
	more  int64
	paths []*pathCounts
}

// pathCounts are those of one category.
type pathCounts struct {
	channel  *channelCounts
	category string
	total    int64
	title    string // the first one, as it came
	levels   []throttle.NameCount
}

func newCounter(channelOf func(string) string) *Counter {
	c := &Counter{channelOf: channelOf, wake: make(chan struct{}, 1)}
	c.clear()
	return c
}

func (c *Counter) clear() {
	c.channels, c.paths = make(map[string]*channelCounts), make(map[string]*pathCounts)
}

// Add counts drops. It keeps no memory of the caller's.
func (c *Counter) Add(drops []Drop) {
	if c == nil || len(drops) == 0 {
		return
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	var path *pathCounts
	for i := range drops {
		d := &drops[i]
		if d.Unpaired {
			c.channel(d.Category, now).unpaired += int64(d.N)
			continue
		}
		if path == nil || path.category != d.Category {
			path = c.path(d, now)
		}
		if path != nil {
			path.add(d)
		}
	}
	if !c.dropping {
		c.dropping = true
		select {
		case c.wake <- struct{}{}:
		default: // it has not been seen yet
		}
	}
}

// channel returns the counts of a category's channel. The lock is held.
func (c *Counter) channel(category string, now time.Time) *channelCounts {
	name := c.channelOf(category)
	of, known := c.channels[name]
	if !known {
		of = &channelCounts{first: now, groups: make(map[string]*groupCounts)}
		c.channels[strings.Clone(name)] = of
	}
	of.last = now
	return of
}

// path returns the counts of a drop's category. Without room for it the drop is counted among the others with its first
// level, or displaces the smallest of them, and path returns nil or its new place. The lock is held.
func (c *Counter) path(d *Drop, now time.Time) *pathCounts {
	if known, found := c.paths[d.Category]; found {
		known.channel.last = now
		return known
	}
	channel := c.channel(d.Category, now)
	first, _, _ := strings.Cut(d.Category, ".")
	group, known := channel.groups[first]
	if !known {
		if len(channel.groups) >= throttle.MaxDropGroups {
			channel.more += int64(d.N)
			return nil
		}
		group = &groupCounts{}
		channel.groups[strings.Clone(first)] = group
	}
	path := &pathCounts{channel: channel}
	if len(group.paths) < throttle.MaxDropPaths {
		group.paths = append(group.paths, path)
	} else {
		at := group.smallest()
		smallest := group.paths[at]
		if int64(d.N) <= smallest.total {
			group.more += int64(d.N)
			return nil
		}
		group.more += smallest.total
		delete(c.paths, smallest.category)
		group.paths[at] = path
	}
	path.category = strings.Clone(d.Category)
	c.paths[path.category] = path
	return path
}

func (g *groupCounts) smallest() int {
	at := 0
	for i, path := range g.paths {
		if path.total < g.paths[at].total {
			at = i
		}
	}
	return at
}

func (p *pathCounts) add(d *Drop) {
	p.total += int64(d.N)
	if p.title == "" && d.Title != "" {
		p.title = strings.Clone(d.Title[:min(len(d.Title), utf8.UTFMax*maxTitle)])
	}
	for i := range p.levels {
		if p.levels[i].Name == d.Level {
			p.levels[i].Count += int64(d.N)
			return
		}
	}
	if d.Level != "" && len(p.levels) < throttle.MaxDropLevels {
		p.levels = append(p.levels, throttle.NameCount{Name: strings.Clone(d.Level), Count: int64(d.N)})
	}
}

// take returns what was counted since the last time, for each channel.
func (c *Counter) take() []throttle.Drops {
	c.mu.Lock()
	taken := c.channels
	if len(taken) == 0 {
		c.dropping = false
		c.mu.Unlock()
		return nil
	}
	c.clear()
	c.mu.Unlock()

	var drops []throttle.Drops
	for _, name := range slices.Sorted(maps.Keys(taken)) {
		of := taken[name]
		d := throttle.Drops{Channel: name, First: of.first, Last: of.last, Unpaired: of.unpaired, More: of.more}
		for _, first := range slices.Sorted(maps.Keys(of.groups)) {
			group := throttle.DropGroup{Name: first, More: of.groups[first].more}
			for _, path := range of.groups[first].paths {
				group.Paths = append(group.Paths, throttle.DroppedPath{
					Path: path.category, Count: path.total, Title: cleanTitle(path.title), Levels: path.levels,
				})
			}
			d.Groups = append(d.Groups, group)
		}
		drops = append(drops, d)
	}
	return drops
}

// inParts divides drops into such of at most so many paths each, with all counts in one of them.
func inParts(drops throttle.Drops, size int) []throttle.Drops {
	groups := drops.Groups
	drops.Groups = nil
	parts := []throttle.Drops{drops}
	room := size
	for _, group := range groups {
		if room < len(group.Paths) {
			parts = append(parts, throttle.Drops{Channel: drops.Channel, First: drops.First, Last: drops.Last})
			room = size
		}
		part := &parts[len(parts)-1]
		part.Groups = append(part.Groups, group)
		room -= len(group.Paths)
	}
	return parts
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
