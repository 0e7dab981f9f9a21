package throttle

import (
	"context"
	"slices"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Room bounds the events that wait in the room. Its methods may be called concurrently. While Redis is unavailable they return an error of
// the class script.ErrUnavailable.
type Room struct {
	*store.Queues
	outage *outage
	most   int // events of one first level
}

// EnterRoom is [store.Queues.EnterRoom].
func (r *Room) EnterRoom(ctx context.Context, stays []store.Stay) (mayStay []bool, err error) {
	if err := r.outage.mustAnswer(); err != nil {
		return nil, err
	}
	return r.Queues.EnterRoom(ctx, stays, r.most)
}

// LeaveRoom ends stays, to make room for other events.
func (r *Room) LeaveRoom(ctx context.Context, stays []store.Stay) error {
	left := slices.Clone(stays)
	for i := range left {
		left[i].For = 0
	}
	_, err := r.EnterRoom(ctx, left)
	return err
}
