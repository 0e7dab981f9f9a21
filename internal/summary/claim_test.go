package summary

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestDigestAfterDropsEnd(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.wantDue()
		d.wantNone("#a")
		for i := range 5 {
			d.drop(path(fmt.Sprint("a", i), 1))
			d.clock.Advance(time.Minute - time.Microsecond)
			d.wantDue()
			d.wantNone("#a")
		}
		d.clock.Advance(time.Microsecond)
		d.wantDue("#a")
		d.wantDrops(5, 0)
		d.wantDue()
		d.wantNone("#a") // it is claimed
	})
}

func TestDigestOfEachInterval(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		var claims, since []time.Duration
		var total, sent int64
		for i := range 8 * 60 { // two hours, a drop each 15 seconds, each of another path
			d.drop(path(fmt.Sprint("a.b", i), 1))
			total++
			if digest := d.claim("#a"); digest != nil {
				claims = append(claims, d.clock.Read().Sub(testkit.Start))
				if !digest.Since.IsZero() {
					since = append(since, digest.Since.Sub(testkit.Start))
				}
				sent += digest.Dropped
				d.end(*digest, done)
			}
			d.clock.Advance(15 * time.Second)
		}
		want := []time.Duration{30 * time.Minute, 60*time.Minute + 15*time.Second, 90*time.Minute + 30*time.Second}
		testkit.Check(t, slices.Equal(claims, want) && slices.Equal(since, want[:2]),
			"digests after %v, want %v; each since the one before: %v", claims, want, since)
		d.clock.Advance(time.Minute)
		testkit.Equal(t, sent+d.wantClaim("#a").Dropped, total, "drops of all digests")
	})
}

// TestNextDigestWaits has drops right after a digest. They wait for the end of the interval.
func TestNextDigestWaits(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.drop(path("a", 1))
		d.clock.Advance(time.Minute)
		d.end(d.wantClaim("#a"), done)
		d.wantDue()
		d.clock.Advance(time.Minute)
		d.report("one", false, dropped("#a", path("a", 2)), dropped("#b", path("b", 3)))
		d.clock.Advance(time.Minute)
		d.wantDue("#b")
		d.clock.Advance(27*time.Minute + 59*time.Second)
		d.wantNone("#a")
		d.clock.Advance(time.Second)
		d.wantDrops(2, 0)
	})
}

// TestClaimLapses kills an instance while it posts. The digest is in doubt, and nothing of the channel is claimed, until an instance has
// looked for it. If nobody can look, the next digest includes its counts.
func TestClaimLapses(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.drop(path("a", 3), path("b", 1))
		d.clock.Advance(time.Minute)
		first := d.wantClaim("#a")
		d.clock.Advance(lease - time.Microsecond)
		d.wantDue()
		d.clock.Advance(time.Microsecond)
		d.wantDue("#a")
		d.wantDoubt(first, lease)
		d.wantDue() // an instance looks for it
		d.wantNone("#a")
		d.clock.Advance(lookLease)
		d.wantDue("#a") // it did not say what it found
		d.wantDoubt(first, lease+lookLease)
		d.end(first, carried)
		d.wantDue() // without new drops no digest is due
		d.clock.Advance(time.Hour)
		d.wantDue()
		d.drop(path("a", 10), path("c", 2))
		d.clock.Advance(time.Minute)
		second := d.wantDrops(16, 4)
		testkit.Check(t, counts(second) == "a 13, c 2, b 1" && second.First.Equal(testkit.Start),
			"the next one: %+v, want the first time and counts of both", second)
		d.end(first, done) // too late: the counts are in the second digest
		d.end(second, done)
		d.clock.Advance(time.Hour)
		d.wantDue()
		testkit.EqualSlices(t, d.client.HKeys(d.Context(), d.runner.Key("drops:counts:#a")).Val(), []string{"\nhead"}, "fields after the last digest")
	})
}

