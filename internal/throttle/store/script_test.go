package store

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestLogMembers(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	settings := scriptSettings(t)
	settings.Tree = newTree(t, "100/1h", "100/1h", "a.b=100/1h")
	r := newRedis(client, "members", settings)
	clock := withFakeTime(t, r)
	again := derived(7, start.Add(time.Hour), scriptPath).withCost(2)
	wantAdmitted(t, r, request("one", scriptPath), request("three", scriptPath).withCost(3), derived(7, start, scriptPath).withCost(2))
	clock.Advance(time.Second)
	wantAdmitted(t, r, again, request("<http://source>/id", scriptPath))

	first, second := float64(start.UnixMicro()), float64(start.Add(time.Second).UnixMicro())
	version := strconv.FormatInt(again.Message.version(), 10)
	want := map[string]float64{
		"one":   first,
		"three": first, "three\n2": first, "three\n3": first,
		"EVENTS:7": first, "EVENTS:7\n2": first,
		"EVENTS:7\n" + version: second, "EVENTS:7\n" + version + "\n2": second,
		"<http://source>/id": second,
	}
	for _, log := range []string{"log", "log:a", "log:a.b"} {
		got := make(map[string]float64)
		for _, member := range client.ZRangeWithScores(t.Context(), "{members}:"+log, 0, -1).Val() {
			got[fmt.Sprint(member.Member)] = member.Score
		}
		testkit.EqualMaps(t, got, want, "%s holds", log)
	}
}

func TestDeniedEventsLeaveNoTrace(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	settings := scriptSettings(t)
	settings.Tree = newTree(t, "3/1h", "2/1h", "off=0/1h")
	r := newRedis(client, "trace", settings)
	testkit.Must(r.Decide(t.Context(), append(several(3, "x", "off"), request("large", "a").withCost(5))))(t)
	testkit.EqualMaps(t, scripttest.Contents(t, client), nil, "keys after events that never fit")
	wantAdmitted(t, r, append(several(2, "e", "a"), request("f", "b"))...)
	before := scripttest.Contents(t, client)
	want := []string{"{trace}:calls", "{trace}:leased", "{trace}:log", "{trace}:log:a", "{trace}:log:b", "{trace}:message"}
	testkit.EqualSlices(t, slices.Sorted(maps.Keys(before)), want, "keys")
	var flood []Request
	for i := range 2000 {
		flood = append(flood, request(fmt.Sprint("flood", i), fmt.Sprintf("a%d.b.c", i)))
	}
	for batch := range slices.Chunk(flood, MaxBatch) {
		for _, d := range decisionsOf(t, r, batch...) {
			testkit.Require(t, d.Verdict == Denied && d.Node.Level == limits.LevelGlobal, "got %+v, want a denial by %s", d, limits.LevelGlobal)
		}
	}
	scripttest.WantUnchanged(t, client, before)
}

// TestPausesAreShared compares the pauses in the answers of decisions. The stories of package pacing show how pauses begin and end.
func TestPausesAreShared(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	r := newRedis(client, "pauses", scriptSettings(t))
	clock := withFakeTime(t, r)
	want := func(pauses map[string]time.Duration) {
		t.Helper()
		testkit.EqualMaps(t, testkit.Must(r.Decide(t.Context(), nil))(t).Pauses, pauses, "pauses at %v", clock.Read())
	}
	pause(t, r, "#a", time.Minute)
	want(map[string]time.Duration{"#a": time.Minute})
	clock.Advance(2 * time.Second)
	pause(t, r, "#b\n", 1500*time.Microsecond)
	want(map[string]time.Duration{"#a": 58 * time.Second, "#b\n": 1500 * time.Microsecond})
	clock.Advance(2 * time.Millisecond)
	want(map[string]time.Duration{"#a": 58*time.Second - 2*time.Millisecond})
	clock.Advance(time.Minute)
	want(nil)
}

