package store

import (
	"fmt"
	"testing"
	"time"

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
	testkit.Require(k.t, decision.Verdict == Folded && decision.Fold != nil && decision.Fold.Number == number,
		"%q: %s, %+v, want number %d of its message", r.ID, decision.Verdict, decision.Fold, number)
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
		k.want(Duplicate, folding("second", 1).inMessage(9))
		lookedUp := aboutDisk("third")
		lookedUp.Cost = 0
		k.fold(lookedUp, 3)
		k.finish(k.resolve(aboutDisk("resolved"), Admitted, "r").Lease, "")
		k.fold(folding("second", 1), 2)
		k.want(Admitted, folding("fourth", 1))
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
		testkit.Check(t, decisions[1].Awaits && decisions[1].Wait == 2*time.Second,
			"the second event waits %v for its message (%t), want 2s", decisions[1].Wait, decisions[1].Awaits)
		k.clock.Advance(testLease + time.Second) // the message may be out
		k.want(Leased, folding("second", 1))
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
		k.want(Leased, folding("second", 1))
		k.refund(true, first)
		k.want(Admitted, folding("second", 1))
		k.want(Leased, folding("first", 1))
	}},
	{"into a message that may not exist", func(_ *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "")
		k.want(Admitted, folding("second", 1))
	}},
	{"into a message that cannot be updated", func(t *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "r1")
		k.fold(folding("second", 1), 2)
		for range 2 {
			testkit.NoError(t, k.Pairs.GiveUp(t.Context(), folding("any", 1), "r1"))
		}
		testkit.EqualSlices(t, testkit.Must(k.Pairs.Uncounted(t.Context(), []Request{folding("any", 1)}))(t)[0], nil, "messages that show too little")
		k.fold(folding("second", 1), 2) // it has ended
		k.fire(folding("third", 1), "r2")
		k.fold(folding("fourth", 1), 2)
		k.resolve(aboutDisk("resolved"), Admitted, "", "r2")
	}},
	{"behind a resolved event that was stored before", func(_ *testing.T, k *pairKit) {
		k.fire(folding("first", 1).inMessage(10), "r")
		k.fold(folding("second", 1).inMessage(30), 2)
		resolution := k.resolve(aboutDisk("resolved").inMessage(20), Folded, "")
		testkit.Equal(k.t, resolution.Fold.Number, 3, "number of the resolved event")
		testkit.Equal(k.t, k.resolve(aboutDisk("resolved").inMessage(20), Folded, "").Fold.Number, 3, "number of the resolved event, asked again")
		k.resolve(aboutDisk("resolved again").inMessage(40), Admitted, "r")
	}},
	{"behind a resolved event that was stored before, and before a worse event was posted", func(_ *testing.T, k *pairKit) {
		k.fire(folding("first", 1).inMessage(10), "r")
		k.fold(folding("second", 1).inMessage(30), 2)
		k.fire(folding("worse", 2).inMessage(15), "r2") // it waited meanwhile
		k.resolve(aboutDisk("resolved").inMessage(20), Folded, "")
		k.resolve(aboutDisk("resolved again").inMessage(40), Admitted, "r", "r2")
	}},
	{"and is posted once more without Redis", func(_ *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "r1")
		k.fold(folding("second", 1), 2)
		again := Lease{Request: folding("second", 1).inMessage(7), Receipt: "r2"}
		for range 2 {
			k.restore(Admission{Lease: again, At: time.Now(), Became: WasDelivered})
		}
		k.finish(k.resolve(aboutDisk("resolved").inMessage(9), Admitted, "r1", "r2").Lease, "")
		k.clock.Advance(time.Minute)
		k.fire(folding("firing again", 1).inMessage(10), "r3")
		k.fold(folding("folded", 1).inMessage(11), 2)
		k.restore(Admission{Lease: again, At: time.Now(), Became: WasDelivered}) // its message is resolved already
		k.resolve(aboutDisk("resolved again").inMessage(12), Admitted, "r3")
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
		testkit.Check(t, len(resolution.Resolved) == 1 && resolution.Resolved[0].Count.Folded == 4 && resolution.Resolved[0].Count.Severity == 2,
			"the resolved event has the counts %+v, want 4 events in one message", resolution.Resolved)
		begin("r", 0, 0)
	}},
	{"long after they were stored", func(t *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "r")
		k.clock.Advance(20 * time.Minute)
		for i, after := range []time.Duration{2 * time.Minute, time.Minute} { // the second one was stored before
			late := folding(fmt.Sprint("late", i), 1)
			late.Message.Stored = start.Add(after)
			k.fold(late, int64(2+i))
		}
		count, _, err := k.Pairs.BeginCount(t.Context(), folding("any", 1), "r")
		testkit.NoError(t, err)
		testkit.Equal(t, count.Last, start.Add(2*time.Minute).UTC(), "when the newest was stored")
	}},
	{"of an event whose own message is resolved", func(_ *testing.T, k *pairKit) {
		k.fire(folding("first", 1), "r")
		k.clock.Advance(testRetention + time.Second)
		again := folding("first", 1).inMessage(9)
		again.Fold.Within = testPairTTL
		k.fold(again, 2)
		k.finish(k.resolve(aboutDisk("resolved").inMessage(20), Admitted, "r").Lease, "")
		k.fold(again, 2)
	}},
	{"reminder of a folded event", func(_ *testing.T, k *pairKit) {
		k.d.settings.Remind = testRetention / 4
		k.fire(folding("first", 1).inMessage(5), "r")
		second := folding("second", 1).inMessage(10)
		k.fold(second, 2)
		k.repeat(second.inMessage(30), NotDue)
		k.clock.Advance(k.d.settings.Remind + time.Second)
		k.repeat(folding("other", 1).inMessage(30), NotDue)
		k.repeat(second, NotDue) // the folded message itself
		k.fold(second, 2)
		k.repeat(second.inMessage(30), mostPairMessages)
		lease := k.deliver(second.inMessage(30).Reminder(mostPairMessages))
		k.want(Duplicate, second.inMessage(31).Reminder(mostPairMessages)) // another worker has another repetition
		k.resolve(aboutDisk("resolved").inMessage(20), Leased, "")         // stored before the repetition: the reminder goes with its event
		k.fold(folding("third", 1).inMessage(11), 3)
		k.repeat(second.inMessage(30), mostPairMessages) // the reminder goes on
		k.repeat(second.inMessage(31), NotDue)
		k.finish(lease, "r2")
		k.repeat(second.inMessage(30), Posted)
		k.repeat(second.inMessage(31), NotDue)
		k.clock.Advance(k.d.settings.Remind + time.Second)
		k.repeat(second.inMessage(32), 1)
		k.fire(second.inMessage(32).Reminder(1), "r3")
		k.resolve(aboutDisk("resolved").inMessage(20), Admitted, "r", "r2", "r3")
		k.clock.Advance(k.d.settings.Remind + time.Second)
		k.repeat(second.inMessage(33), NotDue)
	}},
	{"reminder", func(t *testing.T, k *pairKit) {
		k.fire(folding("a first", 1), "r")
		k.want(Admitted, folding("a first", 1).inMessage(7).Reminder(1))
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
			k.want(Folded, r)
		}
		k.clock.Advance(testRetention + time.Second)
	}
	for _, key := range []string{k.d.keys.done, k.d.keys.message, k.d.keys.taken} {
		testkit.AtMost(t, k.client.ZCard(t.Context(), key).Val(), 41, "members of %s, those of the last rounds only", key)
	}
}

// TestFoldedEventIsNotBeingDelivered folds an event whose first delivery was taken back. In both stores, other events of the key do not wait for a
// later message with its ID, which is about another key.
func TestFoldedEventIsNotBeingDelivered(t *testing.T) {
	t.Parallel()
	settings := pairSettings(t)
	memorySubject := newMemorySubject(t, settings)
	memory, _ := memorySubject.anyStore.(inMemory)
	memory.KeepPairs()
	_, client := startRedis(t)
	for _, s := range []*subject{memorySubject, newRedisSubject(t, client, settings)} {
		posted := s.admit(folding("first", 1))[0]
		posted.Receipt = "r"
		s.finish(posted)
		second := folding("second", 1)
		second.Fold.Within, second.Fold.Counts = 0, true
		s.refund(true, s.admit(second)...)
		s.want(Folded, folding("second", 1))
		s.clock.Advance(testRetention + time.Second)
		s.admit(request("second", "a").inMessage(2).ofPair("cpu"))
		s.want(Admitted, folding("third", 2))
	}
}
