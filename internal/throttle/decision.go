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
)

// Verdicts lists all verdicts.
func Verdicts() []Verdict {
	verdicts := make([]Verdict, 0, Deferred)
	for v := Admitted; v <= Deferred; v++ {
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// String is the verdict as it is called in metrics and, in capitals, in the scripts.
func (v Verdict) String() string {
	switch v {
	case Admitted:
		return "admitted"
	case Denied:
		return "denied"
	case ExceedsCapacity:
		return "exceeds_capacity"
	case Reclaimed:
		return "reclaimed"
	case Leased:
		return "leased"
	case Done:
		return "done"
	case Duplicate:
		return "duplicate"
	case Unknown:
		return "unknown"
	case Unpaired:
		return "unpaired"
	case Deferred:
		return "deferred"
	}
	return "none"
}

// Decision answers one Request.
type Decision struct {
	Verdict Verdict
	Node    limits.Node   // Denied, ExceedsCapacity: whose limit denied
	Limit   limits.Limit  // Denied, ExceedsCapacity: that limit
	Wait    time.Duration // Denied: until enough slots open; Leased: until the lease ends
	Opened  string        // of a resolved event to deliver: the receipt of what it resolves; "" if that has expired meanwhile
	InDoubt bool          // Reclaimed: an earlier holder of the lease may have delivered the event
	Err     error         // Deferred: why

	Grant  Grant // by a Limiter, of an event to deliver: admitted or reclaimed, or denied in shadow mode; else nil
	Lease  Lease // by a Store, likewise
	Shadow ShadowDecision
}

// ShadowDecision is what the shadow limits say of an event that was evaluated. Its Verdict is 0 if there are none, or the
// event was not evaluated anew.
type ShadowDecision struct {
	Verdict Verdict // Admitted, Denied or ExceedsCapacity
	Node    limits.Node
	Limit   limits.Limit
	Wait    time.Duration
}

// Grant is the lease of one event, in the hands of whoever delivers it. It is ended once, by Finish, Refund or Release. Its
// methods may be called while another one runs.
type Grant interface {
	// Finish records that the event was delivered, and where: the receipt comes back to what resolves it. Newly is false where
	// the event had been recorded as delivered before, by another holder.
	Finish(ctx context.Context, receipt string) (newly bool)

	// Refund returns the slots of an event that was definitely not delivered, and forgets the event.
	Refund(ctx context.Context)

	// Release ends the lease without a delivery that is known of: the slots stay taken, and whoever gets the message next may
	// deliver it. In doubt some attempt may have delivered it after all.
	Release(ctx context.Context, inDoubt bool)

	// Extend renews the lease. False means that someone else may be delivering the event by now: stop.
	Extend(ctx context.Context) bool
}
