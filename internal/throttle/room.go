package throttle

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/lua"
)

// Stay is an event that waits in the room.
type Stay struct {
	First  string        // the first level of its category, which bounds how many wait
	Member string        // names the event
	Weight int           // how many of those it counts for
	For    time.Duration // until it is due; 0: it has left
}

// EnterRoom tells for each event whether it may wait in the room, where at most so many of a first-level category do at once. An
// event that waits already counts once. Events that have left make room.
func (r *Redis) EnterRoom(ctx context.Context, stays []Stay, most int) (mayStay []bool, err error) {
	if len(stays) == 0 {
		return nil, nil
	}
	keys, numbers := []string{r.keys.calls}, make(map[string]int)
	arguments := make([]any, 0, 1+4*len(stays))
	arguments = append(arguments, most)
	for _, stay := range stays {
		number, known := numbers[stay.First]
		if !known {
			keys = append(keys, r.keys.room(stay.First))
			number = len(numbers) + 1
			numbers[stay.First] = number
		}
		arguments = append(arguments, number, stay.Member, stay.Weight, stay.For.Microseconds())
	}
	reply, err := r.run(ctx, lua.Room, keys, arguments)
	if err != nil {
		return nil, classify("entering the room", err)
	}
	answers, err := decodeNumbers(reply, len(stays))
	if err != nil {
		return nil, fmt.Errorf("entering the room: %w: %w", ErrRefused, err)
	}
	mayStay = make([]bool, len(stays))
	for i, answer := range answers {
		mayStay[i] = answer == 1
	}
	return mayStay, nil
}

// EnterRoom is that of [Redis.EnterRoom]. While Redis is unavailable nothing is counted.
func (g *Gate) EnterRoom(ctx context.Context, stays []Stay) (mayStay []bool, err error) {
	if state, cause := g.currentState(); state != answering {
		return nil, unavailable(cause)
	}
	return g.o.Redis.EnterRoom(ctx, stays, g.o.RoomMax)
}

// positionKept is how long a consumer's position is remembered while nobody tells it.
const positionKept = 7 * 24 * time.Hour

// Passed tells how many messages have left a stream undelivered since the position of its consumer was told last, by any instance:
// at least so many. The consumer's name is to differ for one that was made anew.
func (g *Gate) Passed(ctx context.Context, consumer string, sequence, deliveries uint64) (vanished int64, err error) {
	if state, cause := g.currentState(); state != answering {
		return 0, unavailable(cause)
	}
	return g.o.Redis.Passed(ctx, consumer, sequence, deliveries)
}

// Passed is what the gate's tells.
func (r *Redis) Passed(ctx context.Context, consumer string, sequence, deliveries uint64) (vanished int64, err error) {
	vanished, err = r.runInt(ctx, lua.Passed, []string{r.keys.meter("passed:" + consumer)}, []any{sequence, deliveries, positionKept.Microseconds()})
	return vanished, classify("noting the consumer's position", err)
}
