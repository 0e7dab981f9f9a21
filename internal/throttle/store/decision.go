package store

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Verdict is what was decided about a request.
type Verdict int

// The verdicts. lua/lib/verdicts.lua has the names and numbers of the verdicts that scripts return.
const (
	Admitted        Verdict = iota + 1 // recorded in every log of its path; a resolved event: it has got its pair. The caller has the lease
	Denied                             // some limit was full
	ExceedsCapacity                    // the cost is above some limit's count
	Reclaimed                          // admitted earlier; the lease lapsed, and the caller has it now
	Leased                             // someone else is delivering it
	Done                               // this very message was delivered
	Duplicate                          // another stored message with its ID was admitted
	Unknown                            // the event has no record (Cost 0)
	Unpaired                           // it resolves an event without an open pair
	Folded                             // it is counted in a message of its pair, and is not posted
	Deferred                           // it cannot be decided now, but other events can; no script returns it
	Planned                            // it was planned to come back; no script returns it, and no metric counts it
)

// verdictNames are the names in metrics and, in capitals, in the scripts.
var verdictNames = [...]string{
	"none", "admitted", "denied", "exceeds_capacity", "reclaimed", "leased", "done", "duplicate", "unknown", "unpaired", "folded", "deferred",
	"planned",
}

// String returns the verdict's name in metrics. The scripts use this name in capitals.
func (v Verdict) String() string { return verdictNames[v] }

// IsDenial reports whether a limit keeps the event from being sent.
func (v Verdict) IsDenial() bool { return v == Denied || v == ExceedsCapacity }

// Decision answers one Request.
type Decision struct {
	Verdict Verdict
	Node    limits.Node   // Denied, ExceedsCapacity: the node of the limit that denied the event
	Limit   limits.Limit  // Denied, ExceedsCapacity: that limit
	Used    int64         // Denied: lower bound of the limit's slots in use; 0: unknown
	Wait    time.Duration // Denied: until enough slots open; Leased: until the lease ends; Planned: until it comes back, 0 if that time is over
	InDoubt bool          // Reclaimed: an earlier holder of the lease may have delivered the event
	Fold    *Fold         // Folded: where
	Flaps   bool          // Admitted, Reclaimed, Done: the key of the event is flapping
	Changed Change        // Leased, of a report that comes too early: the newest change of the key; otherwise 0
	Awaits  bool          // Leased: the event waits for the message of another event of its pair; Unpaired: the pair is open, for events stored later
	Err     error         // Deferred: why

	Resolved []Resolved // of a resolved event to deliver and of a delivered event that keeps its pair: the messages that it resolves, the first message first

	Muted  *Denial // Denied: by a mute; nil: by a limit
	Grant  Grant   // set by a Limiter for an event to deliver: admitted, reclaimed, or denied in shadow mode; otherwise nil
	Lease  Lease   // set by a Store for an event to deliver
	Shadow ShadowDecision
}

// Resolved is a message that a resolved event resolves.
type Resolved struct {
	Receipt string // "" if the message has expired meanwhile
	Count   Count  // what is folded into it
}

// Opened returns the receipt of the first message that the event resolves; "" if there is none.
func (d *Decision) Opened() string {
	if len(d.Resolved) == 0 {
		return ""
	}
	return d.Resolved[0].Receipt
}

// Denial describes why an event was denied. It is immutable.
type Denial struct {
	Level string       // of the rule
	Path  string       // of the limit; empty for the global one
	Key   string       // hash of the event's key, if the rule limits each key
	Limit limits.Limit // the zero Limit if no limit denied the event
	Used  int64        // lower bound of its slots in use; 0: unknown
	Opens time.Time    // when enough slots open, by this host's clock; zero if that is not known
	Mute  *Mute        // the mute that denied the event; nil if none did
}

// Mutes are the denials of some events by the mutes in force, one for each mute.
type Mutes []*Denial

