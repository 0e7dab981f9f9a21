package throttle

import (
	"context"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Explain is [Redis.Explain] by the limits in force.
func (l *Limiter) Explain(ctx context.Context, request store.Request) (store.Explanation, error) {
	return l.o.Redis.Explain(ctx, request)
}

// Records returns a copy of the delivery record. It returns nil if Redis is unavailable or the record is too long. An event without a record
// was not admitted before this call, except as another message with its ID.
func (l *Limiter) Records(ctx context.Context) store.Recorded {
	if !l.outage.synced() {
		return nil
	}
	return l.records.Copy(ctx, l.o.Redis)
}
