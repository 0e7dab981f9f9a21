package throttle

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// TestPlanned plans returns at times before now, because Planned uses the server's own clock.
func TestPlanned(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	k := newPairKit(t, newClient(t, redis.Options{Addr: server.Addr}), script.Eval)
	want := func(id string, planned bool, about time.Duration) {
		t.Helper()
		in, got, err := k.Planned(t.Context(), request(id, "a"))
		if err != nil || got != planned || in > about || in < about-10*time.Minute || in < 0 {
			t.Errorf("%q: %v, %v, %v, want %v, %v", id, in, got, err, about, planned)
		}
	}
	want("unknown", false, 0)
	for i, ago := range []time.Duration{3 * time.Hour, time.Hour, 10 * time.Minute, 0} { // each returns 20 minutes later
		k.clock.Set(time.Now().Add(-ago))
		k.delay(postponed(request(fmt.Sprint("e", i), "a")), mostDelayed, ComesBack)
	}
	want("e0", false, 0)
	want("e1", true, 0)
	want("e2", true, 11*time.Minute)
	want("e3", true, 21*time.Minute)
	want("unknown", false, 0)

	server.CLI("SET", k.keys.room("a"), "text")
	if _, planned, err := k.Planned(t.Context(), request("e1", "a")); planned || !errors.Is(err, script.ErrRefused) {
		t.Errorf("of a key of the wrong type: %v, %v", planned, err)
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
	wantPlanned := func(id string, want bool) {
		t.Helper()
		if in, planned, err := limiter.Planned(t.Context(), request(id, "a")); err != nil || planned != want || want != (in > 0) {
			t.Errorf("%q is planned: %v, %t, %v", id, in, planned, err)
		}
	}
	ask("first", ComesBack)
	ask("second", ComesBack)
	ask("third", TooMany)
	wantPlanned("first", true)
	wantPlanned("third", false)
	limiter.lose()
	if verdict, _, err := limiter.Delay(t.Context(), postponed(request("fourth", "a"))); verdict != 0 || !errors.Is(err, script.ErrUnavailable) {
		t.Errorf("without Redis: verdict %d, %v", verdict, err)
	}
	if _, planned, err := limiter.Planned(t.Context(), request("first", "a")); planned || !errors.Is(err, script.ErrUnavailable) {
		t.Errorf("without Redis it is planned: %t, %v", planned, err)
	}
	limiter.regain()
	wantPlanned("first", true)
	ask("first", ComesBack)
	ask("fourth", TooMany)
}
