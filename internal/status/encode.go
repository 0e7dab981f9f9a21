package status

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
)

// mostListed bounds each list of a report, in addition to the bound in bytes.
const mostListed = 500

// part is a list of a report that Encode may cut.
type part struct {
	kind string
	size int
	kept int
	cut  func(kept int) // keeps the most important entries
}

// Encode returns the report as JSON of at most the given number of bytes. If the report is larger, Encode drops the least important entries
// and lists them in Omitted. It never drops settings and overrides, since a reader would compute wrong limits without them, nor the global limit,
// since every event needs its slots.
func (r Report) Encode(most int64) ([]byte, error) {
	parts := r.leastFirst()
	encode := func() ([]byte, error) {
		r.Omitted = nil
		for _, p := range parts {
			if p.kept < p.size {
				r.Omitted = append(r.Omitted, Omission{p.kind, p.size - p.kept, p.size})
			}
		}
		return json.Marshal(r)
	}
	for _, p := range parts {
		p.keep(min(p.size, mostListed))
	}
	encoded, err := encode()
	for _, p := range parts {
		if err != nil || int64(len(encoded)) <= most {
			break
		}
		longest := p.kept
		left := sort.Search(longest, func(left int) bool {
			p.keep(longest - left)
			encoded, err = encode()
			return err != nil || int64(len(encoded)) <= most
		})
		p.keep(longest - left)
		encoded, err = encode()
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the report: %w", err)
	}
	if int64(len(encoded)) > most {
		return nil, fmt.Errorf("the report has %d bytes without %s, and a message of NATS %d at most (max_payload)",
			len(encoded), listOmissions(r.Omitted), most)
	}
	return encoded, nil
}

func (p *part) keep(kept int) {
	p.kept = kept
	p.cut(kept)
}

// leastFirst lists the parts that Encode may cut, the least important part first.
func (r *Report) leastFirst() []*part {
	var global, full, free []Limit
	for _, limit := range r.Limits {
		switch {
		case limit.Path == "":
			global = append(global, limit)
		case limit.Full():
			full = append(full, limit)
		default:
			free = append(free, limit)
		}
	}
	keptFull, keptFree := len(full), len(free)
	join := func() {
		r.Limits = slices.Concat(global, full[:keptFull], free[:keptFree])
		slices.SortFunc(r.Limits, CompareLimits)
	}

	suppressed, keptSuppressed, titled := slices.Clone(r.Suppressed), len(r.Suppressed), len(r.Suppressed)
	trim := func() {
		r.Suppressed = slices.Clone(suppressed[:keptSuppressed])
		for i := min(titled, keptSuppressed); i < keptSuppressed; i++ {
			r.Suppressed[i].Titles = nil
		}
	}
	minutes, channels, mutes := r.Minutes, r.Channels, r.Mutes
	named := func(kind string, size int, cut func(kept int)) *part { return &part{kind: kind, size: size, cut: cut} }
	return []*part{
		named("suppressed categories with titles", titled, func(kept int) { titled = kept; trim() }),
		named("limits that are not full", len(free), func(kept int) { keptFree = kept; join() }),
		named("suppressed categories", len(suppressed), func(kept int) { keptSuppressed = kept; trim() }),
		named("minutes", len(minutes), func(kept int) { r.Minutes = minutes[len(minutes)-kept:] }),
		named("channels", len(channels), func(kept int) { r.Channels = channels[:kept] }),
		named("full limits", len(full), func(kept int) { keptFull = kept; join() }),
		named("mutes", len(mutes), func(kept int) { r.Mutes = mutes[:kept] }),
	}
}
