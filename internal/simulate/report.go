package simulate

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// Report has the outcomes of the events under one set of limits.
type Report struct {
	From, To time.Time // times of the first and the last event; zero without events
	Invalid  int       // lines or messages that were not replayed completely
	Paths    []Path    // by descending number of events, then by category
	Total    Path      // all events together; it has no category

	LimitsFrom string // source of the limits, for people; "" if the caller sets none
}

// Path has the outcomes of the events of one category. Seen is the sum of Sent, Duplicate, Folded and Dropped.
type Path struct {
	Category  string         `json:"category,omitempty"`
	Seen      int            `json:"seen"`
	Sent      int            `json:"sent"`
	Duplicate int            `json:"duplicate"`
	Folded    int            `json:"folded,omitempty"`
	Dropped   map[string]int `json:"dropped"` // by rule: global, category, a pattern or limits.LevelUnpaired
	// LongestSilence is the longest time without a sent event, between the first and the last event of the path.
	LongestSilence time.Duration `json:"-"`
}

// Drops returns the number of dropped events.
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
	slices.SortStableFunc(r.Paths, func(a, b Path) int {
		return cmp.Or(cmp.Compare(b.Seen, a.Seen), cmp.Compare(a.Category, b.Category))
	})
	if len(h.events) > 0 {
		r.From, r.To = h.events[0].At, h.events[len(h.events)-1].At
	}
	return r
}

// MarshalJSON returns the form for programs. Without events the times are null.
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

// MarshalJSON returns the form for programs.
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
