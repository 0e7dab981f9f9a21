package store

import (
	"context"
	"math/rand/v2"
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

// EnterRoom reports for each event whether it may wait in the room, where at most `most` events of a first-level category wait. An
// event that waits already counts once. Events that have left make room.
func (r *Queues) EnterRoom(ctx context.Context, stays []Stay, most int) (mayStay []bool, err error) {
	if len(stays) == 0 {
		return nil, nil
	}
	keys, rooms := []string{r.d.keys.calls}, make(numbering[string])
	arguments := make([]any, 0, 1+4*len(stays))
	arguments = append(arguments, most)
	for _, stay := range stays {
		room, isNew := rooms.of(stay.First)
		if isNew {
			keys = append(keys, r.d.keys.room(stay.First))
		}
		arguments = append(arguments, room, stay.Member, stay.Weight, stay.For.Microseconds())
	}
	return flags(r.d.runner.RunNumbers(ctx, "entering the room", lua.Room, keys, arguments, len(stays)))
}

// positionKept is how long a consumer's position is remembered after its last report.
const positionKept = 7 * 24 * time.Hour

// Passed is [Limiter.Passed]. A failed call may have counted messages, so the next call repeats its nonce.
func (r *Queues) Passed(ctx context.Context, consumer string, sequence, deliveries uint64) (vanished int64, err error) {
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
func (r *Queues) passedOnce(ctx context.Context, nonce int64, consumer string, sequence, deliveries uint64) (vanished int64, err error) {
	keys := []string{r.d.keys.key("passed:" + consumer)}
	arguments := []any{nonce, sequence, deliveries, positionKept.Microseconds()}
	return r.d.runner.RunInt(ctx, "noting the consumer's position", lua.Passed, keys, arguments)
}
