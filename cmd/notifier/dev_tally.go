//go:build !nodev

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume"
)

// counts are events by their outcome.
type counts struct {
	events   int
	outcomes map[string]int
	dropped  map[string]int // by level
}

func newCounts() *counts {
	return &counts{outcomes: make(map[string]int), dropped: make(map[string]int)}
}

// of is how many events had an outcome.
func (c *counts) of(outcome consume.Outcome) int { return c.outcomes[string(outcome)] }

// droppedBy says how many events each level has dropped; "" for none.
func (c *counts) droppedBy() string {
	var levels []string
	for _, level := range slices.Sorted(maps.Keys(c.dropped)) {
		levels = append(levels, fmt.Sprintf("%s %d", level, c.dropped[level]))
	}
	return strings.Join(levels, ", ")
}

// maxTallied bounds the categories that are counted by name. The others are otherCategories together.
const (
	maxTallied      = 1000
	otherCategories = "(others)"
	noCategory      = "(none)" // of an event whose category cannot be read
)

// tally counts outcomes for people, on their way to the metrics.
type tally struct {
	consume.Metrics

	deadLetter func(reason string, isFirst bool)

	mu         sync.Mutex
	anyDead    bool // a dead letter was told
	total      *counts
	categories map[string]*counts
	waiting    map[string]int // events in the room, by reason
}

func newTally(deadLetter func(reason string, isFirst bool)) *tally {
	return &tally{deadLetter: deadLetter, total: newCounts(), categories: make(map[string]*counts), waiting: make(map[string]int)}
}

// Event implements [consume.Metrics].
func (t *tally) Event(category, outcome string, n int) {
	t.Metrics.Event(category, outcome, n)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range []*counts{t.total, t.category(category)} {
		c.events += n
		c.outcomes[outcome] += n
	}
}

// Dropped implements [consume.Metrics].
func (t *tally) Dropped(category, level string, n int, trace string) {
	t.Metrics.Dropped(category, level, n, trace)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total.dropped[level] += n
	t.category(category).dropped[level] += n
}

// DeadLetter implements [consume.Metrics].
func (t *tally) DeadLetter(reason string) {
	t.Metrics.DeadLetter(reason)
	t.mu.Lock()
	isFirst := !t.anyDead
	t.anyDead = true
	t.mu.Unlock()
	t.deadLetter(reason, isFirst)
}

// RoomPending implements [consume.Metrics].
func (t *tally) RoomPending(reason string, n int) {
	t.Metrics.RoomPending(reason, n)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[reason] = n
}

// category returns the counts of a category. The caller holds mu.
func (t *tally) category(name string) *counts {
	name = cmp.Or(name, noCategory)
	if t.categories[name] == nil && len(t.categories) >= maxTallied {
		name = otherCategories
	}
	if t.categories[name] == nil {
		t.categories[name] = newCounts()
	}
	return t.categories[name]
}

// now returns what was counted so far, and how many events wait.
func (t *tally) now() (total counts, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.waiting {
		waiting += n
	}
	return counts{t.total.events, maps.Clone(t.total.outcomes), maps.Clone(t.total.dropped)}, waiting
}

// busiest lists the categories with the most events, those first.
func (t *tally) busiest(most int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := slices.SortedFunc(maps.Keys(t.categories), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.categories[b].events, t.categories[a].events), cmp.Compare(a, b))
	})
	return names[:min(len(names), most)]
}

// maxTableRows bounds the categories in the table.
const maxTableRows = 30

// printTable prints what became of the events of each category. Outcomes that no event had are left out.
func (t *tally) printTable(out io.Writer, took time.Duration) error {
	total, waiting := t.now()
	_, _ = fmt.Fprintf(out, "\n%s in %s\n", numbered(total.events, "event", "events"), took.Round(time.Second))
	if total.events == 0 {
		return nil
	}
	shown := []consume.Outcome{consume.Sent, consume.Dropped}
	for _, outcome := range []consume.Outcome{consume.Duplicate, consume.Dead, consume.Expired} {
		if total.of(outcome) > 0 {
			shown = append(shown, outcome)
		}
	}
	header := []string{"CATEGORY", "EVENTS"}
	for _, outcome := range shown {
		header = append(header, strings.ToUpper(string(outcome)))
	}
	row := func(name string, c *counts) []string {
		cells := []string{name, strconv.Itoa(c.events)}
		for _, outcome := range shown {
			cells = append(cells, strconv.Itoa(c.of(outcome)))
		}
		return append(cells, c.droppedBy())
	}
	rows := [][]string{append(header, "DROPPED BY")}
	names := t.busiest(maxTableRows)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		rows = append(rows, row(name, t.categories[name]))
	}
	if err := printTable(out, append(rows, row("all", &total))); err != nil {
		return err
	}
	if more := len(t.categories) - len(names); more > 0 {
		_, _ = fmt.Fprintf(out, "%s not shown\n", numbered(more, "category is", "categories are"))
	}
	if waiting > 0 {
		_, _ = fmt.Fprintf(out, "%s still waiting\n", numbered(waiting, "event was", "events were"))
	}
	return nil
}
