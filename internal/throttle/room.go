package throttle

import (
	"context"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Room bounds the events that wait in the room. Its methods may be called concurrently. While Redis is unavailable nothing is counted: they
// return an error of the class script.ErrUnavailable.
type Room struct {
	outage *outage
	queues *store.Queues
	most   int // events of one first level
}

// EnterRoom is [store.Queues.EnterRoom].
func (r *Room) EnterRoom(ctx context.Context, stays []store.Stay) (mayStay []bool, err error) {
	if err := r.outage.mustAnswer(); err != nil {
		return nil, err
	}
	return r.queues.EnterRoom(ctx, stays, r.most)
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

// Stays is [store.Queues.Stays].
func (r *Room) Stays(ctx context.Context, first string) (map[store.Stay]time.Time, error) {
	return r.queues.Stays(ctx, first)
}

// Claim is [store.Queues.Claim].
func (r *Room) Claim(ctx context.Context, task store.Task, period time.Duration) (bool, error) {
	return r.queues.Claim(ctx, task, period)
}
