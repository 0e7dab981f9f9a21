package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// changing returns an event about the disk that counts for the rule for flapping, stored in the given minute.
func changing(id string, minute int) Request {
	r := aboutDisk(id)
	r.Message.Stored, r.Message.Sequence = testOrigin.Add(time.Duration(minute)*time.Minute), uint64(minute)
	r.Fold = Folding{Counts: true, ComesBack: 2 * time.Second, Severity: 1}
	return r
}

// testOrigin is minute 0 of these events.
var testOrigin = time.Unix(1_700_000_000, 0)

// change fires a key, or resolves its message.
func (k *pairKit) change(fires bool, id string, minute int, receipt string) {
	k.t.Helper()
	if fires {
		k.fire(changing(id, minute), receipt)
		return
	}
	k.finish(k.resolve(resolving(changing(id, minute)), Admitted, receipt).Lease, "")
}

// flap has the key of the disk change four times: the fourth change is the event "fired-3", whose message is open.
func (k *pairKit) flap() {
	k.t.Helper()
	k.change(true, "fired-1", 0, "r1")
	k.change(false, "ended-1", 2, "r1")
	k.change(true, "fired-2", 4, "r2")
	k.change(false, "ended-2", 6, "r2")
	k.fire(k.wantFlaps("fired-3", 8, true), "r3")
}

// wantFlaps asks about a firing event that is delivered, and gives its lease back.
func (k *pairKit) wantFlaps(id string, minute int, want bool) Request {
	k.t.Helper()
	r := changing(id, minute)
	d := k.want(Admitted, r)[0]
	testkit.Equal(k.t, d.Flaps, want, "whether the key of %s is flapping", id)
	k.refund(true, d.Lease)
	return r
}

// foldFlap wants an event to be folded because its key is flapping.
func (k *pairKit) foldFlap(r Request, number int64) {
	k.t.Helper()
	var d Decision
	if r.Resolves {
		d = k.resolve(r, Folded, "")
	} else {
		d = k.want(Folded, r)[0]
	}
	testkit.Require(k.t, d.Fold.Number == number && d.Fold.Flaps, "%s is folded as %+v, want number %d of a flapping key", r.ID, d.Fold, number)
}

func resolving(r Request) Request {
	r.Resolves = true
	return r
}

