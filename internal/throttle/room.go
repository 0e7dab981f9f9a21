package throttle

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/lua"
)

// Stay is an event that waits in the room.
type Stay struct {
	First  string        // the first level of its category, which bounds how many wait
	Member string        // names the event
	Weight int           // how many of those it counts for
	For    time.Duration // until it is due; 0 (in the store): it has left
}

// EnterRoom tells for each event whether it may wait in the room, where at most so many of a first-level category do at once. An
// event that waits already counts once. Events that have left make room.
func (r *Redis) EnterRoom(ctx context.Context, stays []Stay, most int) (mayStay []bool, err error) {
	if len(stays) == 0 {
		return nil, nil
	}
	keys, rooms := []string{r.keys.calls}, make(numbering[string])
	arguments := make([]any, 0, 1+4*len(stays))
	arguments = append(arguments, most)
	for _, stay := range stays {
		room, isNew := rooms.of(stay.First)
		if isNew {
			keys = append(keys, r.keys.room(stay.First))
		}
		arguments = append(arguments, room, stay.Member, stay.Weight, stay.For.Microseconds())
	}
	return flags(r.runner.RunNumbers(ctx, "entering the room", lua.Room, keys, arguments, len(stays)))
}

// EnterRoom is [Redis.EnterRoom]. While Redis is unavailable nothing is counted.
func (l *Limiter) EnterRoom(ctx context.Context, stays []Stay) (mayStay []bool, err error) {
	if err := l.outage.mustAnswer(); err != nil {
		return nil, err
	}
	return l.o.Redis.EnterRoom(ctx, stays, l.o.RoomMax)
}

// LeaveRoom ends stays, so that others may wait. While Redis is unavailable they end by themselves.
func (l *Limiter) LeaveRoom(ctx context.Context, stays []Stay) error {
	left := slices.Clone(stays)
	for i := range left {
		left[i].For = 0
	}
	_, err := l.EnterRoom(ctx, left)
	return err
}

// positionKept is how long a consumer's position is remembered after it was told last.
const positionKept = 7 * 24 * time.Hour

// Passed tells how many messages at least have left a stream undelivered since any instance told the position of its consumer last. A
// consumer that was made anew needs another name.
func (l *Limiter) Passed(ctx context.Context, consumer string, sequence, deliveries uint64) (vanished int64, err error) {
	if err := l.outage.mustAnswer(); err != nil {
		return 0, err
	}
	return l.o.Redis.Passed(ctx, consumer, sequence, deliveries)
}

// Passed is [Limiter.Passed]. A failed call may have counted messages, so the next call repeats its nonce.
func (r *Redis) Passed(ctx context.Context, consumer string, sequence, deliveries uint64) (vanished int64, err error) {
	nonce := r.passedNonce.Load()
	if nonce == 0 {
		nonce = 1 + rand.Int64N(1<<53-1) //nolint:gosec // no secret depends on it
	}
	vanished, err = r.passedOnce(ctx, nonce, consumer, sequence, deliveries)
	if err != nil {
		r.passedNonce.Store(nonce)
		return 0, err
	}
	r.passedNonce.Store(0)
	return vanished, nil
}

// passedOnce makes one call. Calling it again with the same nonce gives the same answer until another call counts messages.
func (r *Redis) passedOnce(ctx context.Context, nonce int64, consumer string, sequence, deliveries uint64) (vanished int64, err error) {
	keys := []string{r.keys.key("passed:" + consumer)}
	arguments := []any{nonce, sequence, deliveries, positionKept.Microseconds()}
	return r.runner.RunInt(ctx, "noting the consumer's position", lua.Passed, keys, arguments)
}
