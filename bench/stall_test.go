package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// expired is how many members that count no more stand in each set of BenchmarkStall.
const expired = 1_000_000

// BenchmarkStall measures the longest script call, in which the server does nothing else, beside two logs and a delivery record of
// a million expired members each: the processor time that Redis takes for it, which nothing else on the machine adds to.
func BenchmarkStall(b *testing.B) {
	ctx := context.Background()
	client := newClient(b)
	for _, key := range []string{"log", "log:category0", "calls", "done", "leased"} {
		scripttest.Plant(b, client, "{notifier}:"+key, "NOTIFICATIONS:", expired, 1) // what has left every window
	}
	limiter := newLimiter(client, settingsOf(b, "100000/30m", "100000/30m", nil))
	longest, longestOf, calls := time.Duration(0), "", 0
	measure := func(name string, call func()) {
		before := processorTime(b, client)
		call()
		if took := processorTime(b, client) - before; took > longest {
			longest, longestOf = took, name
		}
	}
	for b.Loop() {
		for _, size := range []int{1, 64, store.MaxBatch} {
			for _, cost := range []int{1, 2} { // as one batch, and one by one
				calls++
				asked := make([]store.Request, size)
				for i := range asked {
					asked[i] = store.Request{ID: fmt.Sprintf("%d-%d", calls, i), Category: "category0", Cost: cost}
				}
				var result store.BatchResult
				measure("decide", func() { result = must(limiter.Decide(ctx, asked)) })
				leases := make([]store.Lease, size)
				for i, d := range result.Decisions {
					if leases[i] = d.Lease; d.Verdict != store.Admitted {
						b.Fatalf("%+v", d)
					}
				}
				half := (size + 1) / 2
				measure("refund", func() { must(limiter.Refund(ctx, leases[:half])) })
				measure("finish", func() {
					if _, err := limiter.Finish(ctx, leases[half:]); err != nil {
						b.Fatal(err)
					}
				})
			}
		}
	}
	left := must(client.ZCard(ctx, "{notifier}:log").Result())
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest")
	b.ReportMetric(0, "ns/op")
	conclude("longest script call beside sets of %d expired members: %.1f ms (%s; the bar is 10 ms); %d are left in the global log after %d rounds",
		expired, float64(longest.Microseconds())/1000, longestOf, left, calls)
}

// processorTime is what the server has taken so far.
func processorTime(b *testing.B, client *redis.Client) (sum time.Duration) {
	b.Helper()
	for line := range strings.Lines(must(client.Info(context.Background(), "cpu").Result())) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			sum += time.Duration(must(strconv.ParseFloat(value, 64)) * float64(time.Second))
		}
	}
	return sum
}
