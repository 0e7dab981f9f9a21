package throttle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
)

// maxUnsynced bounds what is remembered for Redis during an outage: a few tens of megabytes.
const maxUnsynced = 100_000

// granted is the part of a grant of which Redis may have to be told. The lock of the outage guards it.
type granted struct {
	mirrored bool // the local store took note of the admission; this never changes

	lease    Lease
	admitted time.Time
	local    bool // Redis does not know of it
	became   became
	refunded bool // Redis has yet to be told
	unsynced bool // stands among what Redis has to be told
}

// now is the lease, and whether Redis does not know of it.
func (o *outage) now(g *granted) (lease Lease, local bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return g.lease, g.local
}

// admittedLocally remembers admissions that Redis has to be told of.
func (o *outage) admittedLocally(admitted []*granted) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, g := range admitted {
		o.remember(g)
	}
}

// delivered notes that an event was delivered, and whether Redis has still to be told.
func (o *outage) delivered(g *granted, receipt string, untold bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g.became, g.lease.receipt = wasDelivered, receipt
	if untold {
		o.remember(g)
	}
}

// renewed takes over a lease's new end, unless Redis has learned of the grant meanwhile.
func (o *outage) renewed(g *granted, lease Lease, local bool) (held bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if g.local != local {
		return true
	}
	g.lease.End = lease.End
	return lease.End != 0
}

// releasedLocally notes that the lease of a grant has ended that Redis does not know of.
func (o *outage) releasedLocally(g *granted, inDoubt bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g.became, g.lease.inDoubt = wasReleased, inDoubt
}

// refundLater remembers that Redis has to return the slots.
func (o *outage) refundLater(g *granted) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g.refunded = true
	o.remember(g)
}

// disown takes a refunded grant out of what Redis has to be told. If it is not there, because Redis is being told of the
// admission just now or by an earlier grant, the answer is false and Redis will be told of the refund too.
func (o *outage) disown(g *granted) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.Index(o.unsynced, g); i >= 0 {
		o.unsynced = append(o.unsynced[:i:i], o.unsynced[i+1:]...)
		g.unsynced = false
		return true
	}
	g.refunded = true
	o.remember(g)
	return false
}

// synced tells whether Redis answers and knows everything.
func (o *outage) synced() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state == answering && len(o.unsynced) == 0
}

// remember adds to what Redis has to be told. The caller holds the lock.
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

// sync tells Redis what it has missed, and returns of how many events. After an error, what was not told stays unsynced.
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
			o.mu.Lock()
			for _, g := range batch {
				o.remember(g)
			}
			o.mu.Unlock()
			return told, err
		}
		told += len(batch)
	}
}

// nextUnsynced takes a batch out of what Redis has to be told.
func (o *outage) nextUnsynced() []*granted {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.unsynced[:min(len(o.unsynced), MaxBatch)]
	o.unsynced = o.unsynced[len(batch):]
	for _, g := range batch {
		g.unsynced = false
	}
	if len(batch) == 0 {
		o.unsynced = nil
	}
	return batch
}

// tellEach leaves out events whose own logs are at fault: one log of the wrong type must not stop the others.
func (o *outage) tellEach(ctx context.Context, batch []*granted) error {
	if err := o.works(ctx); err != nil {
		return err
	}
	for i := range batch {
		err := o.tell(ctx, batch[i:i+1])
		if errors.Is(err, script.ErrRefused) {
			o.logOnce.report(o.Logger, batch[i].lease.Category, err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tell tells Redis about the grants of a batch. Repeating it is harmless.
func (o *outage) tell(ctx context.Context, batch []*granted) error {
	var (
		admissions         []admission
		refunds            []Lease
		restored, refunded []*granted
	)
	o.mu.Lock()
	for _, g := range batch {
		if g.refunded && !g.local {
			refunds, refunded = append(refunds, g.lease), append(refunded, g)
			continue
		}
		admissions = append(admissions, admission{lease: g.lease, at: g.admitted, became: g.became})
		restored = append(restored, g)
	}
	o.mu.Unlock()

	returned, err := o.Redis.Refund(ctx, refunds)
	if err != nil {
		return err
	}
	for i, g := range refunded {
		if returned[i] {
			o.hooks.returned(g)
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
		if g.became == goesOn && g.local {
			g.local, g.lease.End = false, leaseEnd
		}
		if g.refunded && !g.local {
			o.remember(g) // now that Redis knows of the admission, it can be refunded
		}
	}
	return nil
}
