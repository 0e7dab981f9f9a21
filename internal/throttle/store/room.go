package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/lua"
)

// Stay is an event that waits in the room.
type Stay struct {
	First  string        // the first level of its category, which bounds how many wait
	Member string        // names the event
	Weight int           // number of events that it counts for
	For    time.Duration // until it is due; 0 (in the store): it has left
}

// Units returns a stay for each event that the stay counts for. Redis has each of them as a member of its own: see slot_member in
// lua/lib/prelude.lua.
func (s Stay) Units() []Stay {
	units := make([]Stay, s.Weight)
	for u := range units {
		units[u] = Stay{First: s.First, Member: s.Member, Weight: 1, For: s.For}
		if u > 0 {
			units[u].Member += fmt.Sprintf("\n%d", u+1)
		}
	}
	return units
}

// EnterRoom reports for each event whether it may wait in the room, where at most `most` events of a first-level category wait. An
// event that waits already counts once. Events that have left make room.
func (r *Queues) EnterRoom(ctx context.Context, stays []Stay, most int) (mayStay []bool, err error) {
	if len(stays) == 0 {
		return nil, nil
	}
	rooms := r.d.keys.newLevelIndex(roomPrefixes, r.d.keys.calls)
	arguments := append(make([]any, 0, 1+4*len(stays)), most)
	for _, stay := range stays {
		arguments = append(arguments, rooms.of(stay.First), stay.Member, stay.Weight, stay.For.Microseconds())
	}
	return flags(r.d.runner.RunNumbers(ctx, "entering the room", lua.Room, rooms.keys, arguments, len(stays)))
}

// staysAtOnce is how many stays one call reads.
const staysAtOnce = 1000

// Stays returns when the present stays of a first level end. Each counts for one event (see [Stay.Units]) and has no For. A stay that
// begins or changes meanwhile may be missing.
func (r *Queues) Stays(ctx context.Context, first string) (map[Stay]time.Time, error) {
	key, ends := r.d.keys.room(first), make(map[Stay]time.Time)
	next := int64(-1) // rank of the next stay
	for {
		var read []redis.Z
		err := r.d.runner.Read(ctx, "reading the stays in the room", func(ctx context.Context, client redis.Cmdable) error {
			if next < 0 {
				now, err := r.d.runner.Time(ctx)
				if err != nil {
					return err
				}
				if next, err = client.ZCount(ctx, key, "-inf", fmt.Sprint(now.UnixMicro())).Result(); err != nil {
					return err
				}
			}
			var err error
			read, err = client.ZRangeWithScores(ctx, key, next, next+staysAtOnce-1).Result()
			return err
		})
		if err != nil || len(read) == 0 {
			return ends, err
		}
		for _, z := range read {
			member, _ := z.Member.(string)
			ends[Stay{First: first, Member: member, Weight: 1}] = time.UnixMicro(int64(z.Score))
		}
		next += int64(len(read))
	}
}

// Task is a task for one instance of the deployment at a time. It is the name of a key.
type Task string

// The tasks in the room.
const (
	Recount Task = "recount" // compare the stays with the room
	Overdue Task = "overdue" // make forgotten schedules due
)

// Claim returns true for one instance of the deployment in each period.
func (r *Queues) Claim(ctx context.Context, task Task, period time.Duration) (claimed bool, err error) {
	return r.d.put(ctx, "claiming a task in the room", r.d.keys.key(string(task)), NewNonce(), redis.SetArgs{Mode: "NX", TTL: period})
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

// passedOnce makes one call. A repeated call with the same nonce gives the same answer until another call counts messages.
func (r *Queues) passedOnce(ctx context.Context, nonce int64, consumer string, sequence, deliveries uint64) (vanished int64, err error) {
	keys := []string{r.d.keys.key("passed:" + consumer)}
	arguments := []any{nonce, sequence, deliveries, positionKept.Microseconds()}
	return r.d.runner.RunInt(ctx, "noting the consumer's position", lua.Passed, keys, arguments)
}
