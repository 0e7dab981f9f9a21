package throttle

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// TestPlans plans returns at times before now, because the look-up uses the server's own clock. One call looks up events of several rooms.
func TestPlans(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	k := newPairKit(t, newClient(t, redis.Options{Addr: server.Addr}), script.Eval)
	want := func(id string, planned bool, about time.Duration) {
		t.Helper()
		got, err := k.plans(t.Context(), []Request{request("other", "b"), request(id, "a"), request("unknown", "a")})
		if err != nil || len(got) != 3 {
			t.Fatalf("%q: got %v, %v, want three answers", id, got, err)
		}
		in := got[1].Wait
		if (got[1].Verdict == Planned) != planned || in > about || in < about-10*time.Minute || in < 0 {
			t.Errorf("%q: %s in %v, want planned %t in %v", id, got[1].Verdict, in, planned, about)
		}
		if got[0].Verdict != 0 || got[2].Verdict != 0 {
			t.Errorf("other events: got %s and %s, want no plans", got[0].Verdict, got[2].Verdict)
		}
	}
	want("e0", false, 0)
	for i, ago := range []time.Duration{3 * time.Hour, time.Hour, 10 * time.Minute, 0} { // each returns 20 minutes later
		k.clock.Set(time.Now().Add(-ago))
		k.delay(postponed(request(fmt.Sprint("e", i), "a")), mostDelayed, ComesBack)
	}
	want("e0", false, 0)
	want("e1", true, 0)
	want("e2", true, 11*time.Minute)
	want("e3", true, 21*time.Minute)

	server.CLI("SET", k.keys.room("a"), "text")
	if _, err := k.plans(t.Context(), []Request{request("e1", "a")}); !errors.Is(err, script.ErrRefused) {
		t.Errorf("of a key of the wrong type: %v", err)
	}
}

func TestLimiterDelays(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{RoomMax: 2})
	ask := func(id string, want DelayVerdict) {
		t.Helper()
		verdict, in, err := limiter.Delay(t.Context(), postponed(request(id, "a")))
		if err != nil || verdict != want || (want == ComesBack) != (in > 0) {
			t.Errorf("%q: verdict %d in %v, %v, want %d", id, verdict, in, err, want)
		}
	}
	redelivered := func(id string) Request {
		r := request(id, "a")
		r.MayWait, r.Again = true, true
		return r
	}
	wantPlanned := func(id string) {
		t.Helper()
		fresh := request("fresh", "b")
		got, err := limiter.Decide(t.Context(), []Request{redelivered(id), fresh})
		if err != nil || got[0].Verdict != Planned || got[0].Wait == 0 || got[1].Verdict == Planned {
			t.Errorf("%q: got %v, %v, want planned, and another verdict on another event", id, got, err)
		}
	}
	ask("first", ComesBack)
	ask("second", ComesBack)
	ask("third", TooMany)
	wantPlanned("first")
	wantVerdicts(t, testkit.Must(limiter.Decide(t.Context(), []Request{redelivered("third")}))(t), Denied)
	limiter.lose()
	if verdict, _, err := limiter.Delay(t.Context(), postponed(request("fourth", "a"))); verdict != 0 || !errors.Is(err, script.ErrUnavailable) {
		t.Errorf("without Redis: verdict %d, %v", verdict, err)
	}
	if answers, err := limiter.Decide(t.Context(), []Request{redelivered("first")}); !errors.Is(err, script.ErrUnavailable) {
		t.Errorf("without Redis: got %v, %v, want no decision", answers, err)
	}
	limiter.regain()
	wantPlanned("first")
	ask("first", ComesBack)
	ask("fourth", TooMany)
}

// TestPlansThatCannotBeRead defers redelivered events whose plans nobody knows. Other events of the batch are decided.
func TestPlansThatCannotBeRead(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Local, Grace: time.Nanosecond})
	decide := func() {
		t.Helper()
		again := request("again", "a")
		again.MayWait, again.Again = true, true
		answers, err := limiter.Decide(t.Context(), []Request{again, request("fresh", "b")})
		testkit.NoError(t, err)
		wantVerdicts(t, answers, Deferred, Admitted)
		if answers[0].Err == nil {
			t.Error("reason: got none, want one")
		}
	}
	limiter.server.CLI("SET", limiter.o.Redis.keys.room("a"), "text")
	decide()
	limiter.loseAndAct()
	decide()
}
