package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Stays has each place of the events that wait, and none of the events that came back.
func TestStays(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	r := newRedis(client, "stays", scriptSettings(t))
	before, waiting := time.Now(), []Stay{{First: "a", Member: "large", Weight: 3, For: time.Hour}}
	for i := range staysAtOnce {
		waiting = append(waiting, Stay{First: "a", Member: fmt.Sprint(i), Weight: 1, For: time.Hour})
	}
	others := []Stay{{First: "a", Member: "back", Weight: 1, For: time.Microsecond}, {First: "a bodies", Member: "body", Weight: 1, For: time.Hour}}
	testkit.Must(r.Queues.EnterRoom(t.Context(), append(others, waiting...), 2*staysAtOnce))(t)
	ends := testkit.Must(r.Queues.Stays(t.Context(), "a"))(t)
	testkit.Equal(t, len(ends), staysAtOnce+3, "places")
	for _, stay := range waiting {
		for _, unit := range stay.Units() {
			unit.For = 0
			if end := ends[unit]; end.Before(before.Add(59*time.Minute)) || end.After(time.Now().Add(61*time.Minute)) {
				t.Fatalf("place %q: got the end %v, want one in an hour", unit.Member, end)
			}
		}
	}
	large := waiting[0].Units()
	for i := range large {
		large[i].For = 0
	}
	testkit.Must(r.Queues.EnterRoom(t.Context(), large, 1))(t)
	testkit.Equal(t, len(testkit.Must(r.Queues.Stays(t.Context(), "a"))(t)), staysAtOnce, "places after the large event has left")
}

// One instance has a task in a period.
func TestClaim(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	r := newRedis(client, "recount", scriptSettings(t))
	for i, want := range []bool{true, false} {
		testkit.Equal(t, testkit.Must(r.Queues.Claim(t.Context(), Recount, time.Hour))(t), want, "claim %d", i)
	}
	testkit.NoError(t, client.PExpire(t.Context(), r.d.keys.key("recount"), 0).Err())
	testkit.Equal(t, testkit.Must(r.Queues.Claim(t.Context(), Recount, time.Hour))(t), true, "claim in the next period")
}

// The client repeats a claim whose reply was lost.
func TestClaimWithALostReply(t *testing.T) {
	t.Parallel()
	proxy := servertest.StartProxy(t, servertest.StartRedis(t).Addr)
	r := newRedis(scripttest.NewClient(t, redis.Options{Addr: proxy.Addr}), "claims", scriptSettings(t))
	lost := proxy.CutAfterRequest("overdue")
	claimed := testkit.Must(r.Queues.Claim(t.Context(), Overdue, time.Hour))(t)
	<-lost
	testkit.Equal(t, claimed, true, "claim whose reply was lost")
}
