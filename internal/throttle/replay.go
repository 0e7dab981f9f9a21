package throttle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// maxUnsynced bounds the grants that are remembered for Redis during an outage: a few tens of megabytes.
const maxUnsynced = 100_000

// granted is the part of a grant that may have to be sent to Redis. The lock of the replay guards it.
type granted struct {
	mirrored bool // the local store has recorded the admission; this never changes

	store.Admission
	local    bool // Redis does not know of it
	refunded bool // the refund has not been sent to Redis yet
	unsynced bool // queued for replay to Redis

	sent chan struct{} // closed once Redis has the end of the grant or cannot take it; nil: nobody waits for that end
}

// leaveReplay records that Redis has the end of the grant or cannot take it. The caller holds the lock.
func (g *granted) leaveReplay() {
	if g.sent != nil {
		close(g.sent)
		g.sent = nil
	}
}

// delivered records the delivery. The caller holds the lock.
func (g *granted) delivered(receipt string) {
	g.Became, g.Lease.Receipt = store.WasDelivered, receipt
}

// renewed records the new end of the lease. The caller holds the lock.
func (g *granted) renewed(lease store.Lease) (held bool) {
	g.Lease.End = lease.End
	return lease.End != 0
}

// replay queues grants for Redis: events that were admitted, delivered or refunded without Redis.
type replay struct {
	o       *LimiterOptions
	mirror  *mirror
	dropped *dropped
	logOnce *logOnce

	mu       sync.Mutex
	unsynced []*granted
}

// locked changes a grant while it holds the lock.
func (r *replay) locked(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// now returns the lease, and whether Redis does not know of it.
func (r *replay) now(g *granted) (lease store.Lease, local bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return g.Lease, g.local
}

// rememberAll queues grants for replay to Redis.
func (r *replay) rememberAll(grants []*granted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range grants {
		r.remember(g)
	}
}

// owesFinish records that the event of a grant was delivered, and queues the grant: Redis does not know of the delivery. It returns nil if
// Redis cannot know the event: no other worker would find a trace of it. Redis may know a redelivered event by an earlier admission.
func (r *replay) owesFinish(g *granted, receipt string) (owed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g.delivered(receipt)
	if g.local && !g.Lease.Request.Attempted {
		r.remember(g)
		return nil
	}
	return r.owe(g)
}

// owesRefund queues a refund that Redis did not take.
func (r *replay) owesRefund(g *granted) (owed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g.refunded = true
	return r.owe(g)
}

// disown removes a refunded grant from the replay queue. If the grant is not queued, because the admission is being sent or Redis has it from an
// earlier grant, it queues the refund instead.
func (r *replay) disown(g *granted) (disowned bool, owed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.unsynced, g); i >= 0 {
		r.unsynced = slices.Concat(r.unsynced[:i], r.unsynced[i+1:])
		g.unsynced = false
		r.dropped.add(g.Lease.Request)
		return true, nil
	}
	g.refunded = true
	return false, r.owe(g)
}

// owe queues a grant, and returns what is closed once Redis has the end of the grant or cannot take it. The caller holds the lock.
func (r *replay) owe(g *granted) <-chan struct{} {
	r.remember(g)
	g.sent = make(chan struct{})
	return g.sent
}

// remember queues a grant for replay to Redis. The caller holds the lock.
func (r *replay) remember(g *granted) {
	if g.unsynced {
		return
	}
	if len(r.unsynced) == maxUnsynced {
		r.unsynced[0].unsynced = false
		r.unsynced[0].leaveReplay()
		r.unsynced = r.unsynced[1:]
	}
	g.unsynced = true
	r.unsynced = append(r.unsynced, g)
}

// sync replays grants to Redis until none is queued, and returns their number. After an error, the rest stays queued.
func (r *replay) sync(ctx context.Context) (sent int, err error) {
	for {
		batch := r.next()
		if len(batch) == 0 {
			return sent, nil
		}
		err := r.send(ctx, batch)
		if errors.Is(err, script.ErrRefused) {
			err = r.sendEach(ctx, batch)
		}
		if err != nil {
			r.rememberAll(batch)
			return sent, err
		}
		sent += len(batch)
	}
}

// next takes a batch off the replay queue.
func (r *replay) next() []*granted {
	r.mu.Lock()
	defer r.mu.Unlock()
	batch := r.unsynced[:min(len(r.unsynced), store.MaxBatch)]
	r.unsynced = r.unsynced[len(batch):]
	for _, g := range batch {
		g.unsynced = false
	}
	if len(batch) == 0 {
		r.unsynced = nil
	}
	return batch
}

// sendEach sends the grants one by one, and skips events with faulty logs. A log of the wrong type does not stop other events.
func (r *replay) sendEach(ctx context.Context, batch []*granted) error {
	if err := r.o.works(ctx); err != nil {
		return err
	}
	for _, g := range batch {
		err := r.send(ctx, []*granted{g})
		switch {
		case errors.Is(err, script.ErrRefused):
			r.logOnce.report(g.Lease.Request.Category, err)
			r.locked(g.leaveReplay)
		case err != nil:
			return err
		}
	}
	return nil
}

// send sends the grants of a batch to Redis. Repeating it is harmless.
func (r *replay) send(ctx context.Context, batch []*granted) error {
	var (
		admissions         []store.Admission
		refunds            []store.Lease
		restored, refunded []*granted
	)
	r.mu.Lock()
	for _, g := range batch {
		if g.refunded && !g.local {
			refunds, refunded = append(refunds, g.Lease), append(refunded, g)
			continue
		}
		admissions = append(admissions, g.Admission)
		restored = append(restored, g)
	}
	r.mu.Unlock()

	returned, err := r.o.Redis.Refund(ctx, refunds)
	if err != nil {
		return err
	}
	for i, g := range refunded {
		if returned[i] {
			r.mirror.returned(g)
		}
		r.locked(g.leaveReplay)
	}
	if len(restored) == 0 {
		return nil
	}
	leaseEnd, err := r.o.Redis.Restore(ctx, admissions, time.Now())
	if err != nil {
		return err
	}
	_, _ = r.o.Redis.Extend(ctx, r.restored(restored, admissions, leaseEnd), 0) // if this fails, the leases lapse by themselves
	return nil
}

// restored records that Redis knows of grants with these admissions. It returns the leases that were released in the meantime.
func (r *replay) restored(grants []*granted, sent []store.Admission, leaseEnd int64) (released []store.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, g := range grants {
		if sent[i].Became == store.GoesOn && g.Became != store.WasDelivered && g.local {
			g.local, g.Lease.End = false, leaseEnd
			if g.Became == store.WasReleased {
				released = append(released, g.Lease)
			}
		}
		if sent[i].Became == store.WasDelivered {
			g.leaveReplay()
		}
		if g.refunded && !g.local {
			r.remember(g) // now that Redis knows of the admission, it can be refunded
		}
	}
	return released
}
