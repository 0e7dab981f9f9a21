package telemetry

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Bounds of what is remembered of categories without a label.
const (
	maxContenders = 32 // of one first-level category
	maxStrangers  = 64 // first-level categories without any label
)

// When a category has shown that it is worth a label.
const (
	convincing = 100              // events
	lasting    = time.Minute      // or how long it comes again and again
	awardEvery = 10 * time.Second // to one of each first-level category
	fadeEvery  = 10 * time.Minute // by half
)

// busiest says which categories get the labels that are free after the configured ones.
//
// Whoever publishes below one first-level category must not take the labels of the others, however many categories it invents and
// however many events it sends. So each first-level category, a family, has its own sketch, and holds at most as many labels as are
// left for all others. The first category of a family needs no proof, while half of the labels are left.
//
// A sketch is a Space-Saving one: a newcomer takes the place of the contender with the fewest events. These events count as the
// newcomer's doubt, so that only events that certainly came of a category count for it.
type busiest struct {
	unproven  int                // labels that may yet be given without proof
	families  map[string]*family // those that hold a label, and the strangers
	strangers []*family
	nextAward time.Time
	nextFade  time.Time
}

// family is the categories of one first level.
type family struct {
	name       string
	held       int // labels, without those of configured categories
	events     int // of its contenders
	contenders []contender
}

// contender is a category without a label.
type contender struct {
	category string
	events   int
	doubt    int // how many of the events may have been those of others
	since    time.Time
	lasts    bool
}

func (c contender) certain() int { return c.events - c.doubt }

func (c contender) worthy() bool { return c.certain() >= convincing || c.lasts }

// reserve says how many labels are free before the first event.
func (b *busiest) reserve(free int) {
	b.unproven = (free + 1) / 2
	b.families = make(map[string]*family)
}

// count notes n events of a category without a label, and returns the categories that get one of the free labels now.
func (b *busiest) count(category string, n, free int, now time.Time) []string {
	if free <= 0 {
		return nil
	}
	b.fade(now)
	f := b.family(category)
	if f.held == 0 && b.unproven > 0 {
		b.unproven--
		return []string{b.give(f, category)}
	}
	if f.held >= free { // for ever: what is free only becomes less
		f.contenders = nil
		return nil
	}
	f.count(category, n, now)
	if now.Before(b.nextAward) {
		return nil
	}
	b.nextAward = now.Add(awardEvery)
	return b.award(free)
}

// family returns the family of a category. A new family is a stranger, and may replace the stranger with the fewest events.
func (b *busiest) family(category string) *family {
	name, _, _ := strings.Cut(category, ".")
	if f, known := b.families[name]; known {
		return f
	}
	f := &family{name: strings.Clone(name)}
	if len(b.strangers) == maxStrangers {
		least := slices.MinFunc(b.strangers, func(x, y *family) int { return cmp.Compare(x.events, y.events) })
		delete(b.families, least.name)
		b.strangers = slices.DeleteFunc(b.strangers, func(other *family) bool { return other == least })
		f.events = least.events
	}
	b.strangers = append(b.strangers, f)
	b.families[f.name] = f
	return f
}

func (f *family) count(category string, n int, now time.Time) {
	f.events += n
	least := 0
	for i := range f.contenders {
		c := &f.contenders[i]
		if c.category == category {
			c.events += n
			c.lasts = c.lasts || now.Sub(c.since) >= lasting
			return
		}
		if c.events < f.contenders[least].events {
			least = i
		}
	}
	c := contender{category: category, events: n, since: now}
	if len(f.contenders) < maxContenders {
		f.contenders = append(f.contenders, c)
		return
	}
	c.doubt = f.contenders[least].events
	c.events += c.doubt
	f.contenders[least] = c
}

// award gives one label to the busiest worthy contender of each family. Families that hold the fewest labels come first.
func (b *busiest) award(free int) (given []string) {
	type candidate struct {
		family *family
		contender
	}
	var candidates []candidate
	for _, f := range b.families {
		best := candidate{family: f}
		for _, c := range f.contenders {
			if c.worthy() && (best.category == "" || c.certain() > best.certain()) {
				best.contender = c
			}
		}
		if best.category != "" {
			candidates = append(candidates, best)
		}
	}
	slices.SortFunc(candidates, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(x.family.held, y.family.held), cmp.Compare(y.certain(), x.certain()), cmp.Compare(x.category, y.category))
	})
	for _, c := range candidates {
		if c.family.held < free {
			given = append(given, b.give(c.family, c.category))
			free--
		}
	}
	return given
}

func (b *busiest) give(f *family, category string) string {
	if f.held == 0 {
		b.strangers = slices.DeleteFunc(b.strangers, func(other *family) bool { return other == f })
	}
	f.held++
	f.contenders = slices.DeleteFunc(f.contenders, func(c contender) bool { return c.category == category })
	return strings.Clone(category) // it is kept, and must not keep a whole message
}

// fade halves all counts from time to time, so that the busiest are those of late.
func (b *busiest) fade(now time.Time) {
	if b.nextFade.IsZero() {
		b.nextFade = now.Add(fadeEvery)
	}
	if now.Before(b.nextFade) {
		return
	}
	halvings := min(1+int(now.Sub(b.nextFade)/fadeEvery), 62) // after so many nothing is left
	b.nextFade = now.Add(fadeEvery)
	for _, f := range b.families {
		f.events >>= halvings
		for i := range f.contenders {
			f.contenders[i].events >>= halvings
			f.contenders[i].doubt >>= halvings
		}
	}
}