var flapStories = []story{
	{"after the number of changes has been lowered", func(_ *testing.T, k *pairKit) {
		k.d.settings.Flap.Changes = 10
		for i, minute := range []int{0, 2, 4} {
			receipt := fmt.Sprint("r", i)
			k.change(true, fmt.Sprint("fired-", i), minute, receipt)
			k.change(false, fmt.Sprint("ended-", i), minute+1, receipt)
		}
		k.d.settings.Flap.Changes = 4
		k.wantFlaps("fired-3", 6, true)
	}},
	{"and folds further changes", func(_ *testing.T, k *pairKit) {
		k.flap()
		k.foldFlap(resolving(changing("ended-3", 10)), 2)
		k.foldFlap(changing("fired-4", 12), 3)
		k.clock.Advance(time.Hour)
		k.foldFlap(resolving(changing("ended-3", 10)), 2) // again, after a kill
		k.foldFlap(changing("fired-4", 12), 3)
		k.foldFlap(resolving(changing("ended-4", 25)), 4)
	}},
	{"unless the changes are too far apart", func(_ *testing.T, k *pairKit) {
		k.change(true, "fired-1", 0, "r1")
		k.change(false, "ended-1", 2, "r1")
		k.change(true, "fired-2", 4, "r2")
		k.change(false, "ended-2", 6, "r2")
		k.wantFlaps("fired-3", 22, false)
	}},
	{"not by repeats and late events", func(_ *testing.T, k *pairKit) {
		k.change(true, "fired-1", 0, "r1")
		k.change(true, "again-1", 1, "r2")
		k.finish(k.resolve(resolving(changing("ended-1", 2)), Admitted, "r1", "r2").Lease, "")
		k.change(true, "late", 1, "r3")
		k.change(false, "ended-2", 3, "r3")
		k.change(true, "fired-2", 4, "r4")
		k.wantFlaps("again-2", 6, false)
	}},
	{"with the change that a limit denies", func(t *testing.T, k *pairKit) {
		k.change(true, "fired-1", 0, "r1")
		k.change(false, "ended-1", 2, "r1")
		k.Adopt(limits.Ruleset{Tree: newTree(t, "0/1h", "none", "")})
		k.want(ExceedsCapacity, changing("denied", 4))
		k.want(ExceedsCapacity, changing("denied", 4))
		k.resolve(resolving(changing("ended-2", 6)), Unpaired, "")
		k.Adopt(limits.Ruleset{Tree: newTree(t, "none", "none", "")})
		k.wantFlaps("fired-3", 8, true)
	}},
	{"and posts what is worse", func(_ *testing.T, k *pairKit) {
		k.flap()
		worse := changing("worse", 10)
		worse.Fold.Severity = 2
		testkit.Equal(k.t, k.want(Admitted, worse)[0].Flaps, true, "the key is flapping")
	}},
	{"until it is steady and fires", func(t *testing.T, k *pairKit) {
		k.flap()
		early := k.resolve(resolving(changing("any", 8)).Report(changing("any", 6).Change()), Leased, "")
		testkit.Equal(t, early.Changed, changing("any", 8).Change(), "the newest change")
		report := changing("any", 8).Report(early.Changed)
		d := k.resolve(report, Admitted, "r3")
		testkit.Equal(t, d.Resolved[0].Count.StaysOpen, true, "the message stays open")
		k.clock.Advance(testLease + time.Second)
		d = k.resolve(report, Reclaimed, "r3")
		testkit.Equal(t, d.InDoubt && d.Resolved[0].Count.StaysOpen, true, "the report is in doubt, and its message stays open")
		k.finish(d.Lease, "")
		k.resolve(report, Done, "")
		k.change(false, "ended-3", 40, "r3")
	}},
	{"until it is steady and fires, and then no message says so", func(t *testing.T, k *pairKit) {
		k.flap()
		worse := changing("worse", 10)
		worse.Fold.Severity = 2
		k.fire(worse, "r4")
		d := k.resolve(changing("any", 8).Report(changing("any", 8).Change()), Admitted, "r4", "r3")
		testkit.Equal(t, d.Resolved[0].Count.StaysOpen && d.Resolved[1].Count.StaysOpen, true, "both messages stay open")
		k.finish(d.Lease, "")
		k.finish(k.resolve(resolving(changing("ended-3", 40)), Admitted, "r3", "r4").Lease, "")
	}},
	{"until it is steady, and a message that still says so is posted", func(_ *testing.T, k *pairKit) {
		k.flap()
		worse := changing("worse", 10)
		worse.Fold.Severity = 2
		lease := k.deliver(worse)
		report := changing("any", 8).Report(changing("any", 8).Change())
		k.resolve(report, Leased, "")
		k.finish(lease, "r4")
		k.resolve(report, Admitted, "r4", "r3")
	}},
	{"until it is steady and resolved", func(t *testing.T, k *pairKit) {
		k.flap()
		k.foldFlap(resolving(changing("ended-3", 10)), 2)
		report := changing("any", 8).Report(changing("any", 10).Change())
		d := k.resolve(report, Admitted, "r3")
		testkit.Check(t, !d.Resolved[0].Count.StaysOpen && d.Resolved[0].Count.Folded == 1,
			"the report has the counts %+v, want one event in a message that ends", d.Resolved)
		k.finish(d.Lease, "")
		k.wantFlaps("fired-4", 40, false)
		k.resolve(changing("any", 8).Report(changing("any", 12).Change()), Done, "")
	}},
	{"without a message", func(_ *testing.T, k *pairKit) {
		k.flap()
		k.clock.Advance(testPairTTL + time.Second)
		k.resolve(changing("any", 8).Report(changing("any", 8).Change()), Done, "")
	}},
	{"and shows it", func(t *testing.T, k *pairKit) {
		k.flap()
		k.foldFlap(resolving(changing("ended-3", 10)), 2)
		count, _, err := k.Pairs.BeginCount(t.Context(), changing("any", 10), "r3")
		testkit.Check(t, err == nil && count.Flapping && !count.Fires, "the message shows %+v, %v, want a flapping key that is resolved", count, err)
	}},
}

func TestFlaps(t *testing.T) {
	t.Parallel()
	tellStories(t, flapStories, newTree(t, "none", "none", ""))
}
