package summary

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

var aMute = limits.Mute{Path: "a", Reason: "migration", By: "ann", Begin: testkit.Start, Until: testkit.Start.Add(2 * time.Hour), Revision: 7}

// TestCountsOfAMute counts drops by a mute beside other drops of a category.
func TestCountsOfAMute(t *testing.T) {
	t.Parallel()
	c := newCounter(func(string) string { return "#a" })
	at := time.Unix(1, 0)
	c.Add([]Drop{
		{Category: "a.b", Level: "category", N: 2},
		{Category: "a.b", Level: limits.LevelMute, N: 3, Mute: aMute.Text(), Keys: []Key{{Name: "a k", At: at, Firing: true}}},
		{Category: "a.b", Mute: aMute.Text(), Keys: []Key{{Name: "a k", At: at.Add(time.Second)}, {Name: "a j", At: at}, {Name: "a j", At: at.Add(-1), Firing: true}}},
		{Category: "a.b", Level: "category", N: 4},
	})
	counts, _ := c.take()
	testkit.Equal(t, len(counts), 2, "counts")
	testkit.Equal(t, counts[0].Channel, "#a", "channel of the other drops")
	testkit.Equal(t, counts[0].Total(), 6, "other drops")
	testkit.Equal(t, counts[1].Channel, joinName("#a", aMute.Text()), "name of the counts of the mute")
	testkit.Equal(t, counts[1].Total(), 3, "drops by the mute")
	testkit.EqualSlices(t, counts[1].Keys, []Key{{Name: "a k", At: at.Add(time.Second)}, {Name: "a j", At: at}}, "last states of keys")

	var many []Key
	for i := range maxKeys + 5 {
		many = append(many, Key{Name: fmt.Sprint("k", i), Firing: true})
	}
	c.Add([]Drop{{Category: "a", Level: limits.LevelMute, N: 1, Mute: aMute.Text(), Keys: many}})
	counts, _ = c.take()
	testkit.Equal(t, len(counts[0].Keys), maxKeys, "states of keys")
	testkit.Equal(t, counts[0].MoreKeys, true, "there are more keys")

	// All of these keys recover at once. Earlier reports may have some of them as firing.
	for i := range many {
		many[i].At, many[i].Firing = at, false
	}
	for i := range 2 * maxEndedKeys {
		many = append(many, Key{Name: fmt.Sprint("later", i)})
	}
	c.Add([]Drop{{Category: "a", Mute: aMute.Text(), Keys: many}})
	counts, _ = c.take()
	testkit.Equal(t, len(counts[0].Keys), maxEndedKeys, "states of keys that do not fire")
	testkit.EqualSlices(t, counts[0].Keys[:maxKeys+5], many[:maxKeys+5], "states of the keys that fired")
	testkit.Equal(t, counts[0].MoreKeys, false, "there are more keys that fire")
}

// TestDigestOfAMute has two instances report keys, not in the order in which their events were stored. The digest has what still fires.
func TestDigestOfAMute(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		name := joinName("#a", aMute.Text())
		key := func(name string, second int64, fires bool) Key {
			return Key{Name: "a " + name, Title: name + " is down", At: time.Unix(1000+second, 0), Firing: fires}
		}
		count := func(instance string, n int64, keys ...Key) {
			drops := dropped(name, path("a.b", n))
			drops.Keys = keys
			d.report(instance, false, drops)
		}
		count("one", 3, key("fires", 1, true), key("ended", 3, false), key("again", 2, false))
		count("two", 4, key("ended", 2, true), key("again", 5, true))
		ended := dropped(name)
		ended.Keys = []Key{key("never", 9, false)}
		d.report("one", false, ended)        // only a resolved event of a posted message
		d.clock.Advance(30 * 24 * time.Hour) // the counts live as long as a mute
		digest := d.wantClaim(name)
		testkit.Equal(d, digest.Dropped, 7, "drops")
		testkit.Equal(d, digest.Channel, "#a", "channel")
		testkit.Equal(d, digest.Mute.Mute, aMute, "mute")
		testkit.EqualSlices(d, digest.Mute.Firing, []Key{key("fires", 1, true), key("again", 5, true)}, "what fires")
		testkit.Equal(d, digest.Mute.MoreFiring, false, "more fires")
		testkit.NoError(d, d.EndDigest(d.Context(), digest.name(), digest.Claim, done))
		d.wantNone(name)

		var many []Key
		for i := range int64(maxKeys) {
			many = append(many, key(fmt.Sprint("k", i), i, i > 0))
		}
		count("one", 1, many...)
		count("two", 1, key("replaces one that has ended", 1, true), key("is one too many", 2, true))
		d.clock.Advance(time.Hour)
		digest = d.wantClaim(name)
		testkit.Equal(d, len(digest.Mute.Firing), maxKeys, "keys that fire")
		testkit.Equal(d, digest.Mute.MoreFiring, true, "more fires")
	})
}

// TestReportAfterTheEnd has due counts of a mute that is in force. Their digest is posted some seconds after the end, and shows who ended it.
func TestReportAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := startBench(t, nil)
		mute, end := aMute, time.Now().Add(time.Hour)
		mute.Begin, mute.Until = time.Now(), end.Add(time.Hour)
		b.set(func() {
			b.mutes = true
			b.changes = LimitChanges{Generation: 1, Revision: 9, Changes: []Change{
				{Revision: 8, At: end, Mute: "other", By: "eve"}, {Revision: 9, At: end, Mute: "a", By: "bob", Value: "it takes longer"}, {Revision: 10, At: end.Add(time.Second), Mute: "a", By: "eve"},
			}}
		})
		b.store.set(func() {
			b.store.due = []*Digest{{Channel: "#a", Claim: "1", Dropped: 12, Mute: &Muted{Mute: mute, Ended: mute.Until, Text: mute.Text()}}}
		})
		time.Sleep(time.Hour)
		testkit.Equal(t, len(b.posts()), 0, "posts while the mute is in force")
		b.set(func() { b.mutes = false })
		time.Sleep(believed / 2)
		testkit.Equal(t, len(b.posts()), 0, "posts right after the end")
		time.Sleep(2 * believed)
		posts := b.posts()
		testkit.Equal(t, len(posts), 1, "posts after the end")
		testkit.Equal(t, posts[0].Mute.Ended, end, "end of the mute")
		testkit.Equal(t, posts[0].Mute.EndedBy, "bob", "who ended the mute")
		testkit.Equal(t, posts[0].Mute.Replaced, true, "another mute is in its place")
		ends := b.store.ends()
		testkit.Equal(t, slices.ContainsFunc(ends, func(e ended) bool { return e.channel == posts[0].name() }), true, "the end of the digest is recorded")
	})
}

// TestMuteEndsByTheClockOfNATS has a mute whose end no change of live limits shows. The clock of the host does not matter.
func TestMuteEndsByTheClockOfNATS(t *testing.T) {
	t.Parallel()
	for reported, want := range map[time.Time]time.Time{
		aMute.Until.Add(time.Minute): aMute.Until,
		aMute.Begin.Add(time.Minute): aMute.Begin.Add(time.Minute),
	} {
		r := &Reporter{o: Options{Now: func() time.Time { return reported }}}
		d := r.complete(Digest{Mute: &Muted{Mute: aMute, Ended: aMute.Until}}, LimitChanges{})
		testkit.Equal(t, d.Mute.Ended, want, "end of the mute, reported at %v", reported)
	}
}
