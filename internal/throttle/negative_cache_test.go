package throttle

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func scriptCalls(t *testing.T, server *servertest.Redis) int {
	t.Helper()
	found := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`).FindStringSubmatch(server.CLI("INFO", "commandstats"))
	if found == nil {
		return 0
	}
	return testkit.Must(strconv.Atoi(found[1]))(t)
}

// TestLimiterAsksOnceAboutWhatIsBroken decides batches with a category whose log Redis refuses.
func TestLimiterAsksOnceAboutWhatIsBroken(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "100000/1h", "")}})
	limiter.server.CLI("SET", "{limiter}:log:bad", "a string")
	const rounds = 40
	ask := func(round int) {
		t.Helper()
		batch := append(several(store.MaxBatch-6, fmt.Sprint("bad", round, "-"), "bad"), several(6, fmt.Sprint("good", round, "-"), "good")...)
		for i, answer := range limiter.decide(batch...) {
			if bad := batch[i].Category == "bad"; bad != errors.Is(answer.Err, script.ErrRefused) || bad == (answer.Verdict == store.Admitted) {
				t.Fatalf("round %d: %q: got %+v, want it refused: %t", round, batch[i].ID, answer, bad)
			}
		}
	}
	ask(0)
	asked := time.Now()
	before := scriptCalls(t, limiter.server)
	for round := range rounds {
		ask(1 + round)
	}
	// A new attempt asks for the whole batch, and then for each category.
	most := 2*rounds + int(time.Since(asked)/refusedFor+1)*80
	testkit.AtMost(t, scriptCalls(t, limiter.server)-before, most, "script calls for %d batches", rounds)
	limiter.server.CLI("DEL", "{limiter}:log:bad")
	testkit.Eventually(t, "the category to be asked about again", func() bool {
		return limiter.decide(request("mended", "bad"))[0].Err == nil
	})
}

// TestLimiterDisclaims fails while a refused batch is asked in parts. The admitted part is reclaimed later, without doubt.
func TestLimiterDisclaims(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := newLimiterKit(t, server.Addr, LimiterOptions{})
	limiter.recovery.reach(t.Context())
	requests := []store.Request{request("e", "a"), request("f", "b")}
	calls := 0
	_, err := limiter.asker.askEach(t.Context(), requests, logsOf, func(ctx context.Context, nonce string, group []store.Request) ([]store.Decision, error) {
		if calls++; calls == 2 {
			return nil, errors.New("no answer")
		}
		return limiter.asker.askOnce(ctx, nonce, group)
	}, script.ErrRefused)
	testkit.Fails(t, "error", err, script.ErrUnavailable)
	limiter.recovery.reach(t.Context())
	if answer := limiter.decide(request("e", "a"))[0]; answer.Verdict != store.Reclaimed || answer.InDoubt {
		t.Errorf("got %+v, want %s without doubt", answer, store.Reclaimed)
	}
}

func TestUnpaired(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	u := newUnpaired(time.Hour, clock.Read)
	l := &Limiter{unpaired: u}
	want := func(pair string, want bool) {
		t.Helper()
		testkit.Equal(t, l.KnownUnpaired(pair, before), want, "%q is known not to be open", pair)
	}
	firing := ofPair("fires", request("firing", "a"))
	want(firing.Pair, false)
	l.LearnUnpaired(firing.Pair, after)
	l.LearnUnpaired("other", after)
	l.LearnUnpaired("", after)
	want("", false)
	clock.Advance(unpairedFor - time.Nanosecond)
	want(firing.Pair, true)
	want("other", true)
	u.see([]store.Request{costing(0, firing), request("no pair", "a")})
	want(firing.Pair, true) // a look is no firing event
	u.see([]store.Request{firing})
	want(firing.Pair, false)
	want("other", true)
	l.LearnUnpaired(firing.Pair, after) // found before the firing event
	want(firing.Pair, false)
	clock.Advance(time.Nanosecond)
	want("other", false)
	clock.Advance(unpairedFor)
	l.LearnUnpaired(firing.Pair, after)
	want(firing.Pair, true)
	u.pairs.Clear()
	want(firing.Pair, false)

	for i := range 2 * maxUnpaired {
		l.LearnUnpaired(fmt.Sprint(i), after)
	}
	testkit.Equal(t, u.pairs.Len(), maxUnpaired, "pairs that are remembered")

	short, off := &Limiter{unpaired: newUnpaired(time.Millisecond, clock.Read)}, &Limiter{unpaired: newUnpaired(0, clock.Read)}
	short.LearnUnpaired("pair", after)
	off.LearnUnpaired("pair", after)
	testkit.Equal(t, short.KnownUnpaired("pair", before), true, "it is known during the life of the deny cache")
	testkit.Equal(t, off.KnownUnpaired("pair", before), false, "it is known without a deny cache")
	clock.Advance(time.Millisecond)
	testkit.Equal(t, short.KnownUnpaired("pair", before), false, "it outlives the deny cache")
}

// A resolved event may be stored before the pair was found not to be open, or after.
var before, after = time.Unix(1000, 0), time.Unix(1001, 0)

// TestLimiterUnpaired forgets unpaired events after a firing event, and in an outage.
func TestLimiterUnpaired(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{DenyCacheTTL: time.Hour, Settings: store.Settings{PairTTL: testPairTTL}})
	pair := aboutDisk("any").Pair
	known := func() bool {
		limiter.LearnUnpaired(pair, after)
		return limiter.KnownUnpaired(pair, before)
	}
	testkit.Equal(t, known(), true, "it is known after it was learned")
	testkit.Equal(t, limiter.KnownUnpaired(pair, after), false, "an event is answered that was stored after the pair was asked about")
	limiter.resolve(store.Unpaired, "", aboutDisk("resolved"))
	testkit.Equal(t, known(), true, "it is known after a resolved event")
	limiter.one(store.Admitted, aboutDisk("firing"))
	testkit.Equal(t, limiter.KnownUnpaired(pair, before) || known(), false, "it is known right after a firing event was seen")
	limiter.LearnUnpaired("another", after)
	limiter.lose()
	testkit.Equal(t, limiter.KnownUnpaired("another", before), false, "it is known without Redis")
}
