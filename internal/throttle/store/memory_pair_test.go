package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Memory keeps pairs only after KeepPairs, and not for ever.
func TestMemoryForgetsPairs(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(func(time.Time) {})
	settings := Settings{Tree: newTree(t, "none", "none", ""), Lease: testLease, Retention: testRetention, PairTTL: time.Hour}
	m := NewMemory(settings, clock.Read, nil)
	fire := func(i int) {
		r := request(fmt.Sprint(i), "a").ofPair(fmt.Sprint(i))
		_, _ = m.Finish(t.Context(), wantAdmitted(t, m, r))
	}
	fire(0)
	testkit.Equal(t, len(m.pairs.byField), 0, "pairs are kept that nobody asks for")
	m.KeepPairs()
	for i := range 3 * minSweep {
		fire(i + 1)
		clock.Advance(settings.PairTTL / minSweep)
	}
	if kept := len(m.pairs.byField); kept < minSweep || kept > 2*minSweep+minSweep/2 {
		t.Errorf("%d pairs are kept, %d of them open", kept, minSweep)
	}
}

// TestMemoryAwaitsDeliveries resolves a key while its event is being delivered, and looks for an event that is folded.
func TestMemoryAwaitsDeliveries(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(func(time.Time) {})
	m := NewMemory(pairSettings(t), clock.Read, nil)
	m.KeepPairs()
	leases := wantAdmitted(t, m, folding("firing", 1))
	resolve := func() Decision {
		return testkit.Must(m.Resolve(t.Context(), []Request{aboutDisk("resolved")}))(t)[0]
	}
	testkit.Equal(t, resolve().Wait, testLease-time.Microsecond, "wait for the delivery")
	clock.Advance(testLease + time.Second) // the message may be out
	testkit.Equal(t, resolve().Wait, time.Second, "wait for a lapsed delivery")
	leases[0].Receipt = "r"
	testkit.NoError(t, finish(t.Context(), m, leases...))
	wantVerdicts(t, decisionsOf(t, m, folding("second", 1).withCost(0)), Folded)
	testkit.Equal(t, resolve().Opened, "r", "message of the resolved event")
}

// TestMemoryForgetsExpiredMessages delivers another message of an ID after the pair with the earlier message has expired.
func TestMemoryForgetsExpiredMessages(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(func(time.Time) {})
	settings := pairSettings(t)
	m := NewMemory(settings, clock.Read, nil)
	m.KeepPairs()
	earlier, later := folding("firing", 1), folding("firing", 1)
	later.Message.Sequence++
	testkit.NoError(t, finish(t.Context(), m, wantAdmitted(t, m, earlier)...))
	clock.Advance(max(settings.PairTTL, settings.Retention) + time.Minute)
	wantAdmitted(t, m, later)
	underWay := m.pairs.underWay[later.Pair].versions[later.eventKey()]
	testkit.Equal(t, underWay, later.Message.version(), "version of the event that is being delivered")
}
