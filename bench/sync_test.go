package bench

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// BenchmarkSyncInterval measures what nats-server's `sync_interval: always` costs a producer: how long each publish of a neighbour takes until it is
// acknowledged while another producer floods the stream, and how much of the flood the server stores.
func BenchmarkSyncInterval(b *testing.B) {
	const (
		lasts = 10 * time.Second
		gap   = 20 * time.Millisecond
	)
	for _, setting := range []string{"2m", "always"} {
		b.Run(setting, func(b *testing.B) {
			a := newArenaWith(b, "jetstream { sync_interval: "+setting+" }\n")
			a.start(notifier.limited(100, 10))
			ctx, cancel := context.WithTimeout(b.Context(), lasts)
			defer cancel()
			var stored atomic.Int64
			flooded := make(chan struct{})
			go func() {
				defer close(flooded)
				for i := 0; ctx.Err() == nil; i++ {
					_, _ = a.js.PublishAsync(subject+".flood", eventBody(i))
					if i%1000 == 999 {
						<-a.js.PublishAsyncComplete()
						stored.Add(1000)
					}
				}
				<-a.js.PublishAsyncComplete()
			}()
			var took []time.Duration
			for ticker := time.NewTicker(gap); ctx.Err() == nil; <-ticker.C {
				asked := time.Now()
				testkit.Must(a.js.Publish(b.Context(), subject+".neighbour", eventBody(0)))(b)
				took = append(took, time.Since(asked))
			}
			<-flooded
			slices.Sort(took)
			conclude("sync_interval %s: in a flood of %d events/s a neighbour's publish takes %v (p50), %v (p99), %v (slowest)", setting,
				stored.Load()/int64(lasts.Seconds()), percentile(took, 50), percentile(took, 99), percentile(took, 100))
			once(b)
		})
	}
}
