package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestMemoryIsBoundedByWhatItAdmits admits new paths, keys and events for 50 minutes.
func TestMemoryIsBoundedByWhatItAdmits(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	tree := newTree(t, "10000/1m", "10/1m", "*@key=1/1m")
	m := newMemory(Settings{Tree: tree, Lease: time.Second, Retention: time.Minute}, clock.Read, nil)
	for round := range 50 {
		requests := make([]Request, 200)
		for i := range requests {
			name := fmt.Sprint(round, "-", i)
			requests[i] = request(name, "c"+name).ofKey(name)
		}
		_, _ = m.Finish(t.Context(), wantAdmitted(t, m, requests...)[:1])
		m.Mirror(requests[:1])
		clock.Advance(time.Minute)
	}
	testkit.AtMost(t, len(m.records.byKey)+m.inForce.size(), 2*minSweep, "records and buckets kept, of 200 a minute")
	testkit.AtMost(t, m.inForce.ofKeys.Len(), minSweep, "buckets of keys kept, of 200 a minute")
	testkit.AtMost(t, len(m.times.calls), 2, "calls kept, of one a minute")
}

func TestMemoryDeniedPathsLeaveNothing(t *testing.T) {
	t.Parallel()
	m := newMemory(Settings{Tree: newTree(t, "1/1h", "10/1h", ""), Lease: time.Second, Retention: time.Minute}, testkit.NewClock(nil).Read, nil)
	for i := range 5000 {
		decisionsOf(t, m, request(fmt.Sprint("e", i), fmt.Sprint("c", i)))
	}
	testkit.Equal(t, len(m.records.byKey), 1, "records")
	testkit.Equal(t, len(m.inForce.buckets), 2, "buckets")
}

func TestMemoryFollow(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	tree := newTree(t, "10/1h", "5/1h", "")
	m := newMemory(Settings{Tree: tree, Lease: time.Second, Retention: time.Minute}, clock.Read, nil)
	used := func(want int64) {
		t.Helper()
		got := m.Usage(tree.Path("a"))
		testkit.Check(t, got[0][0] == want && got[1][0] == want, "slots taken: %v, want %d", got, want)
	}
	at := m.Mirror([]Request{request("1", "a"), request("2", "a").withCost(3)})
	testkit.Equal(t, at.Equal(start), true, "mirrored at the time of the clock")
	used(4)
	clock.Advance(time.Second)
	wantVerdicts(t, decisionsOf(t, m, several(2, "e", "a")...), Admitted, Denied)
	m.Unmirror(Lease{Request: request("2", "a").withCost(3)}, at)
	used(2)
	m.Unmirror(Lease{Request: request("3", "a").withCost(100)}, at)
	used(1)
	clock.Advance(time.Hour)
	used(0)
}

func TestMemoryShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		count, instances int
		admitted         int
	}{{10, 1, 10}, {10, 0, 10}, {10, -1, 10}, {10, 3, 3}, {10, 10, 1}, {10, 11, 1}, {1, 5, 1}, {0, 5, 0}, {0, 1, 0}} {
		tree := newTree(t, fmt.Sprintf("%d/1h", c.count), "none", "")
		instances := 1
		m := newMemory(Settings{Tree: tree, Lease: time.Second, Retention: time.Minute}, testkit.NewClock(nil).Read, func() int { return instances })
		instances = c.instances // the number may change at any time
		admitted := 0
		for _, d := range decisionsOf(t, m, several(20, "e", "a")...) {
			if d.Verdict == Admitted {
				admitted++
			}
		}
		testkit.Equal(t, admitted, c.admitted, "admitted of %d with %d instances", c.count, c.instances)
	}
}

// TestMemoryShareRefills floods an instance that has a third of a token bucket.
func TestMemoryShareRefills(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	m := newMemory(Settings{Tree: newTree(t, "token:6/1h", "none", ""), Lease: time.Second, Retention: time.Minute}, clock.Read, func() int { return 3 })
	admitted := 0
	for minute := range 120 {
		for _, d := range decisionsOf(t, m, several(3, fmt.Sprint(minute, "-"), "a")...) {
			if d.Verdict == Admitted {
				admitted++
			}
		}
		clock.Advance(time.Minute)
	}
	testkit.Equal(t, admitted, 5, "admitted by a burst of two and less than two hours of two an hour")
	clock.Advance(time.Minute)
	wantVerdicts(t, decisionsOf(t, m, several(2, "later", "a")...), Admitted, Denied)
}

// TestMemoryShareHoldsAnyEventThatFitsTheLimit admits an event with a cost above the instance's share.
func TestMemoryShareHoldsAnyEventThatFitsTheLimit(t *testing.T) {
	t.Parallel()
	m := newMemory(Settings{Tree: newTree(t, "10/1h", "none", ""), Lease: time.Second, Retention: time.Minute},
		testkit.NewClock(nil).Read, func() int { return 5 })
	decisions := decisionsOf(t, m,
		request("1", "a").withCost(7), request("2", "a"), request("3", "a").withCost(7), request("4", "a").withCost(11))
	wantVerdicts(t, decisions, Admitted, Denied, Denied, ExceedsCapacity)
}

