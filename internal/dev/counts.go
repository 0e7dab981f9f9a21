package dev

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-4578ace9/notifier/internal/journal"
)

// outcomes are the columns of the table.
var outcomes = []journal.Result{journal.Sent, journal.Dropped, journal.Duplicate, journal.Dead, journal.Expired, journal.Folded}

// counted names what the metrics count: the events of a category that had an outcome, or that a level dropped.
type counted struct{ category, outcome, level string }

// counts has the numbers of events. The category "" has the sums of all.
type counts map[counted]int

// countsOf reads the metrics.
func countsOf(metrics prometheus.Gatherer) counts {
	c := make(counts)
	families, _ := metrics.Gather() // what could be gathered
	for _, family := range families {
		if name := family.GetName(); name != "notifier_events_total" && name != "notifier_dropped_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := make(map[string]string)
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			if n := int(m.GetCounter().GetValue()); n > 0 {
				c[counted{"", labels["outcome"], labels["level"]}] += n
				c[counted{cmp.Or(labels["category"], "(none)"), labels["outcome"], labels["level"]}] += n
			}
		}
	}
	return c
}

// events returns how many events of a category have ended; of all for "".
func (c counts) events(category string) (n int) {
	for series, count := range c {
		if series.category == category && series.level == "" {
			n += count
		}
	}
	return n
}

// categories returns the category with the most events first.
func (c counts) categories() []string {
	var names []string
	for series := range c {
		if series.category != "" && !slices.Contains(names, series.category) {
			names = append(names, series.category)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(c.events(b)-c.events(a), cmp.Compare(a, b)) })
	return names
}

// table returns a row for each of some categories and a row for all.
func (c counts) table(categories ...string) [][]string {
	header := []string{"CATEGORY", "EVENTS"}
	for _, outcome := range outcomes {
		header = append(header, strings.ToUpper(string(outcome)))
	}
	rows := [][]string{append(header, "DROPPED BY")}
	for _, category := range append(categories, "") {
		row := []string{cmp.Or(category, "all"), strconv.Itoa(c.events(category))}
		for _, outcome := range outcomes {
			row = append(row, strconv.Itoa(c[counted{category: category, outcome: string(outcome)}]))
		}
		var by []string
		for series, n := range c {
			if series.category == category && series.level != "" {
				by = append(by, fmt.Sprintf("%s %d", series.level, n))
			}
		}
		slices.Sort(by)
		rows = append(rows, append(row, strings.Join(by, ", ")))
	}
	return rows
}
