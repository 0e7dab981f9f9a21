package dev

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/screen"
)

// count is what became of the events of one category, or of all.
type count struct {
	events   int
	outcomes map[string]int
	dropped  map[string]int // by level
}

func newCount() *count { return &count{outcomes: make(map[string]int), dropped: make(map[string]int)} }

// of returns how many events had an outcome.
func (c *count) of(outcome consume.Outcome) int { return c.outcomes[string(outcome)] }

// droppedBy returns how many events each level dropped; "" for none.
func (c *count) droppedBy() string {
	var levels []string
	for _, level := range slices.Sorted(maps.Keys(c.dropped)) {
		levels = append(levels, fmt.Sprintf("%s %d", level, c.dropped[level]))
	}
	return strings.Join(levels, ", ")
}

// counts are what the worker's metrics have counted.
type counts struct {
	total      *count
	categories map[string]*count
	dead       []string // the reason of each dead letter
	waiting    int      // events in the room
}

// countsOf reads the metrics. A series at zero is left out.
func countsOf(metrics prometheus.Gatherer) counts {
	c := counts{total: newCount(), categories: make(map[string]*count)}
	families, _ := metrics.Gather() // what could be gathered
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := make(map[string]string)
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			n, category := int(m.GetCounter().GetValue()+m.GetGauge().GetValue()), cmp.Or(labels["category"], "(none)")
			if n == 0 {
				continue
			}
			switch family.GetName() {
			case "notifier_events_total":
				for _, each := range []*count{c.total, c.of(category)} {
					each.events += n
					each.outcomes[labels["outcome"]] += n
				}
			case "notifier_dropped_total":
				c.total.dropped[labels["level"]] += n
				c.of(category).dropped[labels["level"]] += n
			case "notifier_dead_letters_total":
				c.dead = append(c.dead, slices.Repeat([]string{labels["reason"]}, n)...)
			case "notifier_room_pending":
				c.waiting += n
			}
		}
	}
	return c
}

func (c counts) of(category string) *count {
	if c.categories[category] == nil {
		c.categories[category] = newCount()
	}
	return c.categories[category]
}

// busiest returns the categories, the one with the most events first.
func (c counts) busiest() []string {
	return slices.SortedFunc(maps.Keys(c.categories), func(a, b string) int {
		return cmp.Or(cmp.Compare(c.categories[b].events, c.categories[a].events), cmp.Compare(a, b))
	})
}

// print prints a row for each category. An outcome that no event had has no column.
func (c counts) print(out io.Writer, took time.Duration) error {
	_, _ = fmt.Fprintf(out, "\n%s in %s\n", screen.Numbered(c.total.events, "event", "events"), took.Round(time.Second))
	if c.total.events == 0 {
		return nil
	}
	header, shown := []string{"CATEGORY", "EVENTS"}, []consume.Outcome{}
	for _, outcome := range []consume.Outcome{consume.Sent, consume.Dropped, consume.Duplicate, consume.Dead, consume.Expired} {
		if len(shown) < 2 || c.total.of(outcome) > 0 {
			header, shown = append(header, strings.ToUpper(string(outcome))), append(shown, outcome)
		}
	}
	rows := [][]string{append(header, "DROPPED BY")}
	add := func(name string, row *count) {
		cells := []string{name, strconv.Itoa(row.events)}
		for _, outcome := range shown {
			cells = append(cells, strconv.Itoa(row.of(outcome)))
		}
		rows = append(rows, append(cells, row.droppedBy()))
	}
	for _, name := range c.busiest() {
		add(name, c.categories[name])
	}
	add("all", c.total)
	if err := screen.PrintTable(out, rows); err != nil || c.waiting == 0 {
		return err
	}
	_, err := fmt.Fprintf(out, "%s still waiting\n", screen.Numbered(c.waiting, "event was", "events were"))
	return err
}
