package summary

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Drop is a number of dropped notifications of one category and title.
type Drop struct {
	Category string
	Level    string // that denied them, or a level of package limits for drops that no limit makes
	Title    string // as plain.Title returns it; "": unknown
	N        int

	Mute string // text of the mute that denied them; "" for none. They are reported when the mute has ended
	Keys []Key  // the last states of keys of the mute's events
}

// Counter counts drops until the reporter takes them. A nil Counter counts nothing. Add may be called concurrently.
type Counter struct {
	channelOf func(category string) string
	wake      chan struct{} // receives a value at the first drop after a time without drops

	mu       sync.Mutex
	channels map[string]*channelCounts
	paths    map[place]*pathCounts // the paths that are counted by name
	dropping bool                  // drops were counted since take last found none
	rounds   int64                 // number of times that take returned drops
}

type channelCounts struct {
	Counts                         // without Groups
	groups map[string]*groupCounts // by first level
	keys   map[string]int          // positions in Keys, by name
	firing int                     // number of Keys that fire
}

// place is a category within the counts of a mute; without a mute, within all other counts.
type place struct{ mute, category string }

type groupCounts struct {
	more  int64
	paths []*pathCounts
}

// pathCounts are the counts of one category. It keeps the first title.
type pathCounts struct {
	Path
	place   place
	channel *channelCounts
}

func newCounter(channelOf func(string) string) *Counter {
	c := &Counter{channelOf: channelOf, wake: make(chan struct{}, 1)}
	c.clear()
	return c
}

func (c *Counter) clear() {
	c.channels, c.paths = make(map[string]*channelCounts), make(map[place]*pathCounts)
}

// Add counts drops, and returns the number of the round that will take them, starting at 1. The digest with these drops lists that round of
// this instance. Add keeps no memory of the caller. A nil Counter returns 0.
func (c *Counter) Add(drops []Drop) (round int64) {
	if c == nil || len(drops) == 0 {
		return 0
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	var path *pathCounts
	for i := range drops {
		d := &drops[i]
		if d.Level == limits.LevelUnpaired {
			c.channel(place{category: d.Category}, now).Unpaired += int64(d.N)
			continue
		}
		if d.Mute != "" {
			c.channel(place{d.Mute, d.Category}, now).addKeys(d.Keys)
		}
		if d.N == 0 {
			continue
		}
		if path == nil || path.place != (place{d.Mute, d.Category}) {
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
		default: // the reporter has not seen the last wake yet
		}
	}
	return c.rounds + 1
}

// channel returns the counts of a category's channel. A channel has separate counts for each mute. The caller holds the lock.
func (c *Counter) channel(at place, now time.Time) *channelCounts {
	name := joinName(c.channelOf(at.category), at.mute)
	of, known := c.channels[name]
	if !known {
		name = strings.Clone(name)
		of = &channelCounts{Counts: Counts{Channel: name, First: now}, groups: make(map[string]*groupCounts), keys: make(map[string]int)}
		c.channels[name] = of
	}
	of.Last = now
	return of
}

// path returns the counts of a drop's category. If the group has no free path, a larger drop takes the place of the smallest path. A smaller
// drop is counted in the group's remainder, and path returns nil. The caller holds the lock.
func (c *Counter) path(d *Drop, now time.Time) *pathCounts {
	at := place{d.Mute, d.Category}
	if known, found := c.paths[at]; found {
		known.channel.Last = now
		return known
	}
	channel := c.channel(at, now)
	first, _, _ := strings.Cut(d.Category, ".")
	group, known := channel.groups[first]
	if !known {
		if len(channel.groups) >= maxGroups {
			channel.More += int64(d.N)
			return nil
		}
		group = &groupCounts{}
		channel.groups[strings.Clone(first)] = group
	}
	number := len(group.paths)
	if len(group.paths) < maxPaths {
		group.paths = append(group.paths, nil)
	} else {
		smallest := slices.MinFunc(group.paths, func(a, b *pathCounts) int { return cmp.Compare(a.Dropped, b.Dropped) })
		if int64(d.N) <= smallest.Dropped {
			group.more += int64(d.N)
			return nil
		}
		group.more += smallest.Dropped
		delete(c.paths, smallest.place)
		number = slices.Index(group.paths, smallest)
	}
	path := &pathCounts{channel: channel, Path: Path{Path: strings.Clone(d.Category)}}
	path.place = place{strings.Clone(d.Mute), path.Path.Path}
	group.paths[number], c.paths[path.place] = path, path
	return path
}

// addKeys notes the states of up to maxKeys keys that fire, and of far more that do not: other rounds may have reported them as firing.
func (c *channelCounts) addKeys(keys []Key) {
	for _, key := range keys {
		at, known := c.keys[key.Name]
		switch {
		case known && key.At.Before(c.Keys[at].At):
		case known:
			c.firing += counted(key) - counted(c.Keys[at])
			c.Keys[at] = key
		case key.Firing && c.firing >= maxKeys:
			c.MoreKeys = true
		case key.Firing || len(c.Keys)-c.firing < maxEndedKeys:
			c.firing += counted(key)
			c.keys[key.Name] = len(c.Keys)
			c.Keys = append(c.Keys, key)
		}
	}
}

func counted(key Key) int {
	if key.Firing {
		return 1
	}
	return 0
}

func (p *pathCounts) add(d *Drop) {
	p.Dropped += int64(d.N)
	if p.Title == "" && d.Title != "" {
		p.Title = strings.Clone(d.Title)
	}
	for i := range p.Reasons {
		if p.Reasons[i].Level == d.Level {
			p.Reasons[i].Dropped += int64(d.N)
			return
		}
	}
	if d.Level != "" && len(p.Reasons) < maxLevels {
		p.Reasons = append(p.Reasons, Reason{Level: strings.Clone(d.Level), Dropped: int64(d.N)})
	}
}

// take returns the counts since the last round, by channel, and the number of this round.
func (c *Counter) take() (drops []Counts, round int64) {
	c.mu.Lock()
	taken := c.channels
	if len(taken) == 0 {
		c.dropping = false
		c.mu.Unlock()
		return nil, 0
	}
	c.clear()
	c.rounds++
	round = c.rounds
	c.mu.Unlock()

	for _, name := range slices.Sorted(maps.Keys(taken)) {
		d := taken[name].Counts
		for first, counted := range taken[name].groups {
			group := Group{Name: first, More: counted.more}
			for _, path := range counted.paths {
				group.Paths = append(group.Paths, path.Path)
			}
			d.Groups = append(d.Groups, group)
		}
		slices.SortStableFunc(d.Groups, func(a, b Group) int { return cmp.Compare(a.Name, b.Name) })
		drops = append(drops, d)
	}
	return drops, round
}

// inParts splits drops into parts of at most size paths each. The first part has the counts without paths.
func inParts(drops Counts, size int) []Counts {
	groups := drops.Groups
	drops.Groups = nil // the first part has the keys
	parts := []Counts{drops}
	room := size
	for _, group := range groups {
		if room < len(group.Paths) {
			parts = append(parts, Counts{Channel: drops.Channel, First: drops.First, Last: drops.Last})
			room = size
		}
		part := &parts[len(parts)-1]
		part.Groups = append(part.Groups, group)
		room -= len(group.Paths)
	}
	return parts
}
