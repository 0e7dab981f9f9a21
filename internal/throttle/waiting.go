package throttle

import (
	"context"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Delay plans when a denied event comes back, if it does. While Redis is unavailable it plans nothing, and the event must be decided again.
func (l *Limiter) Delay(ctx context.Context, p store.Postponement) (store.DelayVerdict, time.Duration, error) {
	if err := l.outage.mustAnswer(); err != nil {
		return 0, 0, err
	}
	return l.o.Redis.Queues.Delay(ctx, p, l.o.RoomMax)
}

// EnterRoom is [store.Queues.EnterRoom]. While Redis is unavailable nothing is counted.
func (l *Limiter) EnterRoom(ctx context.Context, stays []store.Stay) (mayStay []bool, err error) {
	if err := l.outage.mustAnswer(); err != nil {
		return nil, err
	}
	return l.o.Redis.Queues.EnterRoom(ctx, stays, l.o.RoomMax)
}

// LeaveRoom ends stays, to make room for other events. While Redis is unavailable, stays end by themselves.
func (l *Limiter) LeaveRoom(ctx context.Context, stays []store.Stay) error {
	left := slices.Clone(stays)
	for i := range left {
		left[i].For = 0
	}
	_, err := l.EnterRoom(ctx, left)
	return err
}

// Passed returns how many messages, at least, have left a stream undelivered since an instance last reported the consumer's position. A
// recreated consumer needs another name.
func (l *Limiter) Passed(ctx context.Context, consumer string, sequence, deliveries uint64) (vanished int64, err error) {
	if err := l.outage.mustAnswer(); err != nil {
		return 0, err
	}
	return l.o.Redis.Queues.Passed(ctx, consumer, sequence, deliveries)
}
