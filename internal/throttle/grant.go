package throttle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// mirror keeps the local store in step with the admissions of Redis, so that the failure policy does not start without any.
type mirror struct {
	memory  *store.Memory
	denials *denials
	metrics Metrics
}

// ended records the end of a delivery.
func (m *mirror) ended(g *granted, lease store.Lease) {
	if g.mirrored {
		m.memory.Ended(lease)
	}
}

// returned records that the slots are free again. A resolved or released event had no slots.
func (m *mirror) returned(g *granted) {
	if g.Lease.Resolving || g.Lease.Request.Slotless {
		return
	}
	if g.mirrored {
		m.memory.Unmirror(g.Lease, g.At)
	}
	m.denials.forget()
	m.metrics.Refunded(1)
}

// grants makes the grants of a limiter, and gathers their calls to Redis in batches.
type grants struct {
	o       *LimiterOptions
	mirror  *mirror
	replay  *replay
	finish  *batcher[store.Lease, bool]
	extend  *batcher[store.Lease, store.Lease]
	release *batcher[store.Lease, store.Lease]
	refund  *batcher[store.Lease, bool]
}

func newGrants(o *LimiterOptions, outage *outage, mirror *mirror, replay *replay) *grants {
	extend := func(d time.Duration) func(context.Context, []store.Lease) ([]store.Lease, error) {
		return func(ctx context.Context, leases []store.Lease) ([]store.Lease, error) {
			return o.Redis.Extend(ctx, leases, d)
		}
	}
	return &grants{
		o: o, mirror: mirror, replay: replay,
		finish: newBatcher(whileAnswering(outage, o.Redis.Finish)), extend: newBatcher(whileAnswering(outage, extend(o.Lease))),
		release: newBatcher(whileAnswering(outage, extend(0))), refund: newBatcher(whileAnswering(outage, o.Redis.Refund)),
	}
}

// whileAnswering returns a call that fails at once while Redis is unavailable. Otherwise each batch would wait for a timeout, and a worker
// that shuts down would wait for many of them.
func whileAnswering[T, R any](outage *outage, call func(context.Context, []T) ([]R, error)) func(context.Context, []T) ([]R, error) {
	return func(ctx context.Context, items []T) ([]R, error) {
		if err := outage.mustAnswer(); err != nil {
			return nil, err
		}
		results, err := call(ctx, items)
		if errors.Is(err, script.ErrUnavailable) {
			outage.lost(err)
		}
		return results, err
	}
}

// give adds grants to the decisions of a store. Grants of the local store are queued for Redis.
func (of *grants) give(source string, asked time.Time, decisions []store.Decision, requests []store.Request) {
	tookSlots := func(i int) bool {
		return decisions[i].Verdict == store.Admitted && !requests[i].Slotless && !decisions[i].Lease.Resolving
	}
	at := time.Time{} // of the admissions that the local store has recorded
	if source == SourceLocal {
		at = asked
	} else if of.o.Policy == Local {
		var admitted []store.Request
		for i := range decisions {
			if tookSlots(i) {
				admitted = append(admitted, requests[i])
			}
		}
		if len(admitted) > 0 {
			at = of.mirror.memory.Mirror(admitted)
		}
	}
	var unsynced []*granted
	for i := range decisions {
		d := &decisions[i] // a Decision is large
		if d.Lease.Request.ID == "" {
			continue
		}
		g := &grant{grants: of, granted: granted{
			Admission: store.Admission{Lease: d.Lease, At: at}, local: source == SourceLocal,
			mirrored: source == SourceRedis && tookSlots(i) && !at.IsZero(),
		}}
		d.Grant = g
		if g.local && d.Verdict == store.Admitted {
			unsynced = append(unsynced, &g.granted)
		}
	}
	of.replay.rememberAll(unsynced)
}

// grant is the Grant of a limiter.
type grant struct {
	grants *grants
	granted

	renewals renewals
}

// renewals are the renewals of one lease.
type renewals struct {
	mu       sync.Mutex // guards the order of the requests, never during a call to Redis
	newest   renewal    // the newest request
	answered int        // number of the newest answer
	ended    bool       // no further renewal is requested
}

// endRenewals ends the renewals of the lease, and waits for the answer to the newest request: Redis recognises the holder of a lease by the
// end of the lease.
func (g *grant) endRenewals(ctx context.Context) {
	g.renewals.mu.Lock()
	newest := g.renewals.newest
	g.renewals.ended = true
	g.renewals.mu.Unlock()
	_, _ = g.answer(ctx, newest) // without an answer, the last known end is the best guess
}

