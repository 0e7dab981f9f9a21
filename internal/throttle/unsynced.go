package throttle

import (
	"context"
	"errors"
	"slices"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// maxUnsynced bounds the grants that are remembered for Redis during an outage: a few tens of megabytes.
const maxUnsynced = 100_000

// granted is the part of a grant that may have to be sent to Redis. The lock of the outage guards it.
type granted struct {
	mirrored bool // the local store has recorded the admission; this never changes

	store.Admission
	local    bool // Redis does not know of it
	refunded bool // the refund has not been sent to Redis yet
	unsynced bool // queued for replay to Redis
}

// now returns the lease, and whether Redis does not know of it.
func (o *outage) now(g *granted) (lease store.Lease, local bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return g.Lease, g.local
}

// rememberAll queues grants for replay to Redis.
func (o *outage) rememberAll(grants []*granted) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, g := range grants {
		o.remember(g)
	}
}

// change updates a grant. If untold is set, it queues the grant for replay to Redis.
func (o *outage) change(g *granted, untold bool, change func(*granted)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(g)
	if untold {
		o.remember(g)
	}
}

// renewed records a lease's new end, unless Redis has learned of the grant meanwhile.
func (o *outage) renewed(g *granted, lease store.Lease, local bool) (held bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if g.local != local {
		return true
	}
	g.Lease.End = lease.End
	return lease.End != 0
}

// disown removes a refunded grant from the replay queue. It returns false if the grant is not queued, because the admission is being sent or
// Redis has it from an earlier grant. Then it queues the refund too.
func (o *outage) disown(g *granted) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.Index(o.unsynced, g); i >= 0 {
		o.unsynced = slices.Concat(o.unsynced[:i], o.unsynced[i+1:])
		g.unsynced = false
		return true
	}
	g.refunded = true
	o.remember(g)
	return false
}

// synced reports whether Redis answers and knows everything.
func (o *outage) synced() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state == answering && len(o.unsynced) == 0
}

// remember queues a grant for replay to Redis. The caller holds the lock.
func (o *outage) remember(g *granted) {
	if g.unsynced {
		return
	}
	if len(o.unsynced) == maxUnsynced {
		o.unsynced[0].unsynced = false
		o.unsynced = o.unsynced[1:]
	}
	g.unsynced = true
	o.unsynced = append(o.unsynced, g)
}

// sync replays the queued grants to Redis, and returns their number. After an error, the rest stays queued.
func (o *outage) sync(ctx context.Context) (told int, err error) {
	for {
		batch := o.nextUnsynced()
		if len(batch) == 0 {
			return told, nil
		}
		err := o.tell(ctx, batch)
		if errors.Is(err, script.ErrRefused) {
			err = o.tellEach(ctx, batch)
		}
		if err != nil {
			o.rememberAll(batch)
			return told, err
		}
		told += len(batch)
	}
}

// nextUnsynced takes a batch off the replay queue.
func (o *outage) nextUnsynced() []*granted {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.unsynced[:min(len(o.unsynced), store.MaxBatch)]
	o.unsynced = o.unsynced[len(batch):]
	for _, g := range batch {
		g.unsynced = false
	}
	if len(batch) == 0 {
		o.unsynced = nil
	}
	return batch
}

// tellEach sends the grants one by one, and skips events with faulty logs. A log of the wrong type does not stop other events.
func (o *outage) tellEach(ctx context.Context, batch []*granted) error {
	if err := o.works(ctx); err != nil {
		return err
	}
	for _, g := range batch {
		err := o.tell(ctx, []*granted{g})
		switch {
		case errors.Is(err, script.ErrRefused):
			o.logOnce.report(o.Logger, g.Lease.Category, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// tell sends the grants of a batch to Redis. Repeating it is harmless.
func (o *outage) tell(ctx context.Context, batch []*granted) error {
	var (
		admissions         []store.Admission
		refunds            []store.Lease
		restored, refunded []*granted
	)
	o.mu.Lock()
	for _, g := range batch {
		if g.refunded && !g.local {
			refunds, refunded = append(refunds, g.Lease), append(refunded, g)
			continue
		}
		admissions = append(admissions, g.Admission)
		restored = append(restored, g)
	}
	o.mu.Unlock()

	returned, err := o.Redis.Refund(ctx, refunds)
	if err != nil {
		return err
	}
	for i, g := range refunded {
		if returned[i] {
			o.returned(g)
		}
	}
	if len(restored) == 0 {
		return nil
	}
	leaseEnd, err := o.Redis.Restore(ctx, admissions)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, g := range restored {
		if g.Became == store.GoesOn && g.local {
			g.local, g.Lease.End = false, leaseEnd
		}
		if g.refunded && !g.local {
			o.remember(g) // now that Redis knows of the admission, it can be refunded
		}
	}
	return nil
}

// lostReply is a call without a reply. The server may have granted leases that nobody holds.
type lostReply struct {
	nonce    string
	requests []store.Request
}

// maxLostReplies bounds the calls that are remembered. The leases of further calls lapse.
const maxLostReplies = 16

// noReply records that a call got no reply and Redis is lost. It returns the error for the caller.
func (o *outage) noReply(nonce string, requests []store.Request, cause error) error {
	lookups := slices.Clone(requests)
	for i := range lookups {
		lookups[i].Cost = 0 // the repeated call must not admit anything new
	}
	o.mu.Lock()
	if len(o.lostReplies) < maxLostReplies {
		o.lostReplies = append(o.lostReplies, lostReply{nonce, lookups})
	}
	o.mu.Unlock()
	o.lost(cause)
	return unavailableBecause(cause)
}

// releaseLost ends the leases that were granted in lost replies. Their events were given back, and will be decided again.
func (o *outage) releaseLost(ctx context.Context) error {
	for {
		o.mu.Lock()
		lost := o.lostReplies
		o.mu.Unlock()
		if len(lost) == 0 {
			return nil
		}
		err := o.release(ctx, lost[0])
		if err != nil && !errors.Is(err, script.ErrRefused) && !errors.Is(err, script.ErrStale) {
			return err // a refused or stale call is dropped: its leases lapse by themselves
		}
		o.mu.Lock()
		o.lostReplies = o.lostReplies[1:]
		o.mu.Unlock()
	}
}

// release repeats a call, gets its answer again, and ends the leases in it.
func (o *outage) release(ctx context.Context, call lostReply) error {
	result, err := o.Redis.DecideOnce(ctx, call.nonce, call.requests)
	if err != nil {
		return err
	}
	var leases []store.Lease
	for i := range result.Decisions {
		if lease := result.Decisions[i].Lease; lease.ID != "" {
			leases = append(leases, lease)
		}
	}
	_, err = o.Redis.Extend(ctx, leases, 0)
	return err
}
