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

// foldable returns the same event, folded into a message of its key that is at most an hour old.
func (r Request) foldable(severity int) Request {
	r.Fold = Folding{Within: time.Hour, ComesBack: 2 * time.Second, Severity: severity}
	return r
}

// folding returns an event about the disk that may be folded.
func folding(id string, severity int) Request { return aboutDisk(id).foldable(severity) }

// fold wants an event to be folded under a number.
func (k *pairKit) fold(r Request, number int64) {
	k.t.Helper()
	decision := testkit.Must(k.Decide(k.t.Context(), []Request{r}))(k.t).Decisions[0]
	if decision.Verdict != Folded || decision.Fold == nil || decision.Fold.Number != number {
		k.t.Fatalf("%q: %s, %+v, want number %d of its message", r.ID, decision.Verdict, decision.Fold, number)
	}
}

// foldStories are orders of events of one key, the first of which has a message.
var foldStories = []story{
	{"into the message", func(t *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "r")
		k.fold(folding("second", 1), 2)
		k.fold(folding("third", 0), 3)
		testkit.Equal(t, k.client.ZCard(t.Context(), k.d.keys.leased).Val(), 0, "leases of folded events")
		k.wantFields(map[string]string{"a\ndisk": "=r"})
	}},
	{"again, after a lost reply or a kill", func(t *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "r")
		k.fold(folding("second", 1), 2)
		k.fold(folding("third", 1), 3)
		k.clock.Advance(10 * time.Minute)
		k.fold(folding("second", 1), 2)
		k.decide(folding("second", 1).inMessage(9), Duplicate)
		lookedUp := aboutDisk("third")
		lookedUp.Cost = 0
		k.fold(lookedUp, 3)
		k.finish(k.resolve(aboutDisk("resolved"), Admitted, "r").Lease, "")
		k.fold(folding("second", 1), 2)
		k.decide(folding("fourth", 1), Admitted)
	}},
	{"after the message became too old", func(_ *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "r1")
		k.clock.Advance(time.Hour + time.Second)
		k.fire(folding("second", 1), "r2")
		k.fold(folding("third", 1), 2)
		k.resolve(aboutDisk("resolved"), Admitted, "r1", "r2")
	}},
	{"of a higher severity", func(_ *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "r1")
		k.fire(folding("worse", 2), "r2")
		k.fold(folding("second", 1), 2)
		k.fold(folding("third", 2), 3)
	}},
	{"while a message is being delivered", func(t *testing.T, k *pairKit) {
		batch := []Request{folding("first", 1), folding("second", 1), folding("third", 1)}
		decisions := testkit.Must(k.Decide(t.Context(), batch))(t).Decisions
		wantVerdicts(t, decisions, Admitted, Leased, Leased)
		if !decisions[1].Awaits || decisions[1].Wait != 2*time.Second {
			t.Errorf("the second event waits %v for its message (%t), want 2s", decisions[1].Wait, decisions[1].Awaits)
		}
		k.clock.Advance(testLease + time.Second) // the message may be out
		k.decide(folding("second", 1), Leased)
		k.resolve(aboutDisk("resolved"), Leased, "") // behind the events that come back
		k.finish(decisions[0].Lease, "r")
		k.resolve(aboutDisk("resolved"), Leased, "")
		k.fold(folding("second", 1), 2)
		k.fold(folding("third", 1), 3)
		k.clock.Advance(2 * time.Second)
		k.resolve(aboutDisk("resolved"), Admitted, "r")
	}},
	{"while a message is not delivered after all", func(_ *testing.T, k *pairKit) {
		first := k.deliver(folding("first", 1))
		k.decide(folding("second", 1), Leased)
		k.refund(first)
		k.decide(folding("second", 1), Admitted)
		k.decide(folding("first", 1), Leased)
	}},
	{"into a message that may not exist", func(_ *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "")
		k.decide(folding("second", 1), Admitted)
	}},
	{"behind a resolved event that was stored before", func(_ *testing.T, k *pairKit) {
		k.fire(folding("first", 1).inMessage(10), "r")
		k.fold(folding("second", 1).inMessage(30), 2)
		resolution := k.resolve(aboutDisk("resolved").inMessage(20), Folded, "")
		testkit.Equal(k.t, resolution.Fold.Number, 3, "number of the resolved event")
		testkit.Equal(k.t, k.resolve(aboutDisk("resolved").inMessage(20), Folded, "").Fold.Number, 3, "number of the resolved event, asked again")
		k.resolve(aboutDisk("resolved again").inMessage(40), Admitted, "r")
	}},
	{"together with others", func(t *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "r")
		derivedID := folding("NOTIFICATIONS:7", 1)
		derivedID.Derived = true
		batch := []Request{request("other", "b"), folding("second", 1), folding("second", 1).inMessage(3), aboutDisk("not folded"), derivedID}
		decisions := testkit.Must(k.Decide(t.Context(), batch))(t).Decisions
		wantVerdicts(t, decisions, Admitted, Folded, Duplicate, Admitted, Folded)
		again := testkit.Must(k.Decide(t.Context(), batch))(t).Decisions
		wantVerdicts(t, again, Leased, Folded, Duplicate, Leased, Folded)
		testkit.Equal(t, again[4].Fold.Number, decisions[4].Fold.Number, "number of the event without an ID, asked again")
	}},
	{"and is counted", func(t *testing.T, k *pairKit) {
		k.fire(folding("first", 2), "r")
		k.clock.Advance(time.Second) // the deployment's time runs ahead of the clock after a decision
		wantUncounted := func(want ...Uncounted) {
			t.Helper()
			testkit.EqualSlices(t, testkit.Must(k.Pairs.Uncounted(t.Context(), []Request{folding("any", 1)}))(t)[0], want, "messages that show too little")
		}
		begin := func(receipt string, folded int64, wait time.Duration) {
			t.Helper()
			count, left, err := k.Pairs.BeginCount(t.Context(), folding("any", 1), receipt)
			if count == nil {
				count = &Count{}
			}
			if err != nil || count.Folded != folded || left != wait || folded > 0 && count.Severity != 2 {
				t.Fatalf("count %+v in %v, %v; want %d in %v", count, left, err, folded, wait)
			}
		}
		wantUncounted()
		k.fold(folding("second", 1), 2)
		k.fold(folding("third", 1), 3)
		wantUncounted(Uncounted{Receipt: "r", Folded: 2})
		begin("r", 2, 0)
		wantUncounted()
		k.fold(folding("fourth", 1), 4)
		k.clock.Advance(CountEvery - 10*time.Second)
		wantUncounted(Uncounted{Receipt: "r", Folded: 3, Wait: 10 * time.Second})
		begin("r", 3, 10*time.Second)
		k.clock.Advance(10 * time.Second)
		begin("r", 3, 0)
		begin("other", 0, 0)
		k.fold(folding("fifth", 1), 5)
		resolution := k.resolve(aboutDisk("resolved"), Admitted, "r")
		if len(resolution.Counts) != 1 || resolution.Counts[0].Folded != 4 || resolution.Counts[0].Severity != 2 {
			t.Errorf("the resolved event has the counts %+v, want 4 events in one message", resolution.Counts)
		}
		begin("r", 0, 0)
	}},
	{"reminder", func(t *testing.T, k *pairKit) {
		k.fire(folding("a first", 1), "r")
		k.decide(folding("a first", 1).inMessage(7).Reminder(1), Admitted)
	}},
}