func TestClaimEndsLate(t *testing.T) {
	for name, test := range map[string]struct {
		end             DigestEnd
		total, doubtful int64 // of the next digest
	}{
		"it was posted":     {done, 5, 0},
		"it was not posted": {failed, 6, 0},
		"nobody can know":   {carried, 6, 1},
	} {
		t.Run(name, func(t *testing.T) {
			testDrops(t, func(d *dropTest) {
				d.drop(path("a", 1))
				d.clock.Advance(time.Minute)
				late := d.wantClaim("#a")
				d.clock.Advance(lease)
				d.wantDoubt(late, lease)
				for range 2 {
					d.end(late, test.end)
				}
				d.drop(path("a", 5))
				d.clock.Advance(time.Hour)
				d.wantDrops(test.total, test.doubtful)
			})
		})
	}
}

// A failed digest is claimed again as one digest, with the counts since then.
func TestFailedDigest(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.drop(Path{Path: "a", Dropped: 3, Title: "old", Reasons: []Reason{{Level: "global", Dropped: 3}}}, path("b", 9))
		d.clock.Advance(time.Minute)
		digest := d.wantClaim("#a")
		for range 2 {
			d.end(digest, failed) // the second call changes nothing
		}
		d.clock.Advance(10*time.Minute - time.Microsecond)
		d.wantDue()
		d.wantNone("#a")
		d.clock.Advance(time.Microsecond)
		d.wantDue("#a")
		again := d.wantClaim("#a")
		testkit.Check(t, again.Failures == 1 && again.Dropped == 12 && !again.MoreAtLeast && again.Doubtful == 0 && counts(again) == counts(digest),
			"claimed again: %+v, want what was claimed before: %+v", again, digest)
		resting := DigestEnd{State: DigestFailed, Again: time.Hour}
		d.end(again, resting)
		d.report("two", false, dropped("#a", Path{Path: "a", Dropped: 5, Title: "new", Reasons: []Reason{{Level: "category", Dropped: 5}}}, path("c.d", 1)))
		d.clock.Advance(50 * time.Minute) // longer than the interval
		d.wantDue()
		d.clock.Advance(10 * time.Minute)
		both := d.wantClaim("#a")
		want := Path{Path: "a", Dropped: 8, Title: "new", Reasons: []Reason{{Level: "category", Dropped: 5}, {Level: "global", Dropped: 3}}}
		testkit.Check(t, both.Failures == 1 && both.Dropped == 18 && counts(both) == "b 9, a 8, c.d 1" && reflect.DeepEqual(both.Paths[1], want),
			"got %+v, want the counts of both as one digest", both)
		d.end(both, done)
		d.clock.Advance(time.Hour)
		d.wantDue()
	})
}

// TestClaimIsRepeated repeats a claim whose reply was lost.
func TestClaimIsRepeated(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.drop(path("a", 1))
		d.clock.Advance(time.Minute)
		first, _ := d.claimAs("#a", "one")
		d.drop(path("a", 7))
		d.clock.Advance(lease) // has ended, but the same claim knows that nothing was posted
		second, doubt := d.claimAs("#a", "one")
		testkit.Check(t, reflect.DeepEqual(first, second) && first != nil && !doubt, "got %+v, and again %+v, want one digest twice", first, second)
		d.clock.Advance(lease - time.Microsecond) // a new lease
		d.wantNone("#a")
		d.end(*second, done)
		d.clock.Advance(time.Hour)
		d.wantDrops(7, 0)
	})
}

