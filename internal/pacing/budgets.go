package pacing

import "time"

// Pace is how fast a channel takes posts: one each interval, and a burst after an idle time.
type Pace struct {
	Interval time.Duration // 0: no bound
	Burst    int           // 1 or more, if there is an interval
}

// ahead is how far a burst may run ahead of the interval.
func (p Pace) ahead() time.Duration { return time.Duration(max(p.Burst, 1)-1) * p.Interval }

// Window is a number of requests in any time of a length.
type Window struct {
	Count  int // 0: no bound
	Length time.Duration
}

// Budgets are how many requests all instances together may make.
type Budgets struct {
	Channel   Pace   // posts of each channel
	Workspace Window // posts of all channels
	Updates   Window // updates of messages of all channels
	LookUps   Window // look-ups of posts in all channels
}

// Urgency is the order of the messages of one channel. The smallest urgency goes first.
type Urgency int

// The urgencies.
const (
	Overdue  Urgency = iota // an event that has waited for a minute
	Critical                // a critical event
	Ordinary                // any other event
	Digest                  // any digest, of any instance
)

// Ask asks for a post.
type Ask struct {
	Channel string
	Urgency Urgency   // of the message that the caller posts next
	Since   time.Time // when that message was stored: of two equally urgent messages the older goes first

	// MaxWait is the longest wait. If the post is expected later, nothing is reserved, and the caller does not count as waiting.
	MaxWait time.Duration
}

// asker returns the name under which an instance asks. The digests of all instances have one place in a channel's line: an instance that is in
// line for an event is not in front of itself, and one instance posts the digest.
func (a Ask) asker(instance string) string {
	if a.Urgency == Digest {
		return "digests"
	}
	return instance
}

// urgencyStep separates two urgencies: it exceeds the microseconds between 1970 and any present time.
const urgencyStep = 2_000_000_000_000_000

// order returns the number by which the scripts compare messages. The message with the smallest number goes first.
func (a Ask) order() int64 {
	return int64(a.Urgency)*urgencyStep + min(max(a.Since.UnixMicro(), 0), urgencyStep-1)
}

// Update asks for an update of a message, to one of its states.
type Update struct {
	Message string // names the message
	Order   int64  // number of the state, from 1 to MostOrder: a newer state has a larger number
	// MaxWait is the longest wait. If the update is expected later, nothing is reserved.
	MaxWait time.Duration
	Within  time.Duration // the update begins if it is due within that time
	Lasts   time.Duration // longest duration of a request. Meanwhile no other state of the message begins, unless Pacer.Updated ends the update
}

// MostOrder is the largest order of a state: the scripts count exactly up to there.
const MostOrder = 1<<53 - 1

// Reservation is the answer to a request for a post, an update or a look-up.
type Reservation struct {
	OK       bool          // the slot is reserved for the caller; an update has begun
	Obsolete bool          // a newer state of the message has been requested or is shown: the caller makes no update
	Wait     time.Duration // OK: until the slot; otherwise: until the caller asks again, or Expected if that exceeds the longest wait
	Expected time.Duration // until the slot; an estimate unless OK
}

const mostCounted = 1000

// counted returns the channels to count; without a pace there are none.
func (p Pace) counted(channels []string) []string {
	if p.Interval == 0 {
		return nil
	}
	return channels[:min(len(channels), mostCounted)]
}

// Use is how much of each budget is used.
type Use struct {
	Workspace, Updates, LookUps BudgetUse
	Channels                    []ChannelUse // the channels that are at their pace
	At                          time.Time    // when it was counted, by this instance's clock
}

// ChannelUse is a channel at its pace: it takes no post now, although it is not paused.
type ChannelUse struct {
	Channel string
	Wait    time.Duration // until it takes its next post; more than 0
	Askers  int           // instances with deliveries that wait for the channel, and one more if digests wait
}

// addChannel adds the use of a channel, unless its pace allows a post now.
func (u *Use) addChannel(c ChannelUse) {
	if c.Wait > 0 {
		u.Channels = append(u.Channels, c)
	}
}

// BudgetUse is how much of one budget is used.
type BudgetUse struct {
	Used    int           // requests of the last window
	Waiting int           // channels that wait for the workspace; reserved updates; reserved look-ups
	Paused  time.Duration // remaining time of a pause
}

// How early posts are reserved, and when askers ask again, as in pace.lua and lib/askers.lua.
const (
	lead     = time.Second / 20
	horizon  = time.Second
	shortest = time.Second / 40
	grace    = time.Second
)

// cause is why something is paused.
type cause int

const (
	byLimit   cause = iota // Slack limited a request
	byRefusal              // a channel refuses messages, which shows nothing about other channels
)

// limitedTogether is the longest time between the limited posts of two channels that pause the workspace, as in pause.lua.
const limitedTogether = time.Second

// The names of pauses that concern no single channel, as in lib/destinations.lua. No channel has such a name.
const (
	workspace = "\nworkspace"
	updates   = "\nupdates"
	lookUps   = "\nlookups"
)
