package throttle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Delay plans when a denied event comes back, if it does. While Redis is unavailable it plans nothing, and the event must be decided again.
func (l *Limiter) Delay(ctx context.Context, p store.Postponement) (store.DelayVerdict, time.Duration, error) {
	if err := l.outage.mustAnswer(); err != nil {
		return 0, 0, err
	}
	return l.o.Redis.Delay(ctx, p, l.o.RoomMax)
}

// findPlans answers Planned for events that were planned to come back, and leaves the remaining answers empty. If a failure policy acts or
// Redis refuses the look-up, the plans are unknown. Then all events are Deferred: decided anew, they could end twice. It returns the errors
// of Decide.
func (l *Limiter) findPlans(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	switch state, cause := l.outage.current(); state {
	case answering:
	case acting:
		return l.deferred(len(requests), unavailableBecause(cause)), nil
	default:
		return nil, unavailableBecause(cause)
	}
	planned, err := l.o.Redis.Plans(ctx, requests)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, script.ErrRefused):
		return l.deferred(len(requests), err), nil
	case err != nil:
		l.outage.lost(err)
		return nil, unavailableBecause(err)
	}
	return planned, nil
}

// denyEarly denies the events of the part that must wait for older events, and returns their number.
func (p *part) denyEarly(turns []store.Turn, answers []store.Decision) (denied int) {
	for i, position := range p.positions {
		if turn := turns[i]; turn.Wait > 0 {
			answers[position] = store.Decision{Verdict: store.Denied, Node: turn.Node, Limit: turn.Limit, Wait: turn.Wait}
			denied++
		}
	}
	return denied
}

// EnterRoom is [Redis.EnterRoom]. While Redis is unavailable nothing is counted.
func (l *Limiter) EnterRoom(ctx context.Context, stays []store.Stay) (mayStay []bool, err error) {
	if err := l.outage.mustAnswer(); err != nil {
		return nil, err
	}
	return l.o.Redis.EnterRoom(ctx, stays, l.o.RoomMax)
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
	return l.o.Redis.Passed(ctx, consumer, sequence, deliveries)
}
