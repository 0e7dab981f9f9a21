package throttle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// probeEvery is how often an unavailable Redis is tried.
const probeEvery = 250 * time.Millisecond

// works returns an error unless Redis can do everything a worker needs. A read does not show that: a replica answers reads, and so does a server
// that cannot save.
func (o *LimiterOptions) works(ctx context.Context) error {
	if err := o.Redis.SelfTest(ctx, o.SelfTests...); err != nil {
		return err
	}
	return o.Redis.Probe(ctx)
}

// recovery probes Redis, sends it what it has missed, and lets it decide again.
type recovery struct {
	o         *LimiterOptions
	outage    *outage
	staleness *staleness
	replay    *replay
	usage     *Usage
	dropped   *dropped

	mu          sync.Mutex
	lostReplies []lostReply
}

// lostReply is a call without a reply. Redis may have granted leases that nobody holds.
type lostReply struct {
	nonce    string
	requests []store.Request
}

// maxLostReplies bounds the calls that are remembered. The leases of further calls lapse.
const maxLostReplies = 16

// reach makes the first contact. If Redis works, this instance learns of newer limits before any decision.
func (r *recovery) reach(ctx context.Context) {
	err := r.o.works(ctx)
	if err != nil && ctx.Err() != nil {
		return // the worker ends, which says nothing about Redis
	}
	if err == nil {
		_ = r.staleness.compare(ctx) // keepUp tries again
	}
	r.outage.reached(err)
}

// run probes Redis until the context ends. While Redis answers, each tick sends what single calls failed to send. Then it reads the usage, so an
// idle worker notices that Redis is unavailable. New limits do not wait for a tick, since their use is unknown until then.
func (r *recovery) run(ctx context.Context, ticks <-chan time.Time) {
	for ctx.Err() == nil {
		state, changed := r.outage.watch()
		if state != answering {
			r.usage.unread()
			r.probe(ctx)
			continue
		}
		select {
		case <-ctx.Done():
			continue
		case <-changed:
			continue
		case <-ticks:
		case <-r.usage.adopted:
		}
		if _, err := r.replay.sync(ctx); err != nil && ctx.Err() == nil {
			r.outage.lost(err)
			continue
		}
		err := r.usage.refresh(ctx)
		if err != nil {
			r.usage.unread()
		}
		if errors.Is(err, script.ErrUnavailable) && ctx.Err() == nil {
			r.outage.lost(err)
		}
	}
}

// probe checks once whether Redis works again. If not, it lets the policy act once the grace is over, and then waits until the next probe is
// due.
func (r *recovery) probe(ctx context.Context) {
	err := r.o.works(ctx)
	if err == nil {
		err = r.recover(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	r.outage.stay(err)
	await.For(ctx, probeEvery)
}

// recover sends Redis what it has missed, and lets Redis decide again. The next tick of run sends what is queued meanwhile. It first fetches the
// limits in force, since Redis keeps the slots of a path as long as the window of the limit that comes with them.
func (r *recovery) recover(ctx context.Context) error {
	if err := r.staleness.compare(ctx); errors.Is(err, script.ErrUnavailable) {
		return err
	}
	if err := r.releaseLost(ctx); err != nil {
		return err
	}
	restored, err := r.replay.sync(ctx)
	if err == nil {
		err = r.dropped.forget(ctx)
	}
	if err == nil {
		r.outage.resume(restored)
	}
	return err
}

// noReply records that a call got no reply and Redis is lost. It returns the error for the caller.
func (r *recovery) noReply(nonce string, requests []store.Request, cause error) error {
	r.mu.Lock()
	if len(r.lostReplies) < maxLostReplies {
		r.lostReplies = append(r.lostReplies, lostReply{nonce, slices.Clone(requests)})
	}
	r.mu.Unlock()
	r.outage.lost(cause)
	return unavailableBecause(cause)
}

// releaseLost ends the leases that were granted in lost replies. The caller gave their events back, and will ask again.
func (r *recovery) releaseLost(ctx context.Context) error {
	for {
		r.mu.Lock()
		lost := r.lostReplies
		r.mu.Unlock()
		if len(lost) == 0 {
			return nil
		}
		err := r.release(ctx, lost[0])
		if err != nil && !errors.Is(err, script.ErrRefused) && !errors.Is(err, script.ErrStale) {
			return err // a refused or stale call is dropped: its leases lapse by themselves
		}
		r.mu.Lock()
		r.lostReplies = r.lostReplies[1:]
		r.mu.Unlock()
	}
}

// release repeats a call, gets its answer again, and ends the leases in it.
func (r *recovery) release(ctx context.Context, call lostReply) error {
	lookups := slices.Clone(call.requests)
	for i := range lookups {
		lookups[i].Cost = 0 // the repeated call must not admit anything new
	}
	result, err := r.o.Redis.DecideOnce(ctx, call.nonce, lookups)
	if err != nil {
		return err
	}
	var leases []store.Lease
	for i := range result.Decisions {
		if lease := result.Decisions[i].Lease; lease.Request.ID != "" {
			lease.Request.Cost = call.requests[i].Cost               // slots that follow a delivery return by their number
			lease.InDoubt = lease.InDoubt || lease.Request.Attempted // nobody has looked for the post
			leases = append(leases, lease)
		}
	}
	_, err = r.o.Redis.Extend(ctx, leases, 0)
	return err
}
