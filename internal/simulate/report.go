package simulate

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// Report is what became of the events under one set of limits.
type Report struct {
	From, To time.Time // of the first and the last event; zero without events
	Invalid  int       // lines or messages that could not be used, or not all of them
	Paths    []Path    // the one with the most events first, then by category
	Total    Path      // of all events; without a category
}

// Path is what became of the events of one category. Seen is the sum of Sent, Duplicate and all of Dropped.
type Path struct {
	Category  string
	Seen      int
	Sent      int
	Duplicate int
	Dropped   map[string]int // by the rule that denied: global, category, or a pattern; or LevelUnpaired
	// LongestSilence is the longest time in which nothing was sent, between the path's first event and its last.
	LongestSilence time.Duration
}

// Drops is how many events were dropped, whatever the rule.
func (p Path) Drops() int {
	sum := 0
	for _, n := range p.Dropped {
		sum += n
	}
	return sum
}

func (h *History) report(tallies []tally, total tally) Report {
	r := Report{Invalid: h.Invalid, Paths: make([]Path, len(tallies)), Total: total.path("")}
	for i := range tallies {
		r.Paths[i] = tallies[i].path(h.categories[i])
	}
	slices.SortFunc(r.Paths, func(a, b Path) int {
		return cmp.Or(cmp.Compare(b.Seen, a.Seen), cmp.Compare(a.Category, b.Category))
	})
	if len(h.events) > 0 {
		r.From = time.UnixMicro(h.events[0].at).UTC()
		r.To = time.UnixMicro(h.events[len(h.events)-1].at).UTC()
	}
	return r
}

// MarshalJSON is the form that programs read. The times are null without events.
func (r Report) MarshalJSON() ([]byte, error) {
	var from, to *time.Time
	if r.Total.Seen > 0 {
		from, to = &r.From, &r.To
	}
	return json.Marshal(struct {
		From    *time.Time `json:"from"`
		To      *time.Time `json:"to"`
		Events  int        `json:"events"`
		Invalid int        `json:"invalid"`
		Paths   []Path     `json:"paths"`
		Total   Path       `json:"total"`
	}{from, to, r.Total.Seen, r.Invalid, append([]Path{}, r.Paths...), r.Total})
}

// MarshalJSON is the form that programs read.
func (p Path) MarshalJSON() ([]byte, error) {
	dropped := make(map[string]int, len(p.Dropped)) // never null
	maps.Copy(dropped, p.Dropped)
	return json.Marshal(struct {
		Category       string         `json:"category,omitempty"`
		Seen           int            `json:"seen"`
		Sent           int            `json:"sent"`
		Duplicate      int            `json:"duplicate"`
		Dropped        map[string]int `json:"dropped"`
		LongestSilence float64        `json:"longest_silence_seconds"`
	}{p.Category, p.Seen, p.Sent, p.Duplicate, dropped, p.LongestSilence.Seconds()})
}