func TestAtLeast(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(d *dropTest) // 4 s after instance one reported that it is dropping
		want      bool
	}{
		"killed":                {func(*dropTest) {}, true},
		"reported all":          {func(d *dropTest) { d.report("one", false) }, false},
		"drops on, then killed": {func(d *dropTest) { d.report("one", true, dropped("#a", path("a", 1))) }, true},
		"reported all later":    {func(d *dropTest) { d.clock.Advance(10 * time.Second); d.report("one", false) }, false},
		"another reported all":  {func(d *dropTest) { d.report("two", false) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			testDrops(t, func(d *dropTest) {
				d.report("one", true, dropped("#a", path("a", 1)))
				d.report("two", false, dropped("#a", path("a", 1)))
				d.clock.Advance(4 * time.Second)
				test.meanwhile(d)
				d.clock.Advance(time.Minute)
				digest := d.wantClaim("#a")
				testkit.Equal(t, digest.AtLeast, test.want, "at least")
				d.end(digest, failed)
				d.clock.Advance(failed.Again)
				digest = d.wantClaim("#a")
				testkit.Equal(t, digest.AtLeast, test.want, "at least, in the next claim")
				d.end(digest, done)
				d.report("two", false, dropped("#a", path("a", 1)), dropped("#b", path("b", 1)))
				d.clock.Advance(interval)
				for _, channel := range []string{"#a", "#b"} {
					next := d.wantClaim(channel)
					testkit.Check(t, !next.AtLeast, "got %+v, want exact counts of later drops", next)
				}
			})
		})
	}
}

// TestDigestWaitsForWhoDrops claims a due digest only after each dropping instance has reported, or counts as killed.
func TestDigestWaitsForWhoDrops(t *testing.T) {
	for name, test := range map[string]struct {
		reports   bool
		wait      time.Duration
		wantTotal int64
	}{
		"it reports":    {reports: true, wait: 500 * time.Millisecond, wantTotal: 3},
		"it was killed": {wait: 4500 * time.Millisecond, wantTotal: 1},
	} {
		t.Run(name, func(t *testing.T) {
			testDrops(t, func(d *dropTest) {
				d.report("two", false, dropped("#a", path("a", 1)))
				d.clock.Advance(time.Minute - 500*time.Millisecond)
				d.report("one", true, dropped("#b", path("b", 1)))
				d.clock.Advance(500 * time.Millisecond)
				d.wantDue()
				d.wantNone("#a")
				d.clock.Advance(test.wait - time.Microsecond)
				d.wantNone("#a")
				if test.reports {
					late := dropped("#a", path("a", 2))
					late.First, late.Last = time.Now(), time.Now().Add(-2*time.Minute)
					d.report("one", true, late)
				}
				d.clock.Advance(time.Microsecond)
				d.wantDue("#a")
				if digest := d.wantClaim("#a"); digest.Dropped != test.wantTotal || digest.AtLeast == test.reports {
					t.Errorf("digest %+v, want %d drops", digest, test.wantTotal)
				}
			})
		})
	}
}

// TestEachChangeInOneDigest claims digests while limits change. Each digest begins with the revision behind the digest before it.
func TestEachChangeInOneDigest(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		next := func(generation int64, revision uint64, after time.Duration) Digest {
			t.Helper()
			d.known = LimitChanges{Generation: generation, Revision: revision}
			d.drop(path("a", 1))
			d.clock.Advance(after)
			return d.wantClaim("#a")
		}
		want := func(digest Digest, from, before uint64) {
			t.Helper()
			testkit.Check(t, digest.FromRevision == from && digest.BeforeRevision == before,
				"revisions: got %d to before %d, want %d to before %d", digest.FromRevision, digest.BeforeRevision, from, before)
		}
		first := next(1, 0, time.Hour)
		want(first, 0, 1) // the bucket is empty
		d.end(first, done)
		second := next(1, 3, time.Hour)
		want(second, 1, 4)
		d.known.Revision = 5
		repeated, _ := d.claimAs("#a", second.Claim)
		testkit.Check(t, repeated != nil && repeated.BeforeRevision == 4, "the same claim again: got %+v, want the same revisions", repeated)
		d.end(second, failed)
		third := next(1, 5, time.Hour)
		want(third, 1, 6) // with the changes of the digest that was not posted
		d.end(third, failed)
		fewer := next(1, 2, time.Hour)
		want(fewer, 1, 3) // this instance has not read the changes 3 to 5
		d.end(fewer, done)
		fourth := next(1, 5, time.Hour)
		want(fourth, 3, 6)
		d.end(fourth, done)
		late := next(1, 4, time.Hour)
		want(late, 6, 6) // this instance has not read the newest change
		d.end(late, done)
		unknown := next(0, 0, time.Hour)
		want(unknown, 0, 0)
		d.end(unknown, done)
		after := next(1, 7, time.Hour)
		want(after, 6, 8)
		d.end(after, done)
		want(next(2, 1, time.Hour), 0, 2) // the bucket was recreated
	})
}

