package summary

import (
	"cmp"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Digest reports drops to a channel. Dropped is the sum of Unpaired, the counts of Paths and MoreDropped. The times are by the Store's clock.
type Digest struct {
	Channel, Claim string
	Failures       int // failed posts of this digest

	Dropped     int64
	AtLeast     bool  // there may be more drops: an instance was killed before its final report
	Doubtful    int64 // part of Dropped that an earlier digest may have reported, where nobody can look
	Unpaired    int64 // resolved events without a posted firing event
	First, Last time.Time
	Since       time.Time // when the previous digest was claimed; zero: there is no recent digest
	Rounds      []Rounds  // the rounds with these drops: see Counter.Add
	Paths       []Path    // the largest paths, in descending order

	MorePaths   int   // number of other paths
	MoreAtLeast bool  // there may be more other paths
	MoreDropped int64 // drops of other paths

	// The digest reports the changes of live limits from FromRevision up to and without BeforeRevision. FromRevision is 0 if the Store has
	// no earlier digest of the channel.
	FromRevision, BeforeRevision uint64

	Changes []Change // of live limits, the oldest first
	Mute    *Muted   // that has ended, and denied all these drops; nil: the drops have other reasons
}

// Claimed is the result of a claim.
type Claimed struct {
	Digest  *Digest       // to be posted; nil: there is none
	InDoubt bool          // the channel may have the digest: the caller looks for it and does not post it
	Age     time.Duration // InDoubt: since the digest was claimed
}

// Rounds is a range of rounds of an instance.
type Rounds struct {
	Instance    string
	First, Last int64
}

// Path has the drops of a category. Its texts have neither tabs nor line feeds.
type Path struct {
	Path    string
	Rest    bool // in a digest: the sum of all paths with this first level that are not counted by name
	Dropped int64
	Reasons []Reason  // in a digest, in descending order
	Title   string    // of one of the events; may be empty
	Opens   time.Time // when the next slot opens; zero: now or unknown
}

// Reason is a cause of drops.
type Reason struct {
	Level   string // that denied them
	Text    string // in a complete digest: the level and its limit, such as category 10/30m
	Dropped int64
}

// Change is a change of a live limit.
type Change struct {
	Revision uint64
	At       time.Time
	Mute     string // name of the mute that it is about, which digests do not list; "" for a limit
	Limit    string // its path, global or category
	Value    string // such as 10/30m, of a mute its reason; "" if it was unset
	By       string // author; "": unknown
}

// LimitChanges has the stored changes of live limits up to a revision. The zero value means unknown.
type LimitChanges struct {
	Generation int64 // of the bucket
	Revision   uint64
	Changes    []Change // the oldest first
}

// nextRevision is the first revision after these changes; 0: the changes are unknown.
func (c LimitChanges) nextRevision() uint64 {
	if c.Generation == 0 {
		return 0
	}
	return c.Revision + 1
}

// in returns the changes that a digest reports. The first digest of a channel reports the changes since an interval before its first drop.
func (c LimitChanges) in(d Digest, interval time.Duration) (reported []Change) {
	for _, change := range c.Changes {
		isNew := change.Revision >= d.FromRevision
		if d.FromRevision == 0 {
			isNew = change.At.After(cmp.Or(d.Since, d.First.Add(-interval)))
		}
		if isNew && change.Revision < d.BeforeRevision && change.Mute == "" {
			reported = append(reported, change)
		}
	}
	return reported
}

// complete adds the texts of the reasons and the changes of live limits to a claimed digest.
func (r *Reporter) complete(claimed Digest, known LimitChanges) Digest {
	for i := range claimed.Paths {
		path := &claimed.Paths[i]
		for j := range path.Reasons {
			path.Reasons[j].Text = r.describe(path.Path, path.Reasons[j].Level)
		}
	}
	if claimed.Mute != nil {
		claimed.Mute.end(known.Changes, r.o.Now())
		for i := range claimed.Paths {
			claimed.Paths[i].Opens = time.Time{} // other events of the path are not waiting for a slot
		}
		return claimed
	}
	claimed.Changes = known.in(claimed, r.o.Interval)
	return claimed
}

// describe returns why a level dropped notifications of a category: the level with its limit, or words for a level without a limit.
func (r *Reporter) describe(category, level string) string {
	switch level {
	case limits.LevelMute:
		return "muted"
	case limits.LevelRoom:
		return "could not wait: too many waited already"
	case limits.LevelClosed:
		return "the limits could not be asked"
	case limits.LevelOperator:
		return "dropped by an operator while they waited"
	}
	return strings.TrimSpace(level + " " + r.o.LimitOf(category, level))
}
