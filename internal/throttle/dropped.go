package throttle

import (
	"context"
	"errors"
	"sync"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// maxDropped bounds the events that are remembered during an outage.
const maxDropped = 10_000

// dropped remembers events that end during an outage without a delivery although Redis may have a record of them: Redis admitted them in a
// reply that was lost, or they waited. The failure policy drops them, or admits them and they cannot be delivered. Redis forgets the record when
// it answers again. Otherwise the event would keep its slots, and a resolved event of its key would wait for it.
type dropped struct {
	o      *LimiterOptions
	mirror *mirror

	mu     sync.Mutex
	events []store.Request
}

// note remembers the events that end with these decisions of the failure policy.
func (d *dropped) note(requests []store.Request, decisions []store.Decision) {
	for i, request := range requests {
		if decisions[i].Verdict.IsDenial() && (!request.MayWait || decisions[i].Wait == 0) {
			d.add(request)
		}
	}
}

// add remembers an event that ends.
func (d *dropped) add(event store.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if event.Recorded && len(d.events) < maxDropped {
		d.events = append(d.events, event)
	}
}

// forget has Redis forget the events. After an error, the remaining events stay remembered.
func (d *dropped) forget(ctx context.Context) error {
	for {
		d.mu.Lock()
		events := d.events[:min(len(d.events), store.MaxBatch)]
		d.mu.Unlock()
		if len(events) == 0 {
			return nil
		}
		if err := d.forgetBatch(ctx, events); err != nil && !errors.Is(err, script.ErrRefused) {
			return err
		}
		d.mu.Lock()
		d.events = d.events[len(events):]
		d.mu.Unlock()
	}
}

func (d *dropped) forgetBatch(ctx context.Context, events []store.Request) error {
	leases := make([]store.Lease, len(events))
	for i, event := range events {
		leases[i] = store.Lease{Request: event, End: store.Unheld}
	}
	returned, err := d.o.Redis.Refund(ctx, leases)
	for _, was := range returned {
		if was {
			d.mirror.denials.forget()
			d.mirror.metrics.Refunded(1)
		}
	}
	for _, event := range events {
		if event.HasWaited && err == nil { // it may wait no longer, so it leaves its queues and its pair
			_, _, err = d.o.Redis.Queues.Delay(ctx, store.Postponement{Request: event}, d.o.RoomMax)
		}
	}
	return err
}
