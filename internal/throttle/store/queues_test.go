package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
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

// Passed counts skipped messages between two positions once, also in a repeated call.
func TestPassed(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	r := newRedis(client, "passed", scriptSettings(t))
	for _, step := range []struct {
		name                 string
		nonce                int64
		sequence, deliveries uint64
		want                 int64
	}{
		{"the first position", 1, 100, 50, 0},
		{"each message delivered", 2, 110, 60, 0},
		{"seven skipped", 3, 120, 63, 7},
		{"the same call again", 3, 120, 63, 7},
		{"the same position of another instance", 4, 120, 63, 0},
		{"the call of seven once more", 3, 125, 68, 7},
		{"a position before that", 5, 115, 62, 0},
		{"redeliveries hide what was skipped", 6, 125, 75, 0},
		{"four skipped", 7, 130, 76, 4},
	} {
		got := testkit.Must(r.Queues.passedOnce(t.Context(), step.nonce, "consumer", step.sequence, step.deliveries))(t)
		testkit.Equal(t, got, step.want, "%s: messages skipped", step.name)
	}
	testkit.Equal(t, testkit.Must(r.Queues.Passed(t.Context(), "another", 5, 1))(t), 0, "messages of another consumer that vanished")
}

// TestPassedAfterLostReply loses the reply with the count. The next call returns the count.
func TestPassedAfterLostReply(t *testing.T) {
	t.Parallel()
	server, _ := startRedis(t)
	proxy := servertest.StartProxy(t, server.Addr)
	r := newRedis(scripttest.NewClient(t, redis.Options{Addr: proxy.Addr, MaxRetries: -1}), "lost", scriptSettings(t))
	passed := func(ctx context.Context, sequence uint64) (int64, error) {
		return r.Queues.Passed(ctx, "consumer", sequence, 50)
	}
	testkit.Must(passed(t.Context(), 100))(t)
	lost := proxy.CutAfterRequest("consumer")
	vanished, err := passed(t.Context(), 107)
	testkit.Require(t, err != nil, "the reply was not lost: %d", vanished)
	<-lost
	for _, want := range []int64{7, 0} {
		testkit.Equal(t, testkit.Must(passed(t.Context(), 107))(t), want, "messages that vanished")
	}
}

// TestPlans plans returns at times before now, because the look-up uses the server's own clock. One call looks up events of several rooms.
func TestPlans(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	k := newPairKit(t, newClient(t, redis.Options{Addr: server.Addr}), script.Eval)
	want := func(id string, planned bool, about time.Duration) {
		t.Helper()
		got, err := k.Queues.Plans(t.Context(), []Request{request("other", "b"), request(id, "a"), request("unknown", "a")})
		testkit.Require(t, err == nil && len(got) == 3, "%q: got %v, %v, want three answers", id, got, err)
		in := got[1].Wait
		testkit.Check(t, (got[1].Verdict == Planned) == planned && in <= about && in >= about-10*time.Minute && in >= 0,
			"%q: %s in %v, want planned %t in %v", id, got[1].Verdict, in, planned, about)
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
