package throttle

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Bounds of the copy of the delivery record: events under way, and delivered ones.
const (
	mostLeasedCopied = 1_000
	mostDoneCopied   = 50_000
)

// doneOverlap is how far a look at delivered events reaches back behind the look before, in microseconds of Redis' clock: calls that ran at
// once may have written in another order than their times.
const doneOverlap = 2_000_000

// records is a copy of the names in the delivery record. A worker looks there whether a message may have been delivered before: in a flood,
// asking Redis about each would cost more than all the rest.
type records struct {
	mu     sync.Mutex
	done   map[string]bool // delivered events, with those that Redis has forgotten
	newest float64         // of their times
}

// Recorded tells of an event whether the delivery record had it when the copy was made.
type Recorded func(Request) bool

// Records returns what the delivery record holds now, nil if that is not known: Redis is unavailable, or the record is too long. An event
// without a record was not admitted before this call, except as another message with its ID.
func (l *Limiter) Records(ctx context.Context) Recorded {
	if !l.outage.synced() {
		return nil
	}
	return l.o.Redis.copyRecords(ctx, &l.records)
}

func (r *Redis) copyRecords(ctx context.Context, c *records) Recorded {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := "-inf"
	if c.done != nil {
		from = strconv.FormatFloat(c.newest-doneOverlap, 'f', 0, 64)
	}
	var leased *redis.StringSliceCmd
	var done *redis.ZSliceCmd
	err := r.runner.Read(ctx, "copying the records", func(ctx context.Context, client redis.Cmdable) error {
		pipe := client.Pipeline()
		leased = pipe.ZRange(ctx, r.keys.leased, 0, mostLeasedCopied)
		done = pipe.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: r.keys.done, ByScore: true, Start: from, Stop: "+inf", Count: mostDoneCopied + 1,
		})
		_, err := pipe.Exec(ctx)
		return err
	})
	if err != nil {
		return nil
	}
	if len(leased.Val()) > mostLeasedCopied || len(c.done)+len(done.Val()) > mostDoneCopied {
		c.done, c.newest = nil, 0
		return nil
	}
	// A copy that was given out is read without the lock: new names go into another copy.
	fresh := make(map[string]bool)
	for _, entry := range done.Val() {
		name, _ := entry.Member.(string)
		if !c.done[name] && !strings.HasPrefix(name, "\n") { // the name of a call is no event
			fresh[name] = true
		}
		c.newest = max(c.newest, entry.Score)
	}
	if c.done == nil || len(fresh) > 0 {
		maps.Copy(fresh, c.done)
		c.done = fresh
	}
	underWay := make(map[string]bool, len(leased.Val()))
	for _, name := range leased.Val() {
		underWay[name] = true
	}
	delivered := c.done
	return func(request Request) bool {
		var room eventKeyRoom
		key := request.appendEventKey(room[:0])
		return underWay[string(key)] || delivered[string(key)]
	}
}
