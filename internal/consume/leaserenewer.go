package consume

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
)

// leaseRenewer renews the JetStream lease and the throttle lease of each delivery under way.
type leaseRenewer struct {
	settler *outcome.Settler
	metrics DeliveryMetrics
	logger  *slog.Logger

	mu         sync.Mutex
	deliveries map[*delivery]bool
}

// DeliveryMetrics counts deliveries under way. Its methods may be called concurrently.
type DeliveryMetrics interface {
	InFlight(delta int)
	Held(channel string, delta int) // deliveries that wait for a channel in this worker
}

func newLeaseRenewer(s *outcome.Settler, metrics DeliveryMetrics, logger *slog.Logger) *leaseRenewer {
	return &leaseRenewer{settler: s, metrics: metrics, logger: logger, deliveries: make(map[*delivery]bool)}
}

// add keeps the leases of a delivery renewed until remove.
func (r *leaseRenewer) add(d *delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deliveries[d] = true
	r.metrics.InFlight(1)
}

func (r *leaseRenewer) remove(d *delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.deliveries, d)
	r.metrics.InFlight(-1)
}

func (r *leaseRenewer) stopWaiting(chosen func(*delivery) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for d := range r.deliveries {
		if chosen(d) {
			d.stopWait()
		}
	}
}

func (r *leaseRenewer) warnOfAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logger.Warn("returned unfinished deliveries to the stream", "count", len(r.deliveries))
}

// run renews each lease after a third of its duration, until the context ends.
func (r *leaseRenewer) run(ctx context.Context) {
	beat := time.NewTicker(max(r.settler.Lease/12, time.Millisecond))
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
		if d.message.Lease.Left() <= r.settler.Lease*2/3 {
			due = append(due, d)
		}
	}
	return due
}

// extend renews both leases of a delivery. The delivery is lost if its JetStream lease has expired or another worker holds the throttle lease.
func (r *leaseRenewer) extend(ctx context.Context, d *delivery) bool {
	if d.lost.Load() {
		return false
	}
	if err := r.settler.Extend(ctx, d.message); err != nil {
		if d.message.Lease.Left() <= 0 {
			d.lose()
		}
		return false // the next beat tries again
	}
	if !d.admission.Grant.Extend(ctx) {
		d.lose()
		return false
	}
	return true
}
