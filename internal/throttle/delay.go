package throttle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/lua"
)

// Postponement asks when a denied event may come back.
type Postponement struct {
	Request
	Wait      time.Duration // until its next slot opens
	Longest   time.Duration // that it may still wait
	Place     string        // the node that denied it
	Limit     Limit         // of that node
	HasWaited bool          // it came back, and was denied again
	Firing    bool          // it opens its pair
}

// DelayVerdict says what becomes of a denied event.
type DelayVerdict int

// The verdicts about delays, numbered as in delay.lua.
const (
	ComesBack      DelayVerdict = iota + 1 // after a time
	TooMany                                // it does not, since too many others wait
	TooLate                                // it does not, since no slot opens in time
	AlreadyWaiting                         // another message with its ID does
)

// Delay plans when a denied event comes back, in the order of those that wait for the same place. At most `most` events
// wait at once. Repeating it changes nothing.
func (r *Redis) Delay(ctx context.Context, p Postponement, most int) (DelayVerdict, time.Duration, error) {
	pair := ""
	if p.Firing {
		pair = p.Pair
	}
	k := r.keys
	keys := []string{
		k.calls, k.delayed, k.meter("delayed:" + p.Place), k.pairs, k.pairsUntil, k.leased, k.meter("delayed:again:" + p.Place),
	}
	arguments := []any{
		p.ID, p.messageName(), flag(p.Derived), p.Wait.Microseconds(), p.Longest.Microseconds(), p.Limit.Window.Microseconds(), max(p.Limit.Count, 1), most,
		flag(p.HasWaited), pair,
	}
	reply, err := r.run(ctx, lua.Delay, keys, arguments)
	if err != nil {
		return 0, 0, classify("planning a delay", err)
	}
	numbers, err := decodeNumbers(reply, 2)
	if err != nil {
		return 0, 0, fmt.Errorf("planning a delay: %w: %w", ErrRefused, err)
	}
	return DelayVerdict(numbers[1]), time.Duration(numbers[0]) * time.Microsecond, nil
}

// flag is how the scripts take a yes or no.
func flag(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Planned tells whether it was planned in the last hour that an event comes back, and in what time; 0 if that is over.
func (r *Redis) Planned(ctx context.Context, request Request) (in time.Duration, planned bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	at, err := r.client.ZScore(ctx, r.keys.delayed, request.ID).Result()
	if errors.Is(err, redis.Nil) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, classify("looking for a plan", err)
	}
	now, err := r.client.Time(ctx).Result()
	if err != nil {
		return 0, false, classify("looking for a plan", err)
	}
	return max(0, time.UnixMicro(int64(at)).Sub(now)), true, nil
}

// Delayed counts the events that wait.
func (r *Redis) Delayed(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	now, err := r.client.Time(ctx).Result()
	if err != nil {
		return 0, classify("counting delayed events", err)
	}
	n, err := r.client.ZCount(ctx, r.keys.delayed, "("+strconv.FormatInt(now.UnixMicro(), 10), "+inf").Result()
	return int(n), classify("counting delayed events", err)
}

// Delay plans when a denied event comes back, if it does. While Redis is away nothing is planned: the event has to be asked
// for again.
func (g *Gate) Delay(ctx context.Context, p Postponement) (DelayVerdict, time.Duration, error) {
	if state, cause := g.currentState(); state != answering {
		return 0, 0, unavailable(cause)
	}
	return g.o.Redis.Delay(ctx, p, g.o.MostDelayed)
}

// Planned tells whether it was planned in the last hour that an event comes back, and in what time; 0 if that is over.
func (g *Gate) Planned(ctx context.Context, request Request) (in time.Duration, planned bool, err error) {
	if state, cause := g.currentState(); state != answering {
		return 0, false, unavailable(cause)
	}
	return g.o.Redis.Planned(ctx, request)
}
