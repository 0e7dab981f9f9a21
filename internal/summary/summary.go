package summary

import (
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Digest tells a channel what was dropped. Its counts add up: Dropped is Unpaired, the counts of Paths and MoreDropped.
type Digest struct {
	Channel     string
	Dropped     int64
	AtLeast     bool  // there may have been more: an instance was killed before it told all
	Doubtful    int64 // of Dropped: may have been told before
	Unpaired    int64 // resolved events whose firing one was not posted
	First, Last time.Time
	Paths       []Path // the largest, those first

	MorePaths   int  // that are not among Paths
	MoreAtLeast bool // there may be more of them
	MoreDropped int64

	Changes []Change // of limits since the digest before, the oldest first
}

// Path is what was dropped of a category.
type Path struct {
	Path    string
	Rest    bool // of all paths with this first level that are not counted by name
	Dropped int64
	Reasons []Reason  // most first
	Title   string    // of one of the events; may be empty
	Opens   time.Time // when the next slot opens; zero if that is not known, or now
}

// Reason is why notifications were dropped.
type Reason struct {
	Text    string // such as category 10/30m
	Dropped int64
}

// Change is a change of a live limit.
type Change struct {
	At    time.Time
	Limit string // its path, global or category
	Value string // such as 10/30m; "" if it was unset
	By    string // "" if that is not recorded
}

// digest makes of what was claimed what the channel is told.
func (k *Keeper) digest(claimed *throttle.DropDigest, changes []Change) Digest {
	d := Digest{
		Channel: claimed.Channel, Dropped: claimed.Total, AtLeast: claimed.AtLeast, Doubtful: claimed.Doubtful,
		Unpaired: claimed.Unpaired, First: claimed.First, Last: claimed.Last,
		MorePaths: claimed.Counted, MoreDropped: claimed.Total - claimed.Unpaired,
	}
	rests := 0
	for _, counted := range claimed.Paths {
		path := Path{Path: counted.Path, Rest: counted.Rest, Dropped: counted.Count, Title: counted.Title, Opens: counted.Opens}
		for _, level := range counted.Levels {
			path.Reasons = append(path.Reasons, Reason{Text: k.describe(counted.Path, level.Name), Dropped: level.Count})
		}
		d.Paths = append(d.Paths, path)
		d.MoreDropped -= counted.Count
		if counted.Rest {
			rests++
		}
	}
	d.MorePaths = max(0, d.MorePaths-(len(d.Paths)-rests))
	d.MoreAtLeast = claimed.Partial
	if d.MorePaths == 0 && d.MoreDropped > 0 {
		d.MorePaths = 1 // one that was not counted by name, at least
	}
	since := claimed.Since
	if since.IsZero() {
		since = claimed.First.Add(-k.o.Interval)
	}
	for _, change := range changes {
		if change.At.After(since) {
			d.Changes = append(d.Changes, change)
		}
	}
	return d
}

func (k *Keeper) describe(category, level string) string {
	if k.o.Describe == nil {
		return level
	}
	return strings.TrimSpace(k.o.Describe(category, level))
}
