package throttle

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// TestVerdictsOfTheScripts shows that a verdict has one number and one name, here and in the scripts.
func TestVerdictsOfTheScripts(t *testing.T) {
	t.Parallel()
	text := testkit.Must(os.ReadFile("../../lua/lib/verdicts.lua"))(t)
	named := make(map[Verdict]string)
	for _, found := range regexp.MustCompile(`(?m)^local ([A-Z_]+) = (\d+)\b`).FindAllStringSubmatch(string(text), -1) {
		number, _ := strconv.Atoi(found[2])
		named[Verdict(number)] = strings.ToLower(found[1])
	}
	for verdict := Admitted; verdict <= Deferred; verdict++ {
		name, inScripts := named[verdict]
		if inScripts == (verdict == Deferred) || inScripts && name != verdict.String() {
			t.Errorf("verdict %d is %q here, and %q in the scripts", verdict, verdict, name)
		}
		delete(named, verdict)
	}
	if len(named) > 0 {
		t.Errorf("these verdicts of the scripts are unknown: %v", named)
	}
}

// TestLimiterDecidesByLimitsAndPairs mixes both kinds of events in one batch, with one kind that Redis refuses.
func TestLimiterDecidesByLimitsAndPairs(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Policy: Local, Settings: Settings{PairTTL: testPairTTL}})
	about := func(id, pair string) Request { return request(id, "a").ofPair(pair) }
	limiter.one(Admitted, about("firing", "disk")).Finish(t.Context(), "r")

	mixed := func(suffix string) []Request {
		lookUp := resolving(about("looked up"+suffix, "disk"))[0]
		lookUp.Cost = 0
		return []Request{
			resolving(about("resolved"+suffix, "disk"))[0], about("plain"+suffix, ""), resolving(about("other"+suffix, "net"))[0],
			about("fires"+suffix, "fan"), lookUp,
		}
	}
	check := func(suffix string, want ...Verdict) []Decision {
		t.Helper()
		decisions := testkit.Must(limiter.Decide(t.Context(), mixed(suffix)))(t)
		for i, d := range decisions {
			if d.Verdict != want[i] || (d.Verdict == Deferred) != (d.Err != nil) || (d.Verdict == Admitted) != (d.Grant != nil) {
				t.Errorf("event %d%s: %+v, want %s", i, suffix, d, want[i])
			}
		}
		return decisions
	}
	if decisions := check(" 1", Admitted, Admitted, Unpaired, Admitted, Unknown); decisions[0].Opened != "r" {
		t.Errorf("it resolves %q, want the receipt", decisions[0].Opened)
	}
	limiter.loseAndAct()
	decisions := check(" 3", Deferred, Admitted, Deferred, Admitted, Unknown)
	if !errors.Is(decisions[0].Err, script.ErrUnavailable) {
		t.Errorf("deferred because of %v", decisions[0].Err)
	}
}

// TestLeaveRoom has events leave the room that the limiter let in, whatever they say of how long they stay.
func TestLeaveRoom(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{RoomMax: 2})
	stay := func(n int) Stay { return Stay{First: "a", Member: fmt.Sprint(n), Weight: 1, For: patience} }
	enter := func(n int, want bool) {
		t.Helper()
		if may, err := limiter.EnterRoom(t.Context(), []Stay{stay(n)}); err != nil || may[0] != want {
			t.Errorf("event %d may stay: %v, %v, want %t", n, may, err, want)
		}
	}
	enter(1, true)
	enter(2, true)
	enter(3, false)
	stays := []Stay{stay(1)}
	testkit.NoError(t, limiter.LeaveRoom(t.Context(), stays))
	if stays[0].For != patience {
		t.Errorf("the caller's stay is %+v", stays[0])
	}
	enter(3, true)
}
