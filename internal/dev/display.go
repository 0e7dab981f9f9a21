package dev

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/screen"
)

// situation is what dev shows of one moment.
type situation struct {
	counts
	limits  []limits.Use
	at      time.Time // when the limits were asked
	unknown bool      // the limits could not be asked
}

// denies reports whether a limit would deny an event of one slot.
func denies(limit limits.Use) bool { return limit.Next != nil || limit.Size == 0 }

// waitOf returns the time until the next slot of a full limit. It returns 0 if no slot opens.
func (s situation) waitOf(limit limits.Use) time.Duration {
	if limit.Next == nil {
		return 0
	}
	return max(1, limit.Next.Sub(s.at))
}

// nextSlot returns when a full limit has a slot again.
func nextSlot(wait time.Duration) string {
	if wait == 0 {
		return "no slot opens"
	}
	return "next slot in " + (wait + time.Second - 1).Truncate(time.Second).String()
}

func (s *situation) outcomes(colours screen.Colours) string {
	total := s.of("")
	dropped := fmt.Sprintf("dropped %d", total.of(consume.Dropped))
	if by := total.droppedBy(); by != "" {
		dropped += " (" + by + ")"
	}
	return fmt.Sprintf("events %d  %s  %s  duplicate %d  dead %d  expired %d  folded %d  waiting %d", total.events,
		colours.Green(fmt.Sprintf("sent %d", total.of(consume.Sent))), colours.Amber(dropped),
		total.of(consume.Duplicate), total.of(consume.Dead), total.of(consume.Expired), total.of(consume.Folded), s.waiting)
}

// full returns the paths with a full limit, and when the first of them has a slot. A full global limit stands for all.
func (s *situation) full() (paths []string, soonest time.Duration) {
	for _, limit := range s.limits {
		switch path := limit.Name(); {
		case !denies(limit):
			continue
		case path == limits.LevelGlobal:
			return []string{path}, s.waitOf(limit)
		case !slices.Contains(paths, path):
			paths = append(paths, path)
		}
		if wait := s.waitOf(limit); wait > 0 && (soonest == 0 || wait < soonest) {
			soonest = wait
		}
	}
	return paths, soonest
}

// maxNamed bounds the full limits that are named.
const maxNamed = 3

// slots returns whether slots are free, or which limits are full and when the next slot opens.
func (s *situation) slots() string {
	paths, soonest := s.full()
	switch more := len(paths) - maxNamed; {
	case s.unknown:
		return "the limits cannot be asked"
	case len(paths) == 0:
		return "slots are free"
	case more > 0:
		paths = append(paths[:maxNamed-1], fmt.Sprintf("%s and %d more", paths[maxNamed-1], more))
	}
	return "full: " + strings.Join(paths, ", ") + ", " + nextSlot(soonest)
}

// display shows the guide and the situation above the lines of the worker. Without a terminal it prints a line whenever the situation changes.
type display struct {
	*screen.Pane
	began time.Time

	mu    sync.Mutex
	guide []string // the title first
	now   situation
	last  string // the printed situation without the time to the next slot; "" before the first
}

func newDisplay(out io.Writer) *display {
	d := &display{Pane: screen.NewPane(out), began: time.Now(), guide: []string{"notifier dev"}, now: situation{counts: counts{categories: make(map[string]*count)}}}
	d.Show(d.rows)
	return d
}

func (d *display) introduce(guide []string) {
	if !d.IsDrawn() {
		d.Line("%s\n%s\nstop     Ctrl-C, which prints a table\n", d.Bold(guide[0]), strings.Join(guide[1:], "\n"))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.guide = guide
}

func (d *display) update(s situation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	paths, _ := s.full()
	if printed := fmt.Sprint(s.outcomes(screen.Colours{}), paths, s.unknown); !d.IsDrawn() && printed != d.last {
		d.last = printed
		d.Line("%s  %s  %s", d.Bold("totals"), s.outcomes(d.Colours), s.slots())
	}
	d.now = s
}

// rows returns what stands above the lines. On a small terminal counts come before limits, and limits before the guide.
func (d *display) rows(width, height int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	rows := []string{fmt.Sprintf("%s   running %ds   Ctrl-C ends it with a table", d.Bold(d.guide[0]), int(time.Since(d.began).Seconds()))}
	counted := append(screen.Fold(d.now.outcomes(d.Colours), width, max(1, min(3, height-2))), d.now.slots())
	bars := d.bars()
	if len(d.guide)+len(counted)+min(len(bars), 1) <= height {
		rows = append(rows, d.guide[1:]...)
	}
	if len(rows)+len(counted) <= height {
		rows = append(rows, counted...)
	}
	return append(rows, bars[:max(0, min(len(bars), height-len(rows), height/3))]...)
}

// bars returns a row for each limit.
func (d *display) bars() (rows []string) {
	const length = 20
	longest := 0
	for _, limit := range d.now.limits {
		longest = max(longest, utf8.RuneCountInString(limit.Name()))
	}
	for _, limit := range d.now.limits {
		size, used := limit.Size, int64(length)
		if size > 0 {
			used = min(length, limit.Used*length/size)
		}
		row := fmt.Sprintf("%-*s %-8s [%s%s] %d of %d", longest, limit.Name(), limit.Limit,
			strings.Repeat("#", int(used)), strings.Repeat(".", length-int(used)), limit.Used, size)
		if denies(limit) {
			row = d.Amber(row + ", full, " + nextSlot(d.now.waitOf(limit)))
		}
		rows = append(rows, row)
	}
	return rows
}
