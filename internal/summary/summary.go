package summary

import (
	"cmp"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Digest tells a channel what was dropped. Its counts add up: Dropped is Unpaired, the counts of Paths and MoreDropped. Its times
// are those of the Store.
type Digest struct {
	Channel, Claim string
	Failures       int // posts of it that failed

	Dropped     int64
	AtLeast     bool  // there may have been more: an instance was killed before it told all
	Doubtful    int64 // of Dropped: may have been told before
	Unpaired    int64 // resolved events whose firing one was not posted
	First, Last time.Time
	Since       time.Time // when the digest before was claimed; zero if there was none lately
	Rounds      []Rounds  // whose drops it tells of: see Counter.Add
	Paths       []Path    // the largest, those first

	MorePaths   int  // that are not among Paths
	MoreAtLeast bool // there may be more of them
	MoreDropped int64

	// Revisions of the live limits whose changes the digest reports. FromRevision is 0 if no earlier digest of the channel is known; BeforeRevision
	// is the first one that is not reported.
	FromRevision, BeforeRevision uint64

	Changes []Change // of live limits, the oldest first
}

// Rounds are the rounds of an instance in which it counted drops, from the first to the last.
type Rounds struct {
	Instance    string
	First, Last int64
}

// Path is what was dropped of a category. Its texts have neither tabs nor line feeds.
type Path struct {
	Path    string
	Rest    bool // in a digest: of all paths with this first level that are not counted by name
	Dropped int64
	Reasons []Reason  // in a digest most first
	Title   string    // of one of the events; may be empty
	Opens   time.Time // when the next slot opens; zero if that is not known, or now
}

// Reason is why notifications were dropped.
type Reason struct {
	Level   string // that denied them
	Text    string // in a digest that is told: the level and its limit, such as category 10/30m
	Dropped int64
}

// Change is a change of a live limit.
type Change struct {
	Revision uint64
	At       time.Time
	Limit    string // its path, global or category
	Value    string // such as 10/30m; "" if it was unset
	By       string // "" if that is not recorded
}

// LimitChanges are the changes of live limits up to a revision, as far as they are stored. The zero value says that they are not known.
type LimitChanges struct {
	Generation int64 // of the bucket that keeps them
	Revision   uint64
	Changes    []Change // the oldest first
}

// nextRevision is the first revision after these changes, or 0 if they are not known.
func (c LimitChanges) nextRevision() uint64 {
	if c.Generation == 0 {
		return 0
	}
	return c.Revision + 1
}

// in returns the changes that a digest reports. Of a channel's first digest these are the changes since an interval before its first drop.
func (c LimitChanges) in(d Digest, interval time.Duration) (reported []Change) {
	for _, change := range c.Changes {
		isNew := change.Revision >= d.FromRevision
		if d.FromRevision == 0 {
			isNew = change.At.After(cmp.Or(d.Since, d.First.Add(-interval)))
		}
		if isNew && change.Revision < d.BeforeRevision {
			reported = append(reported, change)
		}
	}
	return reported
}

// complete adds to a claimed digest what this instance knows: the reasons in words, and the changes of live limits.
func (r *Reporter) complete(claimed Digest, known LimitChanges) Digest {
	for i := range claimed.Paths {
		path := &claimed.Paths[i]
		for j := range path.Reasons {
			path.Reasons[j].Text = r.describe(path.Path, path.Reasons[j].Level)
		}
	}
	claimed.Changes = known.in(claimed, r.o.Interval)
	return claimed
}

// describe says why a level dropped notifications of a category: by its limit, or in words where it has none.
func (r *Reporter) describe(category, level string) string {
	switch level {
	case throttle.LevelRoom:
		return "could not wait: too many waited already"
	case throttle.LevelClosed:
		return "the limits could not be asked"
	}
	return strings.TrimSpace(level + " " + r.o.LimitOf(category, level))
}
