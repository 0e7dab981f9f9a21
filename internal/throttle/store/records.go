package store

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

// Records is a copy of the names in the delivery record. A worker uses it to check whether a message may be a redelivery: in a
// flood, asking Redis about each message would cost more than all the rest.
type Records struct {
	mu     sync.Mutex
	done   map[string]bool // delivered events, with those that Redis has forgotten
	newest float64         // of their times
}

// Recorded reports whether the delivery record held an event when it was copied.
type Recorded func(Request) bool

// Copy returns what the delivery record holds now; nil if the record cannot be read or is too long.
func (c *Records) Copy(ctx context.Context, r *Redis) Recorded {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := "-inf"
	if c.done != nil {
		from = strconv.FormatFloat(c.newest-doneOverlap, 'f', 0, 64)
	}
	mostDone := mostDoneCopied - len(c.done)
	// A record that is too long for a copy is only counted.
	leasedCount, doneCount, err := r.countRecords(ctx, from)
	if err != nil {
		return nil
	}
	if leasedCount > mostLeasedCopied || doneCount > int64(mostDone) {
		c.done, c.newest = nil, 0
		return nil
	}
	leased, done, err := r.readRecords(ctx, from, mostDone)
	if err != nil || len(leased) > mostLeasedCopied || len(done) > mostDone {
		return nil
	}
	// Callers read their copy without the lock, so new names go into another copy.
	fresh := make(map[string]bool)
	for _, entry := range done {
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
	underWay := make(map[string]bool, len(leased))
	for _, name := range leased {
		underWay[name] = true
	}
	delivered := c.done
	return func(request Request) bool {
		var room eventKeyRoom
		key := request.appendEventKey(room[:0])
		return underWay[string(key)] || delivered[string(key)]
	}
}

// countRecords counts the events under way, and those that were delivered since a time.
func (r *Readings) countRecords(ctx context.Context, since string) (leased, done int64, err error) {
	err = r.runner.Read(ctx, "counting the records", func(ctx context.Context, client redis.Cmdable) error {
		pipe := client.Pipeline()
		leasedCount, doneCount := pipe.ZCard(ctx, r.keys.leased), pipe.ZCount(ctx, r.keys.done, since, "+inf")
		_, err := pipe.Exec(ctx)
		leased, done = leasedCount.Val(), doneCount.Val()
		return err
	})
	return leased, done, err
}

// readRecords reads one event more than may be copied, as their number may have grown since they were counted.
func (r *Readings) readRecords(ctx context.Context, since string, mostDone int) (leased []string, done []redis.Z, err error) {
	err = r.runner.Read(ctx, "copying the records", func(ctx context.Context, client redis.Cmdable) error {
		pipe := client.Pipeline()
		leasedNames := pipe.ZRange(ctx, r.keys.leased, 0, mostLeasedCopied)
		doneNames := pipe.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: r.keys.done, ByScore: true, Start: since, Stop: "+inf", Count: int64(mostDone) + 1,
		})
		_, err := pipe.Exec(ctx)
		leased, done = leasedNames.Val(), doneNames.Val()
		return err
	})
	return leased, done, err
}
