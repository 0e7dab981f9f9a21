package consume

import (
	"context"
	"sync"
	"time"
)

// leaseRenewer renews the JetStream lease and the throttle lease of each delivery under way.
type leaseRenewer struct {
	worker *Worker

	mu         sync.Mutex
	deliveries map[*delivery]bool
}

func newLeaseRenewer(w *Worker) *leaseRenewer {
	return &leaseRenewer{worker: w, deliveries: make(map[*delivery]bool)}
}

func (r *leaseRenewer) add(d *delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deliveries[d] = true
}

func (r *leaseRenewer) remove(d *delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.deliveries, d)
}

func (r *leaseRenewer) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.deliveries)
}

// run renews each lease after a third of its duration, until the context ends.
func (r *leaseRenewer) run(ctx context.Context) {
	beat := time.NewTicker(max(r.worker.ackWait/12, time.Millisecond))
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		}
		var renewing sync.WaitGroup
		for _, d := range r.due() {
			renewing.Go(func() { r.extend(ctx, d) })
		}
		renewing.Wait()
	}
}

func (r *leaseRenewer) due() []*delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []*delivery
	for d := range r.deliveries {
		if d.left() <= r.worker.ackWait*2/3 {
			due = append(due, d)
		}
	}
	return due
}

// extend renews both leases of a delivery and reports whether it succeeded. If the JetStream lease has expired, or another worker holds the
// throttle lease, the delivery is lost.
func (r *leaseRenewer) extend(ctx context.Context, d *delivery) bool {
	if d.lost.Load() {
		return false
	}
	if err := r.worker.extend(ctx, d.message); err != nil {
		if d.left() <= 0 {
			d.lost.Store(true)
		}
		return false // the next beat tries again
	}
	if !d.grant.Extend(ctx) {
		d.lost.Store(true)
		return false
	}
	return true
}
