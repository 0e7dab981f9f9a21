package throttle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/lua"
)

// spare is SPARE of the scripts.
const spare = 500

// tail is how many members a test leaves in a set that have left it long ago.
const tail = 20_000

// plant adds members to a sorted set that score a microsecond more than each other.
func plant(t testing.TB, client redis.UniversalClient, key, prefix string, count int, first int64) {
	t.Helper()
	for from := 0; from < count; from += 10_000 {
		pipe := client.Pipeline()
		for i := from; i < min(from+10_000, count); i += 500 {
			members := make([]redis.Z, 0, 500)
			for j := i; j < min(i+500, count); j++ {
				members = append(members, redis.Z{Score: float64(first + int64(j)), Member: fmt.Sprintf("%s%d", prefix, j)})
			}
			pipe.ZAdd(context.Background(), key, members...)
		}
		pipe.Expire(context.Background(), key, 24*time.Hour)
		if _, err := pipe.Exec(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// planted counts the members that are left of those.
func planted(t testing.TB, client redis.UniversalClient, key, prefix string) (count int) {
	t.Helper()
	members, err := client.ZRange(context.Background(), key, 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range members {
		if strings.HasPrefix(member, prefix) {
			count++
		}
	}
	return count
}

// trimmedByOthers tells of keys that are no sorted sets, or are trimmed by the members of others.
func trimmedByOthers(kind string) bool {
	return kind == "message" || slices.ContainsFunc([]string{"drops:due", "drops:counts:", "drops:top:", "pairs:", "mention:"}, func(start string) bool {
		return strings.HasPrefix(kind, start)
	})
}

// TestEveryScriptTrimsInPieces gives every sorted set of a deployment a long tail of what counts no more. No call of any script
// removes more than a piece of it, and each that trims at all goes on until nothing is left.
func TestEveryScriptTrimsInPieces(t *testing.T) {
	t.Parallel()
	const added = 16 // no operation adds more
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	for _, o := range slices.Concat(operations, timelyOperations) {
		if len(o.writes) == 0 || o.name == "mention" {
			continue
		}
		t.Run(o.name, func(t *testing.T) {
			client.FlushDB(t.Context())
			r := newRedis(client, "trim", scriptSettings(t))
			lease := seed(t, r)
			var sets []string
			for _, kind := range o.touches {
				if !trimmedByOthers(kind) {
					key := "{trim}:" + kind
					plant(t, client, key, "planted-", tail, 1)
					sets = append(sets, key)
				}
			}
			if err := o.call(t.Context(), r, lease); err != nil {
				t.Fatal(err)
			}
			removed := 0
			for _, key := range sets {
				removed += tail - planted(t, client, key, "planted-")
			}
			trims := slices.Contains(o.writes, "zremrangebyrank")
			if trims && removed == 0 || removed > 2*spare+2*added*len(sets) {
				t.Errorf("%d of %d in each of %d sets were removed", removed, tail, len(sets))
			}
		})
	}
}

// TestTailsDoNotCount decides beside logs that hold much more of what has left their windows than there is room for, as one batch
// and one by one: everything that fits is admitted, exactly, and the tails grow shorter with each call.
func TestTailsDoNotCount(t *testing.T) {
	t.Parallel()
	client := newClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	for name, cost := range map[string]int{"wholesale": 1, "judged": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRedis(client, name, Settings{Tree: newTree(t, "512/1h", "600/1m", ""), Lease: testLease, Retention: testRetention})
			clock := withFakeTime(t, r)
			if name == "wholesale" {
				source := r.source
				r.source = func(script lua.Script, algorithms []string) string {
					return strings.Replace(source(script, algorithms), "-- What is asked of which limits.", "error('not judged as one')", 1)
				}
				r.inUse.Store(nil)
				r.Adopt(*r.settings.rules())
			}
			logs := []string{r.keys.meter("log"), r.keys.meter("log:a")}
			long := clock.read().Add(-2 * time.Hour).UnixMicro()
			for _, key := range logs {
				plant(t, client, key, "planted-", tail, long)
			}
			left := map[string]int{logs[0]: tail, logs[1]: tail}
			events := MaxBatch / cost
			for call := range 2 {
				ruling, err := r.Decide(t.Context(), withCosts(cost, several(events, fmt.Sprint("e", call, "-"), "a")))
				if err != nil {
					t.Fatal(err)
				}
				for i, d := range ruling.Decisions {
					if d.Verdict != Admitted {
						t.Fatalf("call %d, event %d: %+v", call, i, d)
					}
				}
				removed := 0
				for _, key := range logs {
					now := planted(t, client, key, "planted-")
					if now > left[key]-2*MaxBatch {
						t.Errorf("call %d: %s shrank from %d to %d, while %d were added", call, key, left[key], now, MaxBatch)
					}
					removed, left[key] = removed+left[key]-now, now
				}
				if removed > 2*2*MaxBatch+spare {
					t.Errorf("call %d removed %d", call, removed)
				}
				clock.advance(time.Second)
			}
			// The logs say when the next slot opens, whatever lies before their windows.
			ruling, err := r.Decide(t.Context(), withCosts(cost, several(1, "more", "a")))
			if err != nil || ruling.Decisions[0].Verdict != Denied || ruling.Decisions[0].Node.Level != LevelGlobal ||
				ruling.Decisions[0].Wait != time.Hour-2*time.Second {
				t.Errorf("one more: %+v, %v", ruling.Decisions, err)
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

// TestCallsAheadAreTrimmedInPieces has many calls by a clock that had run too far ahead.
func TestCallsAheadAreTrimmedInPieces(t *testing.T) {
	t.Parallel()
	client := newClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	r := newRedis(client, "ahead", scriptSettings(t))
	plant(t, client, r.keys.calls, "planted-", 3*spare/2, time.Now().Add(time.Hour).UnixMicro())
	for i, want := range []int{spare / 2, 0, 0} {
		ruling, err := r.Decide(t.Context(), []Request{request(fmt.Sprint("e", i), "a")})
		if err != nil || ruling.Decisions[0].Verdict != Admitted {
			t.Fatalf("%+v, %v", ruling, err)
		}
		if left := planted(t, client, r.keys.calls, "planted-"); left != want {
			t.Errorf("call %d leaves %d, want %d", i, left, want)
		}
		if ruling.At > time.Now().Add(time.Minute).UnixMicro() {
			t.Errorf("call %d was made at the time of a clock that ran ahead", i)
		}
	}
}
