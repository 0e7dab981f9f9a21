package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// spare is SPARE of the scripts.
const spare = 500

// tail is how many old members a test plants in a set.
const tail = 20_000

// TestTailsDoNotCount decides with logs that hold many members outside of their windows, as one batch and one by one. Decisions are
// exact, and each call removes a piece of the tail.
func TestTailsDoNotCount(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	for name, cost := range map[string]int{"as one": 1, "one by one": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRedis(client, name, Settings{Tree: newTree(t, "512/1h", "600/1m", ""), Lease: testLease, Retention: testRetention})
			clock := withFakeTime(t, r)
			if name == "as one" {
				r.evaluateAsOne()
			}
			logs := []string{r.d.keys.key("log"), r.d.keys.key("log:a")}
			long := clock.Read().Add(-2 * time.Hour).UnixMicro()
			for _, key := range logs {
				scripttest.Plant(t, client, key, "planted-", tail, long)
			}
			left := map[string]int{logs[0]: tail, logs[1]: tail}
			events := MaxBatch / cost
			for call := range 2 {
				wantAdmitted(t, r, withCosts(cost, several(events, fmt.Sprint("e", call, "-"), "a"))...)
				removed := 0
				for _, key := range logs {
					now := scripttest.Planted(t, client, key, "planted-")
					testkit.AtMost(t, now, left[key]-2*MaxBatch, "call %d: members of %s, which had %d", call, key, left[key])
					removed, left[key] = removed+left[key]-now, now
				}
				testkit.AtMost(t, removed, 2*2*MaxBatch+spare, "members that call %d removed", call)
				clock.Advance(time.Second)
			}
			// The old members do not change when the next slot opens.
			d := decisionsOf(t, r, request("more", "a").withCost(cost))[0]
			if d.Verdict != Denied || d.Node.Level != limits.LevelGlobal || d.Wait != time.Hour-2*time.Second {
				t.Errorf("one more: got %+v, want it denied by the global limit", d)
			}
		})
	}
}

func withCosts(cost int, requests []Request) []Request {
	for i := range requests {
		requests[i].Cost = cost
	}
	return requests
}

// TestCallsAheadAreTrimmedInPieces plants many calls of a clock that ran too far ahead.
func TestCallsAheadAreTrimmedInPieces(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	r := newRedis(client, "ahead", scriptSettings(t))
	scripttest.Plant(t, client, r.d.keys.calls, "planted-", 3*spare/2, time.Now().Add(time.Hour).UnixMicro())
	for i, want := range []int{spare / 2, 0, 0} {
		result := testkit.Must(r.Decide(t.Context(), []Request{request(fmt.Sprint("e", i), "a")}))(t)
		wantVerdicts(t, result.Decisions, Admitted)
		testkit.Equal(t, scripttest.Planted(t, client, r.d.keys.calls, "planted-"), want, "call %d leaves", i)
		testkit.AtMost(t, result.At, time.Now().Add(time.Minute).UnixMicro(), "time of call %d, in spite of a clock that ran ahead", i)
	}
}
