package summary

import "time"

// Bounds of what is kept of drops.
const (
	maxGroups      = 1000 // first-level categories of one channel that are counted by name
	maxPaths       = 20   // of one first-level category
	maxLevels      = 8    // of one path, as in lib/digests.lua
	maxDigestPaths = 10   // in a digest
)

// Report is what one instance has counted for one channel since its last report, by its own clock.
type Report struct {
	Instance string // unique for each start of a worker
	Number   int64  // larger than that of the report before: microseconds of the instance's clock
	Round    int64  // in which the counts were taken from the counter: see Counter.Add
	Dropping bool   // it goes on to drop, so if it is not heard of again, its last counts are lost
	Counts          // without a channel: nothing was dropped
}

// Counts are what was counted for one channel.
type Counts struct {
	Channel     string
	First, Last time.Time
	Unpaired    int64 // events that resolve nothing; they belong to no group
	More        int64 // drops of categories that are not among the groups
	Groups      []Group
}

// Total is how many drops these are.
func (c Counts) Total() int64 {
	total := c.Unpaired + c.More
	for _, group := range c.Groups {
		total += group.More
		for _, path := range group.Paths {
			total += path.Dropped
		}
	}
	return total
}

// Group is what was counted of the paths with one first level.
type Group struct {
	Name  string
	More  int64 // drops of paths that are not among these
	Paths []Path
}

// DigestEnd says what became of a claimed digest.
type DigestEnd struct {
	State   DigestState
	Again   time.Duration // where it failed: when it may be claimed again
	Failure bool          // where it failed: that counts as a failure
}

// DigestState is a word of end_digest.lua.
type DigestState string

// The states in which a claim can end.
const (
	DigestDone   DigestState = "done"   // posted, or given up
	DigestFailed DigestState = "failed" // not posted
	DigestDoubt  DigestState = "doubt"  // perhaps posted
)
