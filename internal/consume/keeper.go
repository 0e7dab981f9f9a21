package consume

import (
	"context"
	"sync"
	"time"
)

// keeper renews the leases of the deliveries in hand, those of JetStream and of the throttle together.
type keeper struct {
	worker *Worker

	mu         sync.Mutex
	deliveries map[*delivery]bool
}

func newKeeper(w *Worker) *keeper {
	return &keeper{worker: w, deliveries: make(map[*delivery]bool)}
}

func (k *keeper) add(d *delivery) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.deliveries[d] = true
}

func (k *keeper) remove(d *delivery) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.deliveries, d)
}

func (k *keeper) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.deliveries)
}

// run renews each lease when a third of it is over, until the context ends.
func (k *keeper) run(ctx context.Context) {
	beat := time.NewTicker(max(k.worker.ackWait/12, time.Millisecond))
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		}
		var renewing sync.WaitGroup
		for _, d := range k.due() {
			renewing.Go(func() { k.extend(ctx, d) })
		}
		renewing.Wait()
	}
}

func (k *keeper) due() []*delivery {
	k.mu.Lock()
	defer k.mu.Unlock()
	var due []*delivery
	for d := range k.deliveries {
		if d.left() <= k.worker.ackWait*2/3 {
			due = append(due, d)
		}
	}
	return due
}

// extend renews both leases of a delivery and tells whether it did. If JetStream's has run out, or the throttle's is someone else's,
// the delivery is lost.
func (k *keeper) extend(ctx context.Context, d *delivery) bool {
	if d.lost.Load() {
		return false
	}
	if err := k.worker.extend(ctx, d.message); err != nil {
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
