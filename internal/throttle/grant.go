package throttle

import (
	"context"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// grant is the Grant of a limiter.
type grant struct {
	limiter *Limiter
	granted
}

// Finish implements [Grant]. If Redis is unavailable now, the outage reports the delivery later.
func (g *grant) Finish(ctx context.Context, receipt string) (newly bool) {
	lease, local := g.limiter.outage.now(&g.granted)
	lease.Receipt = receipt
	var err error
	if local {
		_, err = g.limiter.local.Finish(ctx, []store.Lease{lease})
	} else {
		g.ended(lease)
		newly, err = g.limiter.finish.do(ctx, lease)
	}
	untold := local || err != nil
	g.limiter.outage.change(&g.granted, untold, func(g *granted) { g.Became, g.Lease.Receipt = store.WasDelivered, receipt })
	return untold || newly
}

// Updated implements [Grant]. If the call fails, the next holder of the event updates the messages again.
func (g *grant) Updated(ctx context.Context, left int) {
	lease, _ := g.limiter.outage.now(&g.granted)
	_, _ = g.limiter.updates.do(ctx, store.Updated{Lease: lease, Left: left})
}

// Extend implements [Grant].
func (g *grant) Extend(ctx context.Context) bool {
	lease, local := g.limiter.outage.now(&g.granted)
	if local {
		extended, _ := g.limiter.local.Extend(ctx, []store.Lease{lease}, g.limiter.o.Lease)
		return g.limiter.outage.renewed(&g.granted, extended[0], true)
	}
	extended, err := g.limiter.extend.do(ctx, lease)
	if err != nil {
		return true // Redis is unavailable; JetStream's lease still holds the message
	}
	return g.limiter.outage.renewed(&g.granted, extended, false)
}

// Release implements [Grant].
func (g *grant) Release(ctx context.Context, inDoubt bool) {
	lease, local := g.limiter.outage.now(&g.granted)
	lease.InDoubt = lease.InDoubt || inDoubt
	if local {
		_, _ = g.limiter.local.Extend(ctx, []store.Lease{lease}, 0)
		g.limiter.outage.change(&g.granted, false, func(g *granted) { g.Became, g.Lease.InDoubt = store.WasReleased, lease.InDoubt })
		return
	}
	g.ended(lease)
	_, _ = g.limiter.release.do(ctx, lease) // if this fails, the lease lapses by itself
}

// Refund implements [Grant].
func (g *grant) Refund(ctx context.Context) {
	lease, local := g.limiter.outage.now(&g.granted)
	if local {
		results, _ := g.limiter.local.Refund(ctx, []store.Lease{lease})
		if results[0] && g.limiter.outage.disown(&g.granted) {
			g.limiter.returned(&g.granted)
		}
		return
	}
	returned, err := g.limiter.refund.do(ctx, lease)
	switch {
	case err != nil:
		g.limiter.outage.change(&g.granted, true, func(g *granted) { g.refunded = true })
	case returned:
		g.limiter.returned(&g.granted)
	}
}

// ended tells the local store that the delivery has ended.
func (g *grant) ended(lease store.Lease) {
	if g.mirrored {
		g.limiter.local.Ended(lease)
	}
}

// returned records that the slots are free again. A resolved event had no slots.
func (l *Limiter) returned(of *granted) {
	if of.Lease.Resolving {
		return
	}
	if of.mirrored {
		l.local.Unmirror(of.Lease, of.At)
	}
	l.forgetFull()
	l.o.Metrics.Refunded(1)
}
