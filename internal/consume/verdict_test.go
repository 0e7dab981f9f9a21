package consume

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Whatever the throttle says, the worker knows what to do: an event ends, and its element of the pool is free again.
func TestEveryVerdict(t *testing.T) {
	t.Parallel()
	wants := map[throttle.Verdict]string{
		throttle.Admitted: "sent", throttle.Denied: "dropped", throttle.ExceedsCapacity: "dropped", throttle.Reclaimed: "sent",
		throttle.Leased: "sent", throttle.Done: "", throttle.Duplicate: "duplicate", throttle.Unknown: "expired",
		throttle.Unpaired: "dropped", throttle.Deferred: "sent",
	}
	for _, verdict := range throttle.Verdicts() {
		t.Run(verdict.String(), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var asked atomic.Int64
			f.throttle.answers(func(r throttle.Request) throttle.Decision {
				turn := asked.Add(1)
				d := throttle.Decision{Verdict: verdict, Node: limits.Node{Level: "the rule"}, Wait: 10 * time.Millisecond}
				switch {
				case verdict == throttle.Leased && turn > 1, verdict == throttle.Deferred && turn > 1:
					return f.throttle.admit(r)
				case verdict == throttle.Admitted, verdict == throttle.Reclaimed:
					d.Node, d.Grant = limits.Node{}, f.throttle.grant(r)
				}
				return d
			})
			w := f.start(nil)
			f.event("payments", "order-1")
			if want, known := wants[verdict]; want != "" {
				f.eventually("it ends", func() bool { return f.metrics.ended() == 1 })
				f.requireOutcomes(map[string]int{want + " payments": 1})
			} else if !known {
				t.Fatal("what is to become of it?")
			}
			f.eventually("its element of the pool is free", func() bool { return asked.Load() > 0 && len(w.pool) == 0 })
			f.requireEmpty()
			f.requireRoomEmpty()
		})
	}
}