// Of returns the denial of an event by the first mute that does not spare the event's severity; nil: the event is not muted.
func (m Mutes) Of(severity event.Severity) *Denial {
	for _, denial := range m {
		if !denial.Mute.Spares(severity) {
			return denial
		}
	}
	return nil
}

// Mute is a mute that denies events, with its text.
type Mute struct {
	*limits.Mute
	Text string // see [limits.Mute.Text]
}

// ByLimit reports whether a limit denied the event.
func (d *Denial) ByLimit() bool { return d.Limit != (limits.Limit{}) }

// Levels of drops, for packages that know no limits.
const (
	LevelClosed = limits.LevelClosed
	LevelFolded = limits.LevelFolded
)

// Denials without a limit.
var (
	DeniedUnpaired = &Denial{Level: limits.LevelUnpaired}
	DeniedByRoom   = &Denial{Level: limits.LevelRoom}

	DeniedByOperator = &Denial{Level: limits.LevelOperator}
)

// Denial returns the denial by a limit, also in shadow mode, or by a mute. It returns nil if the event was not denied. asked is the time of
// the call to the store.
func (d *Decision) Denial(asked time.Time) *Denial {
	if d.Muted != nil || !d.Verdict.IsDenial() {
		return d.Muted
	}
	denial := &Denial{Level: d.Node.Level, Path: d.Node.Path, Key: d.Node.Key, Limit: d.Limit, Used: d.Used}
	if d.Wait > 0 {
		denial.Opens = asked.Add(d.Wait)
	}
	return denial
}

// ShadowDecision is the decision of the shadow limits. Verdict is 0 if there are no shadow limits or the event was not evaluated anew.
type ShadowDecision struct {
	Verdict Verdict // Admitted, Denied or ExceedsCapacity
	Node    limits.Node
	Limit   limits.Limit
	Wait    time.Duration
}

// MutedBy sets the decision to a denial by a mute.
func (d *Decision) MutedBy(denial *Denial) {
	*d = Decision{Verdict: Denied, Node: limits.Node{Path: denial.Path, Level: limits.LevelMute}, Muted: denial}
}

// ofShadow returns the decision as one of the shadow limits.
func (d *Decision) ofShadow() ShadowDecision {
	return ShadowDecision{Verdict: d.Verdict, Node: d.Node, Limit: d.Limit, Wait: d.Wait}
}

// Grant is the lease on the delivery of one event. Finish, Refund or Release ends the grant, once. Its methods may be called concurrently.
//
// If Redis knows of the event and does not answer, Finish and Refund return a channel, which is closed once Redis has the end of the grant
// or cannot take it. Until then the message must not be settled: other workers know of the event only by its message. Otherwise they return
// nil.
type Grant interface {
	// Finish records the delivery. The event that resolves this one gets the receipt. newly is false if another holder has recorded a
	// delivery before.
	Finish(ctx context.Context, receipt string) (newly bool, owed <-chan struct{})

	// KeepPair makes Finish keep the pair of a resolved event, so that the next delivery of the event's message finds the messages that it
	// resolves.
	KeepPair()

	// Refund returns the slots of an event that was definitely not delivered, and forgets the event.
	Refund(ctx context.Context) (owed <-chan struct{})

	// Release ends the lease without a known delivery: the slots stay taken, and the next holder of the message may deliver the event.
	// inDoubt means that an attempt may have delivered it.
	Release(ctx context.Context, inDoubt bool)

	// Extend renews the lease. If it returns false, another worker may be delivering the event: stop.
	Extend(ctx context.Context) bool

	// SetWaiting renews the lease, and records whether its holder waits. The holder records the end of its wait before it delivers the
	// event. If the lease lapses during the wait, the next holder is in no doubt. If held is false, another worker may be delivering the
	// event. After an error nothing may be delivered either: Redis does not answer, and the failure policy is to wait for Redis.
	SetWaiting(ctx context.Context, waits bool) (held bool, err error)
}
