package throttle

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestVerdictsOfTheScripts compares numbers and names of verdicts in Go and Lua.
func TestVerdictsOfTheScripts(t *testing.T) {
	t.Parallel()
	text := testkit.Must(os.ReadFile("../../lua/lib/verdicts.lua"))(t)
	named := make(map[store.Verdict]string)
	for _, found := range regexp.MustCompile(`(?m)^local ([A-Z_]+) = (\d+)\b`).FindAllStringSubmatch(string(text), -1) {
		number, _ := strconv.Atoi(found[2])
		named[store.Verdict(number)] = strings.ToLower(found[1])
	}
	for verdict := store.Admitted; verdict <= store.Deferred; verdict++ {
		name, inScripts := named[verdict]
		if inScripts == (verdict == store.Deferred) || inScripts && name != verdict.String() {
			t.Errorf("verdict %d is %q here, and %q in the scripts", verdict, verdict, name)
		}
		delete(named, verdict)
	}
	testkit.EqualMaps(t, named, nil, "further verdicts of the scripts")
}

// TestLimiterDecidesByLimitsAndPairs decides limited and resolved events in one batch, with Redis and without.
func TestLimiterDecidesByLimitsAndPairs(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Policy: Local, Settings: store.Settings{PairTTL: testPairTTL}})
	about := func(id, pair string) store.Request { return ofPair(pair, request(id, "a")) }
	limiter.one(store.Admitted, about("firing", "disk")).Finish(t.Context(), "r")

	mixed := func(suffix string) []store.Request {
		lookUp := resolving(about("looked up"+suffix, "disk"))[0]
		lookUp.Cost = 0
		return []store.Request{
			resolving(about("resolved"+suffix, "disk"))[0], about("plain"+suffix, ""), resolving(about("other"+suffix, "net"))[0],
			about("fires"+suffix, "fan"), lookUp,
		}
	}
	check := func(suffix string, want ...store.Verdict) []store.Decision {
		t.Helper()
		decisions := testkit.Must(limiter.Decide(t.Context(), mixed(suffix)))(t)
		for i, d := range decisions {
			testkit.Check(t, d.Verdict == want[i] && (d.Verdict == store.Deferred) == (d.Err != nil) && (d.Verdict == store.Admitted) == (d.Grant != nil),
				"event %d%s: %+v, want %s", i, suffix, d, want[i])
		}
		return decisions
	}
	testkit.Equal(t, check(" 1", store.Admitted, store.Admitted, store.Unpaired, store.Admitted, store.Unknown)[0].Opened(), "r", "receipt")
	limiter.loseAndAct()
	decisions := check(" 3", store.Deferred, store.Admitted, store.Deferred, store.Admitted, store.Unknown)
	testkit.Fails(t, "the deferred decision", decisions[0].Err, script.ErrUnavailable)
}

// TestLeaveRoom ends a stay before its time.
func TestLeaveRoom(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{RoomMax: 2})
	stay := func(n int) store.Stay { return store.Stay{First: "a", Member: fmt.Sprint(n), Weight: 1, For: patience} }
	enter := func(n int, want bool) {
		t.Helper()
		testkit.Equal(t, testkit.Must(limiter.Room().EnterRoom(t.Context(), []store.Stay{stay(n)}))(t)[0], want, "event %d may stay", n)
	}
	enter(1, true)
	enter(2, true)
	enter(3, false)
	stays := []store.Stay{stay(1)}
	testkit.NoError(t, limiter.Room().LeaveRoom(t.Context(), stays))
	testkit.Equal(t, stays[0].For, patience, "time of the caller's stay")
	enter(3, true)
}
