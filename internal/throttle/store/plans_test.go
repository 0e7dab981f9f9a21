package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestPlans plans returns at times before now, because the look-up uses the server's own clock. One call looks up events of several rooms.
func TestPlans(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	k := newPairKit(t, newClient(t, redis.Options{Addr: server.Addr}), script.Eval)
	want := func(id string, planned bool, about time.Duration) {
		t.Helper()
		got, err := k.Queues.Plans(t.Context(), []Request{request("other", "b"), request(id, "a"), request("unknown", "a")})
		if err != nil || len(got) != 3 {
			t.Fatalf("%q: got %v, %v, want three answers", id, got, err)
		}
		in := got[1].Wait
		if (got[1].Verdict == Planned) != planned || in > about || in < about-10*time.Minute || in < 0 {
			t.Errorf("%q: %s in %v, want planned %t in %v", id, got[1].Verdict, in, planned, about)
		}
		testkit.Equal(t, got[0].Verdict, 0, "verdict of another event")
		testkit.Equal(t, got[2].Verdict, 0, "verdict of a third event")
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

	server.CLI("SET", k.d.keys.room("a"), "text")
	_, err := k.Queues.Plans(t.Context(), []Request{request("e1", "a")})
	testkit.Fails(t, "of a key of the wrong type", err, script.ErrRefused)
}
