package throttle

import (
	"errors"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func TestLimiterDelays(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{RoomMax: 2})
	ask := func(id string, want store.DelayVerdict) {
		t.Helper()
		verdict, in, err := limiter.Delay(t.Context(), postponed(request(id, "a")))
		testkit.Check(t, err == nil && verdict == want && (want == store.ComesBack) == (in > 0),
			"%q: verdict %d in %v, %v, want %d", id, verdict, in, err, want)
	}
	redelivered := func(id string) store.Request {
		r := request(id, "a")
		r.MayWait, r.Again = true, true
		return r
	}
	wantPlanned := func(id string) {
		t.Helper()
		fresh := request("fresh", "b")
		got, err := limiter.Decide(t.Context(), []store.Request{redelivered(id), fresh})
		testkit.Check(t, err == nil && got[0].Verdict == store.Planned && got[0].Wait != 0 && got[1].Verdict != store.Planned,
			"%q: got %v, %v, want planned, and another verdict on another event", id, got, err)
	}
	ask("first", store.ComesBack)
	ask("second", store.ComesBack)
	ask("third", store.TooMany)
	wantPlanned("first")
	wantVerdicts(t, testkit.Must(limiter.Decide(t.Context(), []store.Request{redelivered("third")}))(t), store.Denied)
	limiter.lose()
	if verdict, _, err := limiter.Delay(t.Context(), postponed(request("fourth", "a"))); verdict != 0 || !errors.Is(err, script.ErrUnavailable) {
		t.Errorf("without Redis: verdict %d, %v", verdict, err)
	}
	_, err := limiter.Decide(t.Context(), []store.Request{redelivered("first")})
	testkit.Fails(t, "without Redis", err, script.ErrUnavailable)
	limiter.regain()
	wantPlanned("first")
	ask("first", store.ComesBack)
	ask("fourth", store.TooMany)
}

// TestPlansThatCannotBeRead defers redelivered events whose plans nobody knows. Other events of the batch are decided.
func TestPlansThatCannotBeRead(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Local, Grace: time.Nanosecond})
	decide := func() {
		t.Helper()
		again := request("again", "a")
		again.MayWait, again.Again = true, true
		answers, err := limiter.Decide(t.Context(), []store.Request{again, request("fresh", "b")})
		testkit.NoError(t, err)
		wantVerdicts(t, answers, store.Deferred, store.Admitted)
		testkit.Fails(t, "reason", answers[0].Err, nil)
	}
	limiter.server.CLI("SET", limiterKey("room:a"), "text")
	decide()
	limiter.loseAndAct()
	decide()
}