// inRound reports drops that an instance took in a round.
func (d *dropTest) inRound(instance string, round int64, dropping bool, drops Counts) {
	d.Helper()
	d.reports++
	d.repeat(Report{Instance: instance, Number: d.clock.Read().UnixMicro() + d.reports, Round: round, Dropping: dropping, Counts: drops})
}

// TestDigestHasItsRounds has two instances count drops up to a claim and after it. Each digest has the rounds whose drops it counts, also if
// it takes over the counts of a digest that failed, or that is in doubt.
func TestDigestHasItsRounds(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		wantRounds := func(digest Digest, total int64, want ...Rounds) {
			t.Helper()
			testkit.Equal(t, digest.Dropped, total, "drops")
			testkit.EqualSlices(t, digest.Rounds, want, "rounds")
		}
		one := dropped("#a", path("a", 1))
		d.inRound("one", 1, true, dropped("#b", path("b", 1)))
		d.inRound("one", 2, true, one)
		d.inRound("two", 1, false, one)
		d.inRound("one", 4, false, one)
		d.clock.Advance(time.Minute)
		first := d.wantClaim("#a")
		wantRounds(first, 3, Rounds{"one", 2, 4}, Rounds{"two", 1, 1})
		d.inRound("one", 5, false, one) // counted while the first digest is posted
		d.end(first, done)
		d.clock.Advance(interval)
		second := d.wantClaim("#a")
		wantRounds(second, 1, Rounds{"one", 5, 5})
		d.end(second, failed)
		d.inRound("one", 6, false, one)
		d.inRound("two", 2, false, one)
		d.clock.Advance(interval)
		third := d.wantClaim("#a")
		wantRounds(third, 3, Rounds{"one", 5, 6}, Rounds{"two", 2, 2})
		d.end(third, DigestEnd{State: DigestDoubt})
		d.wantDoubt(third, 0)
		d.end(third, carried)
		d.inRound("two", 3, false, one)
		d.clock.Advance(interval)
		fourth := d.wantClaim("#a")
		wantRounds(fourth, 4, Rounds{"two", 2, 3}, Rounds{"one", 5, 6})
		repeated, _ := d.claimAs("#a", fourth.Claim)
		wantRounds(*repeated, 4, fourth.Rounds...)
	})
}

// TestManyInstances has workers that restart all the time count drops for one digest. It keeps the rounds of the newest instances.
func TestManyInstances(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		const instances = 250
		for i := range instances {
			d.inRound(fmt.Sprint("worker-", i), 1, false, dropped("#a", path("a", 1)))
		}
		d.clock.Advance(time.Minute)
		digest := d.wantDrops(instances, 0)
		testkit.Equal(t, len(digest.Rounds), 200, "instances")
		testkit.Equal(t, digest.Rounds[199].Instance, "worker-249", "the newest one")
	})
}

// TestManyDueDigests has more due digests than one call lists.
func TestManyDueDigests(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		var channels []string
		for i := range 2*duePage + 1 {
			channels = append(channels, fmt.Sprintf("#%04d", i))
			d.report("one", false, dropped(channels[i], path("a", 1)))
		}
		d.clock.Advance(interval)
		d.wantDue(channels...)
	})
}
