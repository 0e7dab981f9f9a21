package store

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// pairModel drives Redis and the in-memory store with the same calls about pairs, one by one.
type pairModel struct {
	redis  *Redis
	memory *Memory
	clock  *testkit.Clock
	held   []Lease // of unfinished resolved events
	posted int
}

func (m *pairModel) finish(t *rapid.T, inRedis, inMemory Lease) {
	m.posted++
	inRedis.Receipt = fmt.Sprint("receipt ", m.posted)
	inMemory.Receipt = inRedis.Receipt
	newInRedis := testkit.Must(m.redis.Finish(context.Background(), []Lease{inRedis}))(t)
	newInMemory, _ := m.memory.Finish(context.Background(), []Lease{inMemory})
	testkit.EqualSlices(t, newInRedis, newInMemory, "which deliveries are new to Redis, compared with the memory")
}

// drawEvent draws one of a few events of a few pairs. Firing and resolved events share some IDs.
func (m *pairModel) drawEvent(t *rapid.T) Request {
	category := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "category")
	sequence := rapid.Uint64Range(1, 9).Draw(t, "sequence")
	r := derived(sequence, m.clock.Read(), category)
	r.ID = category + " " + r.ID
	if rapid.Bool().Draw(t, "own ID") {
		r.Derived = false
		r.ID = category + " " + rapid.StringMatching("[i-m]").Draw(t, "ID")
	}
	return r.ofPair(rapid.SampledFrom([]string{"disk", "memory"}).Draw(t, "key"))
}

func (m *pairModel) fire(t *rapid.T) {
	r := m.drawEvent(t)
	inRedis := testkit.Must(m.redis.Decide(context.Background(), []Request{r}))(t)
	inMemory, _ := m.memory.Decide(context.Background(), []Request{r})
	one, other := inRedis.Decisions[0], inMemory.Decisions[0]
	if one.Verdict != other.Verdict || one.Lease.End != other.Lease.End {
		t.Fatalf("firing %+v: redis says %d, %d, memory %d, %d", r, one.Verdict, one.Lease.End, other.Verdict, other.Lease.End)
	}
	if one.Lease.End != 0 {
		m.finish(t, one.Lease, other.Lease)
	}
}

func (m *pairModel) resolve(t *rapid.T) {
	requests := make([]Request, rapid.IntRange(1, 3).Draw(t, "events"))
	for i := range requests {
		requests[i] = m.drawEvent(t)
	}
	inRedis := testkit.Must(m.redis.Pairs.Resolve(context.Background(), requests))(t)
	inMemory, _ := m.memory.Resolve(context.Background(), requests)
	for i, one := range inRedis {
		other := inMemory[i]
		if one.Verdict != other.Verdict || one.Opened != other.Opened || !slices.Equal(one.Others, other.Others) || one.Wait != other.Wait || one.Lease.End != other.Lease.End || one.InDoubt != other.InDoubt {
			t.Fatalf("resolving %+v: redis says %+v, memory %+v", requests[i], one, other)
		}
		if one.Lease.End != 0 {
			m.held = append(m.held, one.Lease)
		}
	}
}

// end ends the delivery of a resolved event in a drawn way.
func (m *pairModel) end(t *rapid.T) {
	if len(m.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "lease")
	lease := m.held[i]
	m.held = append(m.held[:i:i], m.held[i+1:]...)
	if m.clock.Read().UnixMicro() >= lease.End {
		return // Redis may have forgotten it
	}
	ctx := context.Background()
	switch rapid.SampledFrom([]string{"finish", "release", "refund", "lapse"}).Draw(t, "way") {
	case "finish":
		m.finish(t, lease, lease)
	case "release":
		one, err := m.redis.Extend(ctx, []Lease{lease}, 0)
		other, _ := m.memory.Extend(ctx, []Lease{lease}, 0)
		if err != nil || one[0].End != other[0].End {
			t.Fatalf("release: %+v, %v in redis, %+v in memory", one, err, other)
		}
	case "refund":
		one, err := m.redis.Refund(ctx, []Lease{lease})
		other, _ := m.memory.Refund(ctx, []Lease{lease})
		if err != nil || one[0] != other[0] {
			t.Fatalf("refund: %t, %v in redis, %t in memory", one[0], err, other[0])
		}
	}
}

// wait leaves no pair just before its end, because keys of Redis expire by the server's own clock.
func (m *pairModel) wait(t *rapid.T) {
	m.clock.Advance(rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, testLease + time.Second, testRetention, testPairTTL/3 + time.Second}).Draw(t, "time"))
}

// TestMemoryPairs compares the answers of both stores about resolved events.
func TestMemoryPairs(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	rapid.Check(t, func(rt *rapid.T) {
		testkit.NoError(rt, client.FlushDB(context.Background()).Err())
		settings := pairSettings(t)
		r := newRedis(client, "pairs", settings)
		clock := withFakeTime(t, r)
		m := &pairModel{redis: r, memory: NewMemory(settings, clock.Read, nil), clock: clock}
		m.memory.KeepPairs()
		rt.Repeat(map[string]func(*rapid.T){
			"fire": m.fire, "fire again": m.fire, "resolve": m.resolve, "resolve again": m.resolve, "end": m.end, "wait": m.wait,
		})
	})
}

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
