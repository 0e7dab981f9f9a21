package store

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// startStore returns a store on its own server, with the clock of its scripts.
func startStore(t *testing.T, s Settings) (*Redis, *testkit.Clock) {
	t.Helper()
	client := newClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	store := newRedis(client, "explain", s)
	return store, withFakeTime(t, store)
}

// TestExplainAgreesWithDecide explains each event twice before the decision, with every algorithm. All three agree.
func TestExplainAgreesWithDecide(t *testing.T) {
	t.Parallel()
	trees := map[string]Settings{
		"logs":        {Tree: newTree(t, "9/10s+12/1m", "4/7s", "a.b=3/5s")},
		"no limits":   {Tree: newTree(t, "none", "none", "")},
		"two on logs": {Tree: newTree(t, "5/3s+20/1m", "2/2s+6/30s", "")},
	}
	for _, a := range algorithm.All() {
		burst := ""
		if a.Description().Bursts {
			burst = ";burst=5"
		}
		trees["two of "+a.String()] = Settings{Tree: newTree(t, a.String()+":8/10s"+burst, a.String()+":3/4s", "")}
		trees["a log and "+a.String()] = Settings{Tree: newTree(t, "9/10s", a.String()+":2/4s", "")}
	}
	for name, settings := range trees {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings.Lease, settings.Retention = time.Minute, time.Hour
			store, clock := startStore(t, settings)
			random := rand.New(rand.NewPCG(1, uint64(len(name))))
			for i := range 150 {
				asked := request(fmt.Sprintf("a %d", i), []string{"a", "a.b", "c"}[random.IntN(3)]).withCost(1 + random.IntN(5))
				explained := testkit.Must(store.Readings.Explain(t.Context(), asked))(t)
				again := testkit.Must(store.Readings.Explain(t.Context(), asked))(t)
				testkit.EqualDeeply(t, again, explained, "second explanation")
				d := decisionsOf(t, store, asked)[0]
				if got, want := asDecision(explained), decided(d); got != want {
					t.Fatalf("event %d of %s and cost %d: explained as %q, decided as %q", i, asked.Category, asked.Cost, got, want)
				}
				clock.Advance(time.Duration(random.IntN(1500)) * time.Millisecond)
			}
		})
	}
}

func decided(d Decision) string {
	switch d.Verdict {
	case Denied:
		return fmt.Sprint("denied by ", d.Node.Path, " ", d.Limit, " for ", d.Wait)
	case ExceedsCapacity:
		return fmt.Sprint("denied by ", d.Node.Path, " ", d.Limit)
	default:
		return d.Verdict.String()
	}
}

// asDecision returns the decision that an explanation predicts for an unrecorded event.
func asDecision(e Explanation) string {
	switch {
	case e.Denial == nil:
		return Admitted.String()
	case e.Denial.Next == nil:
		return fmt.Sprint("denied by ", e.Denial.Path, " ", e.Denial.Limit)
	default:
		return fmt.Sprint("denied by ", e.Denial.Path, " ", e.Denial.Limit, " for ", e.Denial.Next.Sub(e.At))
	}
}

func TestExplainRecords(t *testing.T) {
	t.Parallel()
	store, clock := startStore(t, Settings{Tree: newTree(t, "9/1h", "5/1h", ""), Lease: time.Minute, Retention: time.Hour})
	asked := request("a card", "a")
	explain := func(r Request) string {
		t.Helper()
		e := testkit.Must(store.Readings.Explain(t.Context(), r))(t)
		var states []string
		if !e.Leased.IsZero() {
			states = append(states, "leased for "+e.Leased.Sub(e.At).String())
		}
		if !e.Done.IsZero() {
			states = append(states, "done for "+e.Done.Sub(e.At).String())
		}
		if e.Another {
			states = append(states, "another message")
		}
		return fmt.Sprintf("%s, %d of %d", strings.Join(states, ", "), e.Limits[1].Used, e.Limits[1].Size)
	}
	testkit.Equal(t, explain(asked), ", 0 of 5", "before the event")
	lease := wantAdmitted(t, store, asked)
	testkit.Equal(t, explain(asked), "leased for 59.999999s, 1 of 5", "while the event is delivered")
	testkit.Equal(t, explain(asked.inMessage(2)), "leased for 59.999999s, another message, 1 of 5", "another message with its ID")
	clock.Advance(2 * time.Minute)
	testkit.Equal(t, explain(asked), "leased for -1m0s, 1 of 5", "after the lease")
	clock.Advance(-time.Minute)
	testkit.Must(store.Finish(t.Context(), lease))(t)
	testkit.Equal(t, strings.Contains(explain(asked), "done for 1h0m0s"), true, "after the delivery")
	clock.Advance(2 * time.Hour)
	testkit.Equal(t, explain(asked), ", 0 of 5", "after the retention")
}

// TestExplainNamesOneDenial has a muted path with a full limit. The mute denies an event, and the limit one that the mute spares.
func TestExplainNamesOneDenial(t *testing.T) {
	t.Parallel()
	tree := newTree(t, "none", "1/1h", "")
	store, _ := startStore(t, Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour})
	wantAdmitted(t, store, request("a 1", "a"))
	store.AdoptRules(Compile(limits.Ruleset{Tree: tree, Mutes: []*limits.Mute{{Path: "a", Spare: "critical"}}}))
	asked := request("a 2", "a")
	e := testkit.Must(store.Readings.Explain(t.Context(), asked))(t)
	testkit.Equal(t, e.Muted != nil && e.Denial == nil, true, "the mute alone denies the event")
	asked.Severity = event.SeverityCritical
	e = testkit.Must(store.Readings.Explain(t.Context(), asked))(t)
	testkit.Equal(t, e.Muted == nil && e.Denial != nil, true, "the limit alone denies a critical event")
}

// TestExplainReportsFolds reports a folded event as folded, not as delivered, with its number, until its record expires.
func TestExplainReportsFolds(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	k.fire(folding("first", 1), "r")
	k.want(Folded, folding("second", 1))
	fold := func(id string) *Fold { return testkit.Must(k.Readings.Explain(t.Context(), folding(id, 1)))(t).Fold }
	testkit.Equal(t, fold("first") == nil, true, "a delivered event is not folded")
	got := fold("second")
	testkit.Check(t, got != nil && got.Number == 2 && !got.Flaps, "the second event is explained as %+v, want number 2", got)
	k.clock.Advance(testRetention + time.Second)
	testkit.Equal(t, fold("second") == nil, true, "a fold whose record has expired is not known")
}

// An explanation has the state of the pair as a resolved event finds it.
func TestExplainPairs(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	requirePair := func(want PairState, until time.Duration) {
		t.Helper()
		e := testkit.Must(k.Readings.Explain(t.Context(), aboutDisk("a over")))(t)
		testkit.Equal(t, e.Pair, want, "state of the pair")
		if e.PairUntil.IsZero() != (until == 0) || until != 0 && e.PairUntil.Sub(e.At).Round(time.Second) != until {
			t.Errorf("the pair is so until %v, %v from now, want %v", e.PairUntil, e.PairUntil.Sub(e.At), until)
		}
	}
	requirePair(NoPair, 0)
	lease := k.deliver(aboutDisk("a down"))
	requirePair(PairUnderWay, k.d.settings.Lease)
	k.finish(lease, "C1 1.2")
	requirePair(PairOpen, testPairTTL)
	k.clock.Advance(testPairTTL + time.Second)
	requirePair(NoPair, 0)
	testkit.Equal(t, testkit.Must(k.Readings.Explain(t.Context(), request("a other", "a")))(t).Pair, NoPair, "an event without a pair")
}
