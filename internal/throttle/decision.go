package throttle

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Verdict is what was decided about a request.
type Verdict int

// The verdicts. Those of the scripts have their names and numbers in lua/lib/verdicts.lua.
const (
	Admitted        Verdict = iota + 1 // recorded in every log of its path; of an event that resolves: it has its pair. The caller has the lease
	Denied                             // some limit was full
	ExceedsCapacity                    // the cost is above some limit's count
	Reclaimed                          // admitted earlier, and whoever had the lease let it lapse; the caller has it now
	Leased                             // someone else is delivering it
	Done                               // this very message was delivered
	Duplicate                          // another stored message with its ID was admitted
	Unknown                            // nothing is known of it (Cost 0)
	Unpaired                           // it resolves what nobody was told of
	Deferred                           // it cannot be decided now, others can; no script says so
	Planned                            // it was planned to come back; no script says so, and no metric counts it
)

// verdictNames are those of metrics and, in capitals, of the scripts.
var verdictNames = [...]string{
	"none", "admitted", "denied", "exceeds_capacity", "reclaimed", "leased", "done", "duplicate", "unknown", "unpaired", "deferred",
	"planned",
}

// String is the verdict as it is called in metrics and, in capitals, in the scripts.
func (v Verdict) String() string { return verdictNames[v] }

func (v Verdict) isDenial() bool { return v == Denied || v == ExceedsCapacity }

// Decision answers one Request.
type Decision struct {
	Verdict Verdict
	Node    limits.Node   // Denied, ExceedsCapacity: whose limit denied
	Limit   limits.Limit  // Denied, ExceedsCapacity: that limit
	Used    int64         // Denied: at least so many slots of the limit were taken; 0 if that is not known
	Wait    time.Duration // Denied: until enough slots open; Leased: until the lease ends; Planned: until it comes back, 0 if that time is over
	Opened  string        // of a resolved event to deliver: the receipt of the first message that it resolves; "" if that has expired meanwhile
	Others  []string      // of a resolved event to deliver: the receipts of the other messages that it has not updated yet
	InDoubt bool          // Reclaimed: an earlier holder of the lease may have delivered the event
	Err     error         // Deferred: why

	Grant  Grant // by a Limiter, of an event to deliver: admitted or reclaimed, or denied in shadow mode; else nil
	Lease  Lease // by a Store, likewise
	Shadow ShadowDecision
}

// Denial says by what an event was denied. It is never changed.
type Denial struct {
	Level string       // of the rule
	Path  string       // of the limit; empty for the global one
	Limit limits.Limit // the zero Limit if no limit denied the event
	Used  int64        // at least so many of its slots were taken; 0 if that is not known
	Opens time.Time    // when enough slots open, by this host's clock; zero if that is not known
}

// ByLimit tells whether a limit denied the event, and not something else.
func (d *Denial) ByLimit() bool { return d.Limit != (limits.Limit{}) }

// Denials by something else than a limit.
var (
	DeniedUnpaired = &Denial{Level: LevelUnpaired}
	DeniedByRoom   = &Denial{Level: LevelRoom}
)

// Denial is what a decision about an event says of the limit that is full. It is nil if none is, as the shadow mode shows too. Asked is
// when the question was.
func (d *Decision) Denial(asked time.Time) *Denial {
	if !d.Verdict.isDenial() {
		return nil
	}
	denial := &Denial{Level: d.Node.Level, Path: d.Node.Path, Limit: d.Limit, Used: d.Used}
	if d.Wait > 0 {
		denial.Opens = asked.Add(d.Wait)
	}
	return denial
}

// ShadowDecision is what the shadow limits say of an event. Its Verdict is 0 if there are none, or the event was not evaluated anew.
type ShadowDecision struct {
	Verdict Verdict // Admitted, Denied or ExceedsCapacity
	Node    limits.Node
	Limit   limits.Limit
	Wait    time.Duration
}

// ofShadow is a decision of the shadow limits.
func (d *Decision) ofShadow() ShadowDecision {
	return ShadowDecision{Verdict: d.Verdict, Node: d.Node, Limit: d.Limit, Wait: d.Wait}
}

// Grant is the lease of one event, in the hands of whoever delivers the event. Finish, Refund or Release ends the grant, once. Its
// methods may be called while another one runs.
type Grant interface {
	// Finish records that the event was delivered, and where: the receipt comes back to what resolves it. Newly is false where
	// the event had been recorded as delivered before, by another holder.
	Finish(ctx context.Context, receipt string) (newly bool)

	// Refund returns the slots of an event that was definitely not delivered, and forgets the event.
	Refund(ctx context.Context)

	// Release ends the lease without a known delivery: the slots stay taken, and whoever gets the message next may deliver it. In
	// doubt some attempt may have delivered it after all.
	Release(ctx context.Context, inDoubt bool)

	// Updated records, for a resolved event, that its messages are updated but for the first one and the last few. Whoever gets the event
	// again is given these alone.
	Updated(ctx context.Context, left int)

	// Extend renews the lease. False means that someone else may be delivering the event by now: stop.
	Extend(ctx context.Context) bool
}