// Finish implements [Grant]. If Redis is unavailable now, the replay reports the delivery later.
func (g *grant) Finish(ctx context.Context, receipt string) (newly bool, owed <-chan struct{}) {
	lease, local := g.grants.replay.now(&g.granted)
	lease.Receipt = receipt
	if local {
		g.grants.mirror.memory.Finish([]store.Lease{lease})
		return true, g.grants.replay.owesFinish(&g.granted, receipt)
	}
	g.grants.mirror.ended(&g.granted, lease)
	newly, err := g.grants.finish.do(ctx, lease)
	if err != nil {
		return true, g.grants.replay.owesFinish(&g.granted, receipt)
	}
	g.grants.replay.locked(func() { g.delivered(receipt) })
	return newly, nil
}

// KeepPair implements [Grant].
func (g *grant) KeepPair() { g.grants.replay.locked(func() { g.Lease.Unshown = g.Lease.Resolving }) }

// Extend implements [Grant]. While Redis is unavailable, JetStream's lease still holds the message.
func (g *grant) Extend(ctx context.Context) bool {
	held, err := g.answer(ctx, g.ask(ctx, nil))
	return held || err != nil
}

// SetWaiting implements [Grant]. Under a failure policy other than hold, the delivery begins without Redis.
func (g *grant) SetWaiting(ctx context.Context, waits bool) (held bool, err error) {
	held, err = g.answer(ctx, g.ask(ctx, &waits))
	if err != nil && g.grants.o.Policy != Hold {
		return true, nil
	}
	return held, err
}

// renewal is a request to renew a lease.
type renewal struct {
	number  int // of the grant's requests
	request *batched[store.Lease, store.Lease]
	held    bool // the answer, if there is no request to Redis
}

// ask requests a renewal of the lease. If waits is not nil, it first records whether the holder waits. Requests reach Redis in this order,
// so a request of a waiting holder never arrives after the end of its wait.
func (g *grant) ask(ctx context.Context, waits *bool) (asked renewal) {
	g.renewals.mu.Lock()
	defer g.renewals.mu.Unlock()
	if waits != nil {
		g.grants.replay.locked(func() { g.Lease.Waits = *waits })
	}
	lease, local := g.grants.replay.now(&g.granted)
	if local {
		extended := g.grants.mirror.memory.Extend([]store.Lease{lease}, g.grants.o.Lease)
		g.grants.replay.locked(func() { asked.held = !g.local || g.renewed(extended[0]) }) // Redis may have learned of the grant meanwhile
		return asked
	}
	if g.renewals.ended {
		return renewal{held: true}
	}
	g.renewals.newest = renewal{number: g.renewals.newest.number + 1, request: g.grants.extend.submit(ctx, lease)}
	return g.renewals.newest
}

// answer waits for the answer to a request. The newest answer has the end of the lease.
func (g *grant) answer(ctx context.Context, of renewal) (held bool, err error) {
	if of.request == nil {
		return of.held, nil
	}
	lease, err := of.request.await(ctx)
	if err != nil {
		return false, err
	}
	g.renewals.mu.Lock()
	defer g.renewals.mu.Unlock()
	if of.number < g.renewals.answered {
		return lease.End != 0, nil
	}
	g.renewals.answered = of.number
	g.grants.replay.locked(func() { held = g.renewed(lease) })
	return held, nil
}

// Release implements [Grant].
func (g *grant) Release(ctx context.Context, inDoubt bool) {
	g.endRenewals(ctx)
	lease, local := g.grants.replay.now(&g.granted)
	lease.InDoubt = lease.InDoubt || inDoubt
	if local {
		g.grants.mirror.memory.Extend([]store.Lease{lease}, 0)
		g.grants.replay.locked(func() { g.Became, g.Lease.InDoubt = store.WasReleased, lease.InDoubt })
		return
	}
	g.grants.mirror.ended(&g.granted, lease)
	_, _ = g.grants.release.do(ctx, lease) // if this fails, the lease lapses by itself
}

// Refund implements [Grant].
func (g *grant) Refund(ctx context.Context) (owed <-chan struct{}) {
	g.endRenewals(ctx)
	lease, local := g.grants.replay.now(&g.granted)
	if local {
		if !g.grants.mirror.memory.Refund([]store.Lease{lease})[0] {
			return nil
		}
		disowned, owed := g.grants.replay.disown(&g.granted)
		if disowned {
			g.grants.mirror.returned(&g.granted)
		}
		return owed
	}
	returned, err := g.grants.refund.do(ctx, lease)
	switch {
	case err != nil:
		return g.grants.replay.owesRefund(&g.granted)
	case returned:
		g.grants.mirror.returned(&g.granted)
	}
	return nil
}
