package summary

import "time"

// Bounds of the counts in memory and in the Store.
const (
	maxGroups      = 1000 // first-level categories of one channel that are counted by name
	maxPaths       = 20   // of one first-level category
	maxLevels      = 8    // of one path, as in lib/digests.lua
	maxDigestPaths = 10   // in a digest
	maxKeys        = 100  // of a mute that fire, as in lib/digests.lua
	maxEndedKeys   = 1000 // of a mute that do not fire, in one report
)

// Report has the counts of one instance for one channel since its last report, by the instance's clock.
type Report struct {
	Instance string // unique for each start of a worker
	Number   int64  // increases with each report: microseconds of the instance's clock
	Round    int64  // round of the Counter: see Counter.Add
	Dropping bool   // more drops may follow: without a later report, the last counts are lost
	Counts          // without a channel: there were no drops
}

// Counts are the drops of one channel.
type Counts struct {
	Channel     string // of a mute's counts, the channel and the text of the mute: see joinName
	First, Last time.Time
	Unpaired    int64 // events that resolve nothing; not in any group
	More        int64 // drops of categories that are not among the groups
	Groups      []Group
	Keys        []Key // of a mute
	MoreKeys    bool  // there are more keys that fire
}

// Key is the last known state of a key with muted events.
type Key struct {
	Name   string
	Title  string
	At     time.Time // when the event that shows the state was stored
	Firing bool
}

// Total is the number of drops.
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

// Group has the counts of one first level.
type Group struct {
	Name  string
	More  int64 // drops of other paths
	Paths []Path
}

// DigestEnd is the result of a claimed digest.
type DigestEnd struct {
	State   DigestState
	Again   time.Duration // DigestFailed: time until it may be claimed again; DigestDoubt: time until it is worth a look
	Failure bool          // DigestFailed: counts towards maxFailures
}

// DigestState is a word of end_digest.lua.
type DigestState string

// The end states of a claim.
const (
	DigestDone    DigestState = "done"    // posted or given up
	DigestFailed  DigestState = "failed"  // not posted
	DigestDoubt   DigestState = "doubt"   // perhaps posted: an instance has to look for it
	DigestCarried DigestState = "carried" // perhaps posted, and nobody can look: its counts carry over
)
