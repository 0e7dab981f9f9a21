package dev

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/cli"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// totals returns the outcomes of all events.
func (c *counts) totals(colours screen.Colours) string {
	total := c.of("")
	dropped := fmt.Sprintf("dropped %d", total.of(journal.Dropped))
	if by := total.droppedBy(); by != "" {
		dropped += " (" + by + ")"
	}
	return fmt.Sprintf("events %d  %s  %s  duplicate %d  dead %d  expired %d  folded %d  waiting %d", total.events,
		colours.Green(fmt.Sprintf("sent %d", total.of(journal.Sent))), colours.Amber(dropped),
		total.of(journal.Duplicate), total.of(journal.Dead), total.of(journal.Expired), total.of(journal.Folded), c.waiting)
}

// maxNamed bounds the full limits that are named.
const maxNamed = 3

// slots names the full limits. A full global limit stands for all.
func slots(s status.Status) string {
	var full []string
	for _, limit := range s.Limits {
		if name := limit.Name(); limit.Full() && !slices.Contains(full, name) {
			full = append(full, name)
		}
	}
	switch more := len(full) - maxNamed; {
	case len(s.Workers) == 0:
		return "the limits cannot be asked"
	case !s.Knows(status.LimitsPart):
		return "the use of the limits is not known"
	case len(full) == 0:
		return "slots are free"
	case slices.Contains(full, limits.LevelGlobal):
		return "full: " + limits.LevelGlobal
	case more > 0:
		full = append(full[:maxNamed-1], fmt.Sprintf("%s and %d more", full[maxNamed-1], more))
	}
	return "full: " + strings.Join(full, ", ")
}

// display shows the guide, the totals and the status above the lines of the worker. Without a terminal it prints a line of totals whenever
// they change.
type display struct {
	*screen.Pane
	began time.Time

	mu     sync.Mutex
	guide  []string // the title first
	counts counts
	status status.Status
	last   string // the printed totals; "" before the first
}

func newDisplay(out io.Writer) *display {
	d := &display{Pane: screen.NewPane(out), began: time.Now(), guide: []string{"notifier dev"}, counts: counts{categories: make(map[string]*count)}}
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

func (d *display) update(now counts, s status.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	begun := now.of("").events > 0 || s.Knows(status.LimitsPart) // the worker has read its first event or the limits
	if printed := now.totals(screen.Colours{}) + slots(s); begun && !d.IsDrawn() && printed != d.last {
		d.last = printed
		d.Line("%s  %s  %s", d.Bold("totals"), now.totals(d.Colours), slots(s))
	}
	d.counts, d.status = now, s
}

// rows returns the rows above the lines. On a small terminal totals come before the status, and the status before the guide.
func (d *display) rows(width, height int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	rows := []string{fmt.Sprintf("%s   running %ds   Ctrl-C ends it with a table", d.Bold(d.guide[0]), int(time.Since(d.began).Seconds()))}
	totals := screen.Fold(d.counts.totals(d.Colours), width, max(1, min(3, height-2)))
	most := height / 2 // rows of the status
	if len(d.guide)+len(totals)+height/3 <= height {
		rows, most = append(rows, d.guide[1:]...), height/3
	}
	if len(rows)+len(totals) <= height {
		rows = append(rows, totals...)
	}
	if most = min(most, height-len(rows)); most > 0 && len(d.status.Workers) > 0 {
		rows = append(rows, cli.StatusRows(d.status, width, most)...)
	}
	return rows
}