func TestMemoryConcurrently(t *testing.T) {
	t.Parallel()
	m := newMemory(Settings{Tree: newTree(t, "100/1h", "60/1h", ""), Lease: time.Hour, Retention: time.Hour}, time.Now, nil)
	var admitted testkit.Counts
	testkit.AtOnce(8, func(worker int) {
		for i := range 50 {
			category := fmt.Sprint("c", i%3)
			result, _ := m.Decide(t.Context(), []Request{request(fmt.Sprint(worker, "-", i), category)})
			admitted.Add(result.Decisions[0].Verdict.String(), 1)
			testkit.AtMost(t, m.Usage(m.rules.Tree.Path(category))[1][0], 60, "slots taken of %s", category)
		}
	})
	testkit.EqualMaps(t, admitted.All(), map[string]int{"admitted": 100, "denied": 300}, "verdicts")
}

// Memory keeps pairs only after KeepPairs, and not for ever.
func TestMemoryForgetsPairs(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(func(time.Time) {})
	settings := Settings{Tree: newTree(t, "none", "none", ""), Lease: testLease, Retention: testRetention, PairTTL: time.Hour}
	m := newMemory(settings, clock.Read, nil)
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
	testkit.Between(t, len(m.pairs.byField), minSweep, 2*minSweep+minSweep/2, "pairs that are kept, %d of them open", minSweep)
}

// TestMemoryForgetsExpiredMessages delivers another message of an ID after the pair with the earlier message has expired.
func TestMemoryForgetsExpiredMessages(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(func(time.Time) {})
	settings := pairSettings(t)
	m := newMemory(settings, clock.Read, nil)
	m.KeepPairs()
	earlier, later := folding("firing", 1), folding("firing", 1)
	later.Message.Sequence++
	testkit.NoError(t, finish(t.Context(), m, wantAdmitted(t, m, earlier)...))
	clock.Advance(max(settings.PairTTL, settings.Retention) + time.Minute)
	wantAdmitted(t, m, later)
	underWay := m.pairs.underWay[later.Pair].versions[later.eventKey()]
	testkit.Equal(t, underWay, later.Message.version(), "version of the event that is being delivered")
}

// restore is [Redis.restore] in memory, for new events in limits of sliding logs, and events of any limits that have a record.
func (m *Memory) restore(admissions []Admission, clock time.Time) (leaseEnd int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.times.now()
	leaseEnd = now + m.settings.Lease.Microseconds()
	for _, a := range admissions {
		request := a.Lease.Request
		r := m.records.known(request.eventKey(), now)
		if r == nil {
			r = m.admitEarlier(request, now-clock.Sub(a.At).Microseconds())
		} else if r.leaseEnd <= now {
			r.inDoubt = r.mayBeDelivered()
		}
		switch {
		case r.doneUntil > now:
			if a.Became == WasDelivered && m.pairs.postedAgain(a.Lease, r.fold, now) {
				m.pairs.settle(a.Lease, now)
			}
		case a.Became == WasDelivered:
			m.pairs.settle(a.Lease, now)
			r.version = request.Message.version()
			r.doneUntil = now + m.settings.Retention.Microseconds()
		default:
			r.leaseEnd, r.released, r.waits, r.inDoubt = leaseEnd, false, false, r.inDoubt || a.Lease.InDoubt
		}
	}
	return leaseEnd
}

// postedAgain is was_posted_again of restore.lua.
func (p *memoryPairs) postedAgain(lease Lease, fold *Fold, now int64) bool {
	pair, _ := p.of(lease.pairField(), now)
	has := func(m pairMessage) bool {
		isFolded := fold != nil && m.folded > 0 && time.UnixMicro(m.posted).Truncate(time.Minute).Equal(fold.Posted)
		return m.eventKey == lease.Request.eventKey() || isFolded
	}
	return !lease.Resolving && lease.Receipt != "" && slices.ContainsFunc(pair.messages, has) &&
		!slices.ContainsFunc(pair.messages, func(m pairMessage) bool { return m.receipt == lease.Receipt })
}

// admitEarlier takes the slots of an event at a time that has passed, and returns its new record.
func (m *Memory) admitEarlier(request Request, at int64) *record {
	route := m.rules.InForce.Route(request.Category, request.Key)
	for _, bucket := range route.buckets {
		if request.AsksForPair() || request.Slotless {
			break // it takes no slots
		}
		m.inForce.take(bucket, m.shares.event(at, route, request), bucket.limits)
	}
	r := &record{version: request.Message.version(), at: at, route: route}
	m.records.byKey[request.eventKey()] = r
	return r
}
