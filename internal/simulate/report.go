package simulate

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// Report is what became of the events under one set of limits.
type Report struct {
	From, To time.Time // of the first and the last event; zero without events
	Invalid  int       // lines or messages that could not be used, or not all of them
	Paths    []Path    // the one with the most events first, then by category
	Total    Path      // of all events; without a category

	LimitsFrom string // where the limits come from, for people; "" if the caller does not say
}

// Path is what became of the events of one category. Seen is the sum of Sent, Duplicate and all of Dropped.
type Path struct {
	Category  string         `json:"category,omitempty"`
	Seen      int            `json:"seen"`
	Sent      int            `json:"sent"`
	Duplicate int            `json:"duplicate"`
	Dropped   map[string]int `json:"dropped"` // by the rule that denied: global, category, or a pattern; or throttle.LevelUnpaired
	// LongestSilence is the longest time in which nothing was sent, between the path's first event and its last.
	LongestSilence time.Duration `json:"-"`
}

// Drops is how many events were dropped, whatever the rule.
func (p Path) Drops() int {
	sum := 0
	for _, n := range p.Dropped {
		sum += n
	}
	return sum
}

func (h *History) report(tallies map[string]*tally, total tally) Report {
	r := Report{Invalid: h.Invalid, Paths: make([]Path, 0, len(tallies)), Total: total.path()}
	for _, counted := range tallies {
		r.Paths = append(r.Paths, counted.path())
	}
	slices.SortFunc(r.Paths, func(a, b Path) int {
		return cmp.Or(cmp.Compare(b.Seen, a.Seen), cmp.Compare(a.Category, b.Category))
	})
	if len(h.events) > 0 {
		r.From, r.To = h.events[0].At, h.events[len(h.events)-1].At
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

		LimitsFrom string `json:"limits_from,omitempty"`
	}{from, to, r.Total.Seen, r.Invalid, append([]Path{}, r.Paths...), r.Total, r.LimitsFrom})
}

// MarshalJSON is the form that programs read.
func (p Path) MarshalJSON() ([]byte, error) {
	if p.Dropped == nil {
		p.Dropped = map[string]int{} // never null
	}
	type counts Path
	return json.Marshal(struct {
		counts
		LongestSilence float64 `json:"longest_silence_seconds"`
	}{counts(p), p.LongestSilence.Seconds()})
}
