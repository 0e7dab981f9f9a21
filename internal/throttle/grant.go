package throttle

import (
	"context"
	"time"
)

// Grant is the lease of one admitted event, in the hands of whoever delivers it. End it with Finish, Refund or Release,
// once. Its methods may be called while another one runs.
type Grant struct {
	gate     *Gate
	followed bool // the local limiter took note of the admission

	// Guarded by the gate's lock.
	lease    Lease
	admitted time.Time
	local    bool // Redis does not know of it
	became   became
	refunded bool // Redis has yet to be told
	owed     bool // stands in the gate's backlog
}

func (g *Grant) state() (lease Lease, local bool) {
	g.gate.mu.Lock()
	defer g.gate.mu.Unlock()
	return g.lease, g.local
}

// Finish records that the event was delivered, and where: the receipt comes back to what resolves it. If Redis cannot be told
// now, it is as soon as it is back. Newly is false where the event had been recorded as delivered before, by another holder.
func (g *Grant) Finish(ctx context.Context, receipt string) (newly bool) {
	lease, local := g.state()
	lease.receipt = receipt
	if local {
		_, _ = g.gate.local.Finish(ctx, []Lease{lease})
	}
	var err error
	if !local {
		g.ended()
		newly, err = g.gate.finish.do(ctx, lease)
	}
	g.gate.mu.Lock()
	defer g.gate.mu.Unlock()
	g.became, g.lease.receipt = wasDelivered, receipt
	if local || err != nil {
		g.gate.owe(g)
		return true
	}
	return newly
}

// Extend renews the lease. False means that someone else may be delivering the event by now: stop.
func (g *Grant) Extend(ctx context.Context) bool {
	lease, local := g.state()
	if local {
		extended, _ := g.gate.local.Extend(ctx, []Lease{lease}, g.gate.o.Lease)
		return g.renewed(extended[0], true)
	}
	extended, err := g.gate.extend.do(ctx, lease)
	if err != nil {
		return true // Redis is away; JetStream's lease still holds the message
	}
	return g.renewed(extended, false)
}

// renewed takes over a lease's new end, unless the grant has moved from the local limiter to Redis meanwhile.
func (g *Grant) renewed(lease Lease, local bool) bool {
	g.gate.mu.Lock()
	defer g.gate.mu.Unlock()
	if g.local != local {
		return true
	}
	g.lease.End = lease.End
	return lease.End != 0
}

// Release ends the lease without a delivery that is known of: the slots stay taken, and whoever gets the message next may
// deliver it. In doubt some attempt may have delivered it after all.
func (g *Grant) Release(ctx context.Context, inDoubt bool) {
	lease, local := g.state()
	lease.inDoubt = lease.inDoubt || inDoubt
	if local {
		_, _ = g.gate.local.Extend(ctx, []Lease{lease}, 0)
		g.gate.mu.Lock()
		defer g.gate.mu.Unlock()
		g.became, g.lease.inDoubt = wasReleased, lease.inDoubt
		return
	}
	g.ended()
	_, _ = g.gate.release.do(ctx, lease) // if this fails, the lease lapses by itself
}

// Refund returns the slots of an event that was definitely not delivered, and forgets the event.
func (g *Grant) Refund(ctx context.Context) {
	lease, local := g.state()
	if local {
		results, _ := g.gate.local.Refund(ctx, []Lease{lease})
		if results[0] && g.gate.disown(g) {
			g.returned()
		}
		return
	}
	returned, err := g.gate.refund.do(ctx, lease)
	if err != nil {
		g.gate.mu.Lock()
		defer g.gate.mu.Unlock()
		g.refunded = true
		g.gate.owe(g)
		return
	}
	if returned {
		g.returned()
	}
}

// ended lets the local limiter take note that the delivery is not under way any more.
func (g *Grant) ended() {
	if g.followed {
		g.gate.local.Ended(g.lease)
	}
}

// returned takes note that the slots are free again. What resolves a pair had none.
func (g *Grant) returned() {
	if g.lease.resolving {
		return
	}
	if g.followed {
		g.gate.local.Unfollow(g.lease, g.admitted)
	}
	g.gate.cache.forget()
	g.gate.shadow.forget()
	g.gate.o.Metrics.Refunded(1)
}

func (g *Grant) category() string { return g.lease.Category }

// disown takes a refunded grant out of what Redis has to be told. If it is not there, because Redis is being told of the
// admission just now or by an earlier grant, the answer is false and Redis will be told of the refund too.
func (g *Gate) disown(grant *Grant) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, owed := range g.backlog {
		if owed == grant {
			g.backlog = append(g.backlog[:i:i], g.backlog[i+1:]...)
			grant.owed = false
			return true
		}
	}
	grant.refunded = true
	g.owe(grant)
	return false
}