func TestFolds(t *testing.T) {
	t.Parallel()
	tellStories(t, foldStories, newTree(t, "none", "none", ""))
}

func TestShadowModeFoldsNothing(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	k.d.settings.Forward = true
	k.fire(folding("first", 1), "r")
	k.fire(folding("second", 1), "r2")
	k.resolve(aboutDisk("resolved"), Admitted, "r", "r2")
}

// TestFoldedRecordsExpire folds many events, without any delivery that would remove expired records.
func TestFoldedRecordsExpire(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	k.fire(folding("first", 1), "r")
	for round := range 4 {
		for i := range 20 {
			r := folding(fmt.Sprint(round, " ", i), 1)
			r.Fold.Within = testPairTTL
			k.decide(r, Folded)
		}
		k.clock.Advance(testRetention + time.Second)
	}
	for _, key := range []string{k.d.keys.done, k.d.keys.message, k.d.keys.taken} {
		if n := k.client.ZCard(t.Context(), key).Val(); n > 41 {
			t.Errorf("%s has %d members, want those of the last rounds only", key, n)
		}
	}
}

// foldModel drives Redis and the in-memory store with events of a few keys that may be folded.
type foldModel struct {
	pairModel
	under map[string][2]Lease // deliveries under way in Redis and in memory, by event
	flaps bool                // the events count for the rule for flapping, and are folded for nothing else
}