// TestRestoreForgottenEvent restores an event with the ID of an expired record that Redis still holds.
func TestRestoreForgottenEvent(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	r := newRedis(client, "forgotten", scriptSettings(t))
	clock := withFakeTime(t, r)
	seeded(t, r)
	clock.Advance(testRetention + testLease + time.Second)
	admissions := []Admission{
		{Lease: Lease{Request: request("delivered", scriptPath).inMessage(2)}, At: time.Now()},
		{Lease: Lease{Request: request("leased", scriptPath).inMessage(2)}, At: time.Now()},
	}
	testkit.Must(r.Restore(t.Context(), admissions, time.Now()))(t)
	used := testkit.Must(r.usedSlots(t.Context(), r.d.settings.Tree.Path(scriptPath)))(t)
	testkit.EqualDeeply(t, used, [][]int64{{2}, {2}, {2}}, "slots taken")
	for i := range 3 {
		wantAdmitted(t, r, request(fmt.Sprint("other", i), "b"))
		wantVerdicts(t, decisionsOf(t, r, admissions[0].Lease.Request, admissions[1].Lease.Request), Leased, Leased)
		clock.Advance(time.Second)
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	r := newRedis(client, "restore", scriptSettings(t))
	clock := withFakeTime(t, r)
	known := wantAdmitted(t, r, request("leased", scriptPath), request("done", scriptPath))
	testkit.NoError(t, finish(t.Context(), r, known[1:]...))
	clock.Advance(time.Minute)
	now := time.Now()
	admissions := []Admission{
		{Lease: Lease{Request: request("delivered", scriptPath)}, At: now.Add(-10 * time.Minute), Became: WasDelivered},
		{Lease: Lease{Request: request("under way", scriptPath).withCost(2)}, At: now.Add(-5 * time.Minute)},
		{Lease: Lease{Request: request("leased", scriptPath)}, At: now.Add(-5 * time.Minute), Became: WasDelivered},
		{Lease: Lease{Request: request("done", scriptPath)}, At: now.Add(-5 * time.Minute)},
		{Lease: Lease{Request: request("long ago", scriptPath)}, At: now.Add(-2 * time.Hour), Became: WasDelivered},
	}
	for range 2 {
		end := testkit.Must(r.Restore(t.Context(), admissions, time.Now()))(t)
		testkit.Between(t, end-clock.Read().Add(testLease).UnixMicro(), 0, 10, "microseconds by which the leases end later")
		for _, log := range []string{"log", "log:a", "log:a.b"} {
			ages := make(map[string]time.Duration)
			for _, m := range client.ZRangeWithScores(t.Context(), "{restore}:"+log, 0, -1).Val() {
				ages[fmt.Sprint(m.Member)] = clock.Read().Sub(time.UnixMicro(int64(m.Score))).Round(time.Minute)
			}
			want := map[string]time.Duration{
				"leased": time.Minute, "done": time.Minute, "delivered": 10 * time.Minute,
				"under way": 5 * time.Minute, "under way\n2": 5 * time.Minute,
			}
			testkit.EqualMaps(t, ages, want, "%s: ages", log)
		}
		clock.Advance(time.Second)
	}
	decisions := decisionsOf(t, r,
		request("delivered", scriptPath), request("under way", scriptPath), request("leased", scriptPath), request("done", scriptPath),
		request("long ago", scriptPath), request("delivered", scriptPath).inMessage(2), request("under way", scriptPath).inMessage(2),
	)
	wantVerdicts(t, decisions, Done, Leased, Done, Done, Done, Duplicate, Duplicate)
	scripttest.WantExpiries(t, client)
}

// TestRestoreReturnsSlotsOfDeliveries restores an event that Redis has admitted, and that was delivered without Redis. Its slots of limits that
// count deliveries under way are free at once, in force and in the shadow. Its other slots stay.
func TestRestoreReturnsSlotsOfDeliveries(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	settings := scriptSettings(t)
	settings.Tree, settings.Shadow = newTree(t, "6/1h", "inflight:2/1h", ""), newTree(t, "inflight:2/1h", "none", "")
	r := newRedis(client, "deliveries", settings)
	leases := wantAdmitted(t, r, request("delivered", "a").withCost(2))
	wantVerdicts(t, decisionsOf(t, r, request("next", "a")), Denied)
	for range 2 {
		testkit.Must(r.Restore(t.Context(), []Admission{{Lease: leases[0], At: time.Now(), Became: WasDelivered}}, time.Now()))(t)
		used := testkit.Must(r.usedSlots(t.Context(), settings.Tree.Path("a")))(t)
		testkit.EqualDeeply(t, used, [][]int64{{2}, {0}}, "slots taken")
		testkit.Equal(t, client.ZCard(t.Context(), "{deliveries}:shadow:inflight:3600000").Val(), 0, "slots taken in the shadow")
	}
	wantAdmitted(t, r, request("next", "a").withCost(2))
}

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
			testkit.Check(t, d.Verdict == Denied && d.Node.Level == limits.LevelGlobal && d.Wait == time.Hour-2*time.Second,
				"one more: got %+v, want it denied by the global limit", d)
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
