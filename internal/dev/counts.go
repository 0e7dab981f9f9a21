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

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/screen"
)

// count is what became of the events of one category or of all.
type count struct {
	events   int
	outcomes map[string]int
	dropped  map[string]int // by level
}

// of returns how many events had an outcome.
func (c *count) of(outcome journal.Result) int { return c.outcomes[string(outcome)] }

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
	categories map[string]*count // "" has the sum
	dead       map[string]int    // dead letters by their reason
	waiting    int               // events in the room
}

// countsOf reads the metrics. A series at zero is left out.
func countsOf(metrics prometheus.Gatherer) counts {
	c := counts{categories: make(map[string]*count), dead: make(map[string]int)}
	families, _ := metrics.Gather() // what could be gathered
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := make(map[string]string)
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			if n := int(m.GetCounter().GetValue() + m.GetGauge().GetValue()); n > 0 {
				c.add(family.GetName(), labels, n)
			}
		}
	}
	return c
}

func (c *counts) add(series string, labels map[string]string, n int) {
	both := []string{"", cmp.Or(labels["category"], "(none)")}
	switch series {
	case "notifier_events_total":
		for _, category := range both {
			c.of(category).events += n
			c.of(category).outcomes[labels["outcome"]] += n
		}
	case "notifier_dropped_total":
		for _, category := range both {
			c.of(category).dropped[labels["level"]] += n
		}
	case "notifier_dead_letters_total":
		c.dead[labels["reason"]] += n
	case "notifier_room_pending":
		if reason := room.Reason(labels["reason"]); reason != room.Update && reason != room.Steady { // updates and reports are no events
			c.waiting += n
		}
	}
}

// of returns the count of a category; of all for "".
func (c *counts) of(category string) *count {
	if c.categories[category] == nil {
		c.categories[category] = &count{outcomes: make(map[string]int), dropped: make(map[string]int)}
	}
	return c.categories[category]
}

// deadSince returns the reason of each dead letter that earlier counts lack.
func (c *counts) deadSince(earlier counts) (reasons []string) {
	for _, reason := range slices.Sorted(maps.Keys(c.dead)) {
		reasons = append(reasons, slices.Repeat([]string{reason}, max(0, c.dead[reason]-earlier.dead[reason]))...)
	}
	return reasons
}

// busiest returns the categories, the one with the most events first.
func (c *counts) busiest() []string {
	names := slices.SortedFunc(maps.Keys(c.categories), func(a, b string) int {
		return cmp.Or(cmp.Compare(c.of(b).events, c.of(a).events), cmp.Compare(a, b))
	})
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// print prints a row for each category. An outcome that no event had has no column.
func (c *counts) print(out io.Writer, took time.Duration) error {
	total := c.of("")
	_, err := fmt.Fprintf(out, "\n%s in %s\n", screen.Numbered(total.events, "event", "events"), took.Round(time.Second))
	if total.events == 0 || err != nil {
		return err
	}
	shown := []journal.Result{journal.Sent, journal.Dropped, journal.Duplicate, journal.Dead, journal.Expired, journal.Folded}
	shown = slices.DeleteFunc(shown, func(o journal.Result) bool { return o != journal.Sent && o != journal.Dropped && total.of(o) == 0 })
	header := []string{"CATEGORY", "EVENTS"}
	for _, outcome := range shown {
		header = append(header, strings.ToUpper(string(outcome)))
	}
	rows := [][]string{append(header, "DROPPED BY")}
	for _, name := range append(c.busiest(), "") {
		row := c.of(name)
		cells := []string{cmp.Or(name, "all"), strconv.Itoa(row.events)}
		for _, outcome := range shown {
			cells = append(cells, strconv.Itoa(row.of(outcome)))
		}
		rows = append(rows, append(cells, row.droppedBy()))
	}
	if err := screen.PrintTable(out, rows); err != nil || c.waiting == 0 {
		return err
	}
	_, err = fmt.Fprintf(out, "%s still waiting\n", screen.Numbered(c.waiting, "event was", "events were"))
	return err
}
