package throttle

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestLimiterPairs resolves pairs before, during and after an outage.
func TestLimiterPairs(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Local, Settings: store.Settings{Lease: time.Hour, PairTTL: testPairTTL}})
	about := func(id, key string) store.Request { return ofPair(key, request(id, "a")) }
	limiter.one(store.Admitted, about("firing", "disk")).Finish(t.Context(), "r")
	limiter.resolve(store.Unpaired, "", about("other", "net"))
	resolved := limiter.resolve(store.Admitted, "r", about("resolved", "disk"))
	testkit.Equal(t, resolved.Extend(t.Context()), true, "the lease of a resolved event is extended")
	resolved.Release(t.Context(), false)
	resolved = limiter.resolve(store.Reclaimed, "r", about("resolved", "disk"))
	resolved.Refund(t.Context())
	resolved = limiter.resolve(store.Reclaimed, "r", about("resolved", "disk"))
	limiter.metrics.wantRefunded(t, 0)
	limiter.metrics.wantDecisions(t, map[string]int{"admitted by redis": 2, "unpaired by redis": 1, "reclaimed by redis": 2})
	underWay := limiter.one(store.Admitted, about("under way", "memory"))
	limiter.resolve(store.Leased, "", about("resolved too", "memory"))

	limiter.loseAndAct()
	answers := testkit.Must(limiter.Decide(t.Context(), resolving(about("resolved too", "memory"), about("resolved", "disk"))))(t)
	for _, answer := range answers {
		testkit.Check(t, errors.Is(answer.Err, script.ErrUnavailable) && answer.Verdict == store.Deferred && answer.Grant == nil,
			"while the policy acts: got %+v, want %s because of %v", answer, store.Deferred, script.ErrUnavailable)
	}
	resolved.Finish(t.Context(), "")
	underWay.Finish(t.Context(), "m")
	limiter.one(store.Admitted, about("local", "net")).Finish(t.Context(), "n")
	going := limiter.one(store.Admitted, about("still under way", "fan"))

	limiter.regain()
	limiter.resolve(store.Done, "", about("resolved", "disk"))
	limiter.resolve(store.Admitted, "m", about("resolved too", "memory")).Finish(t.Context(), "")
	limiter.resolve(store.Admitted, "n", about("other", "net")).Finish(t.Context(), "")
	limiter.resolve(store.Leased, "", about("last", "fan"))
	going.Finish(t.Context(), "f")
	limiter.resolve(store.Admitted, "f", about("last", "fan"))
	limiter.decide()
}

// resolving makes events resolve their pairs.
func resolving(requests ...store.Request) []store.Request {
	for i := range requests {
		requests[i].Resolves = true
	}
	return requests
}

func (k *limiterKit) resolve(want store.Verdict, opened string, r store.Request) store.Grant {
	k.t.Helper()
	answers := testkit.Must(k.Decide(k.t.Context(), resolving(r)))(k.t)
	answer := answers[0]
	granted := want == store.Admitted || want == store.Reclaimed
	testkit.Require(k.t, answer.Verdict == want && answer.Opened() == opened && answer.Err == nil && granted == (answer.Grant != nil),
		"%q: %+v, want verdict %d with receipt %q", r.ID, answer, want, opened)
	return answer.Grant
}

// TestLimiterPairsOfTheWrongType gives the pairs of one first-level category a wrong type. Only events that resolve them are deferred.
func TestLimiterPairsOfTheWrongType(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{PairTTL: testPairTTL}})
	client := newClient(t, redis.Options{Addr: limiter.server.Addr})
	client.Set(t.Context(), limiterKey("pairs:a"), "text", 0)
	firing := limiter.one(store.Admitted, aboutDisk("firing"))
	neighbour := func(id string) store.Request { return ofPair("disk", request(id, "b.c")) }
	limiter.one(store.Admitted, neighbour("firing too")).Finish(t.Context(), "n")
	for round, want := range []store.Verdict{store.Admitted, store.Leased} {
		answers, err := limiter.Decide(t.Context(), resolving(aboutDisk("resolved"), neighbour("resolved too"), aboutDisk("resolved later")))
		if err != nil || !errors.Is(answers[0].Err, script.ErrRefused) || !errors.Is(answers[2].Err, script.ErrRefused) || answers[1].Verdict != want {
			t.Fatalf("round %d: got %+v, error %v, want events of the pairs refused, and %s", round, answers, err, want)
		}
	}
	limiter.one(store.Admitted, request("other", "a"))
	client.Del(t.Context(), limiterKey("pairs:a"))
	firing.Finish(t.Context(), "r")
	testkit.Eventually(t, "the pairs to be asked about again", func() bool {
		_, refused := limiter.asker.refused.Get(pairsOf(aboutDisk("resolved")))
		return !refused
	})
	limiter.resolve(store.Admitted, "r", aboutDisk("resolved"))
	limiter.logs.Want(t, "event cannot be evaluated")
}
