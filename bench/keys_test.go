package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// BenchmarkKeys has a producer invent a million keys, as in a day, under payments@key=1/1d: what each key takes in Redis, and the longest script
// call, in processor time of the server. Batches of new keys are evaluated as one, batches with a full key event by event.
func BenchmarkKeys(b *testing.B) {
	const keys = 1_000_000
	if !once(b) {
		return
	}
	ctx, client := context.Background(), newClient(b)
	settings := settingsOf(b, "none", "none", nil)
	rules, _ := limits.ParseRules("payments@key=1/1d")
	settings.Tree = testkit.Must(limits.NewTree(limits.Plan{Rules: rules}))(b)
	limiter := newLimiter(client, settings)
	before, asked := usedMemory(b, client), time.Now()
	batch := make([]store.Request, 0, store.MaxBatch)
	longest, stored := time.Duration(0), time.Now()
	decide := func() {
		start := processorTime(b, client)
		must(limiter.Decide(ctx, batch))
		longest = max(longest, processorTime(b, client)-start)
		batch = batch[:0]
	}
	for n := range keys {
		batch = append(batch, store.Request{
			ID: stream + ":" + strconv.Itoa(n), Derived: true, Message: store.Message{Stream: stream, Sequence: uint64(n), Stored: stored},
			Category: "payments", Key: fmt.Sprintf("host-%07d", n), Cost: 1,
		})
		if len(batch) == store.MaxBatch-1 && n%2 == 0 { // every other batch has a full key
			full := batch[0]
			full.ID, full.Message.Sequence = "full:"+strconv.Itoa(n), uint64(keys+n)
			batch = append(batch, full)
		}
		if len(batch) >= store.MaxBatch {
			decide()
		}
	}
	decide()
	took := time.Since(asked)
	all := usedMemory(b, client) - before
	ofLog := must(client.MemoryUsage(ctx, "{notifier}:log:payments@"+limits.HashOfKey("host-0000007")).Result())
	left := must(client.DBSize(ctx).Result())
	conclude("a million keys: %d Redis keys, %d bytes for each log, %d bytes for each event with its delivery record", left, ofLog, all/keys)
	conclude("a million keys: the longest script call took %.1f ms (the bar is 10 ms), %.0f admissions/s", float64(longest.Microseconds())/1000, keys/took.Seconds())
}

func usedMemory(b *testing.B, client *redis.Client) int64 {
	b.Helper()
	for line := range strings.Lines(must(client.Info(context.Background(), "memory").Result())) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == "used_memory" {
			return must(strconv.ParseInt(value, 10, 64))
		}
	}
	b.Fatal("the server does not report its memory")
	return 0
}