func (m *foldModel) draw(t *rapid.T) Request {
	category := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "category")
	r := derived(rapid.Uint64Range(1, 30).Draw(t, "sequence"), m.clock.Read(), category)
	r.ID, r.Derived = category+" "+rapid.StringMatching("[a-h]").Draw(t, "ID"), false
	return r.ofPair(rapid.SampledFrom([]string{"disk", "memory"}).Draw(t, "key"))
}

func (m *foldModel) fire(t *rapid.T) {
	batch := make([]Request, rapid.IntRange(1, 4).Draw(t, "events"))
	for i := range batch {
		batch[i] = m.draw(t).foldable(rapid.IntRange(0, 2).Draw(t, "severity"))
		if batch[i].Fold.Counts = m.flaps; m.flaps {
			batch[i].Fold.Within = 0
		}
	}
	inRedis := testkit.Must(m.redis.Decide(context.Background(), batch))(t).Decisions
	inMemory := m.memory.DecideOnce("", batch).Decisions
	for i := range batch {
		one, other := inRedis[i], inMemory[i]
		sameFold := one.Fold == nil && other.Fold == nil || one.Fold != nil && other.Fold != nil && *one.Fold == *other.Fold
		if one.Verdict != other.Verdict || one.Lease.End != other.Lease.End || one.Awaits != other.Awaits || one.Flaps != other.Flaps || !sameFold {
			t.Fatalf("%+v: redis says %s %+v, memory %s %+v", batch[i], one.Verdict, one.Fold, other.Verdict, other.Fold)
		}
		if one.Lease.End != 0 {
			m.under[batch[i].ID] = [2]Lease{one.Lease, other.Lease}
		}
	}
}

func (m *foldModel) deliver(t *rapid.T) {
	if len(m.under) == 0 {
		return
	}
	names := make([]string, 0, len(m.under))
	for name := range m.under {
		names = append(names, name)
	}
	slices.Sort(names)
	name := rapid.SampledFrom(names).Draw(t, "delivered")
	leases := m.under[name]
	delete(m.under, name)
	m.finish(t, leases[0], leases[1])
}

func (m *foldModel) resolve(t *rapid.T) {
	for len(m.under) > 0 { // the memory opens a pair when it is delivered
		m.deliver(t)
	}
	r := m.draw(t)
	r.Resolves, r.Fold.Counts = true, m.flaps
	m.compareResolved(t, r)
}

// report asks for the report that a key is steady, first since no change, then since the newest one.
func (m *foldModel) report(t *rapid.T) {
	for len(m.under) > 0 {
		m.deliver(t)
	}
	r := m.draw(t)
	if early := m.compareResolved(t, r.Report(1)); early.Changed > 0 {
		m.compareResolved(t, r.Report(early.Changed))
	}
}

func (m *foldModel) compareResolved(t *rapid.T, r Request) Decision {
	one := testkit.Must(m.redis.Pairs.Resolve(context.Background(), []Request{r}))(t)[0]
	both, _ := m.memory.Resolve(context.Background(), []Request{r})
	other := both[0]
	same := one.Changed == other.Changed && slices.Equal(one.Counts, other.Counts)
	if !same || one.Verdict != other.Verdict || one.Opened != other.Opened || (one.Fold == nil) != (other.Fold == nil) || one.Fold != nil && *one.Fold != *other.Fold {
		t.Fatalf("%+v: redis says %s %q %+v, memory %s %q %+v", r, one.Verdict, one.Opened, one.Fold, other.Verdict, other.Opened, other.Fold)
	}
	if one.Lease.End != 0 {
		m.finish(t, one.Lease, other.Lease)
	}
	return one
}

// TestMemoryFolds compares the answers of both stores about events that may be folded.
func TestMemoryFolds(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	rapid.Check(t, func(rt *rapid.T) {
		testkit.NoError(rt, client.FlushDB(context.Background()).Err())
		settings := pairSettings(t)
		r := newRedis(client, "folds", settings)
		clock := withFakeTime(t, r)
		m := &foldModel{
			pairModel: pairModel{redis: r, memory: NewMemory(settings, clock.Read, nil), clock: clock}, under: make(map[string][2]Lease),
			flaps: rapid.Bool().Draw(rt, "flaps"),
		}
		m.memory.KeepPairs()
		rt.Repeat(map[string]func(*rapid.T){
			"fire": m.fire, "fire again": m.fire, "deliver": m.deliver, "deliver another": m.deliver, "resolve": m.resolve,
			"resolve another": m.resolve, "report": m.report,
			"wait": func(t *rapid.T) {
				clock.Advance(rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, 3 * time.Second, 10 * time.Minute, time.Hour}).Draw(t, "time"))
			},
		})
	})
}
