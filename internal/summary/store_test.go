package summary

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/script/scripttest"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

const (
	digestInterval = 30 * time.Minute
	digestLease    = 2 * time.Minute
)

// dropTest is a deployment whose clock the test moves.
type dropTest struct {
	*testing.T
	*Redis
	clock   *testkit.Clock
	client  *redis.Client
	reports int64
	claims  int
}

// testDrops runs a test with scripts, and with functions.
func testDrops(t *testing.T, test func(d *dropTest)) {
	t.Helper()
	t.Parallel()
	server := servertest.StartRedis(t)
	for _, way := range []script.Scripting{script.Eval, script.Functions} {
		t.Run(string(way), func(t *testing.T) {
			client := scripttest.NewClient(t, redis.Options{Addr: server.Addr})
			o, clock := scripttest.WithClock(t, script.Options{
				Client: client, Prefix: "drops-" + string(way), Timeout: scripttest.Patience, Scripting: way,
			})
			test(&dropTest{T: t, Redis: NewRedis(script.NewRunner(o), 24*time.Hour), clock: clock, client: client})
		})
	}
}

// dropped are drops for a channel at this moment, each of a path.
func dropped(channel string, paths ...Path) Counts {
	now := time.Now().Add(time.Hour) // no age, however long the test takes
	d := Counts{Channel: channel, First: now, Last: now}
	for _, path := range paths {
		name, _, _ := strings.Cut(path.Path, ".")
		at := slices.IndexFunc(d.Groups, func(g Group) bool { return g.Name == name })
		if at < 0 {
			at = len(d.Groups)
			d.Groups = append(d.Groups, Group{Name: name})
		}
		d.Groups[at].Paths = append(d.Groups[at].Paths, path)
	}
	return d
}

// path has so many drops.
func path(name string, count int64) Path { return Path{Path: name, Dropped: count} }

func (d *dropTest) report(instance string, dropping bool, drops ...Counts) {
	d.Helper()
	if len(drops) == 0 {
		drops = []Counts{{}}
	}
	for _, ofOne := range drops {
		d.reports++
		d.repeat(Report{Instance: instance, Number: d.clock.Read().UnixMicro() + d.reports, Dropping: dropping, Counts: ofOne})
	}
}

func (d *dropTest) repeat(report Report) {
	d.Helper()
	testkit.NoError(d, d.CountDrops(d.Context(), digestInterval, report))
}

// wantDue checks which channels are to be told now.
func (d *dropTest) wantDue(channels ...string) {
	d.Helper()
	due := testkit.Must(d.DueDigests(d.Context()))(d)
	if slices.Sort(due); !slices.Equal(due, channels) {
		d.Fatalf("at %v: digests for %q are due, want %q", d.clock.Read().Sub(testkit.Start), due, channels)
	}
}

// claim claims a channel's digest under a new name; it is nil if there is none.
func (d *dropTest) claim(channel string) *Digest {
	d.Helper()
	d.claims++
	digest, _ := d.claimAs(channel, fmt.Sprint("claim", d.claims))
	return digest
}

func (d *dropTest) claimAs(channel, name string) (digest *Digest, inDoubt int64) {
	d.Helper()
	digest, inDoubt, err := d.ClaimDigest(d.Context(), digestInterval, digestLease, channel, name)
	if err != nil {
		d.Fatal(err)
	}
	return digest, inDoubt
}

func (d *dropTest) wantClaim(channel string) Digest {
	d.Helper()
	digest := d.claim(channel)
	if digest == nil {
		d.Fatalf("at %v: there is no digest for %s", d.clock.Read().Sub(testkit.Start), channel)
	}
	return *digest
}

func (d *dropTest) wantNone(channel string) {
	d.Helper()
	if digest := d.claim(channel); digest != nil {
		d.Fatalf("at %v: there is a digest for %s: %+v", d.clock.Read().Sub(testkit.Start), channel, digest)
	}
}

func (d *dropTest) end(digest Digest, end DigestEnd) {
	d.Helper()
	testkit.NoError(d, d.EndDigest(d.Context(), digestInterval, digest.Channel, digest.Claim, end))
}

var done, failed = DigestEnd{State: DigestDone}, DigestEnd{State: DigestFailed, Again: 10 * time.Minute, Failure: true}

// counts are what a digest shows: path and count, the largest first.
func counts(digest Digest) string {
	var texts []string
	for _, p := range digest.Paths {
		name := p.Path
		if p.Rest {
			name += " and others"
		}
		texts = append(texts, fmt.Sprint(name, " ", p.Dropped))
	}
	return strings.Join(texts, ", ")
}

func TestDropsAddUp(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		now := time.Now().Add(time.Hour)
		first := dropped("#a",
			Path{Path: "payments.refunds", Dropped: 7, Title: "refund failed", Reasons: []Reason{{Level: "global", Dropped: 4}, {Level: "payments.*", Dropped: 3}}},
			path("payments", 2),
		)
		first.Unpaired = 5
		d.report("one", false, first, dropped("#b", path("errors", 1)))
		d.clock.Advance(20 * time.Second)
		d.report("two", false, dropped("#a",
			Path{
				Path: "payments.refunds", Dropped: 6, Title: "slow «refund»", Opens: now.Add(24 * time.Hour),
				Reasons: []Reason{{Level: "payments.*", Dropped: 6}},
			},
			Path{Path: "payments", Dropped: 2, Reasons: []Reason{{Level: "global", Dropped: 2}}},
		))
		d.clock.Advance(time.Minute)
		d.wantDue("#a", "#b")
		got := d.wantClaim("#a")
		if until := got.Paths[0].Opens.Sub(testkit.Start); until < 24*time.Hour || until > 26*time.Hour {
			t.Errorf("the slot opens after %v", until)
		}
		got.Paths[0].Opens = time.Time{}
		want := Digest{
			Channel: "#a", Claim: "claim1", Dropped: 22, Unpaired: 5, First: testkit.Start, Last: testkit.Start.Add(20 * time.Second),
			Paths: []Path{
				{Path: "payments.refunds", Dropped: 13, Title: "slow «refund»", Reasons: []Reason{{Level: "payments.*", Dropped: 9}, {Level: "global", Dropped: 4}}},
				{Path: "payments", Dropped: 4, Reasons: []Reason{{Level: "global", Dropped: 2}}},
			},
		}
		if got.First, got.Last = got.First.UTC(), got.Last.UTC(); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if other := d.wantClaim("#b"); other.Dropped != 1 || counts(other) != "errors 1" || !other.Paths[0].Opens.IsZero() {
			t.Errorf("for the other channel: %+v", other)
		}
		if keys := scripttest.WantExpiries(t, d.client); len(keys) < 3 {
			t.Errorf("only %q are there", keys)
		}
	})
}

func TestAgesOfDrops(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		now := time.Now()
		kept := dropped("#a", path("a", 2))
		kept.First, kept.Last = now.Add(-10*time.Minute), now.Add(-5*time.Minute)
		d.report("kept them for a while", false, kept)
		kept.First, kept.Last = now.Add(-20*time.Minute), now.Add(-15*time.Minute)
		d.report("kept them longer", false, kept)
		digest := d.wantClaim("#a")
		first, last := testkit.Start.Sub(digest.First), testkit.Start.Sub(digest.Last)
		if first.Round(time.Minute) != 20*time.Minute || last.Round(time.Minute) != 5*time.Minute {
			t.Errorf("first %v ago, last %v ago, want 20m and 5m", first, last)
		}
	})
}

func TestDigestAfterDropsEnd(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.wantDue()
		d.wantNone("#a")
		for i := range 5 {
			d.report("one", false, dropped("#a", path(fmt.Sprint("a", i), 1)))
			d.clock.Advance(time.Minute - time.Microsecond)
			d.wantDue()
			d.wantNone("#a")
		}
		d.clock.Advance(time.Microsecond)
		d.wantDue("#a")
		if digest := d.wantClaim("#a"); digest.Dropped != 5 {
			t.Errorf("%d drops, want 5", digest.Dropped)
		}
		d.wantDue()
		d.wantNone("#a") // it is claimed
	})
}

func TestDigestOfEachInterval(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		var claims, since []time.Duration
		var total, sent int64
		for i := range 8 * 60 { // two hours, a drop each 15 seconds, each of another path
			d.report("one", false, dropped("#a", path(fmt.Sprint("a.b", i), 1)))
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
		if !slices.Equal(claims, want) || !slices.Equal(since, want[:2]) {
			t.Errorf("digests after %v, want %v; each since the one before: %v", claims, want, since)
		}
		d.clock.Advance(time.Minute)
		if sent += d.wantClaim("#a").Dropped; sent != total {
			t.Errorf("the digests tell of %d drops of %d", sent, total)
		}
	})
}

// TestNextDigestWaits has drops after a digest, that are over long before the interval is.
func TestNextDigestWaits(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.report("one", false, dropped("#a", path("a", 1)))
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
		if digest := d.wantClaim("#a"); digest.Dropped != 2 {
			t.Errorf("%d drops, want 2", digest.Dropped)
		}
	})
}

// TestClaimLapses has an instance killed while it posts: nobody posts that digest again, and its counts go into the next.
func TestClaimLapses(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.report("one", false, dropped("#a", path("a", 3), path("b", 1)))
		d.clock.Advance(time.Minute)
		first := d.wantClaim("#a")
		d.clock.Advance(digestLease - time.Microsecond)
		d.wantDue()
		d.clock.Advance(time.Microsecond)
		d.wantDue("#a")
		if digest, inDoubt := d.claimAs("#a", "another"); digest != nil || inDoubt != 4 {
			t.Fatalf("a digest that may have been posted is claimed again: %+v; %d drops are in doubt, want 4", digest, inDoubt)
		}
		d.wantDue() // nothing is to be told
		d.clock.Advance(time.Hour)
		d.wantDue()
		d.report("one", false, dropped("#a", path("a", 10), path("c", 2)))
		d.clock.Advance(time.Minute)
		second := d.wantClaim("#a")
		if second.Dropped != 16 || second.Doubtful != 4 || counts(second) != "a 13, c 2, b 1" || !second.First.Equal(testkit.Start) {
			t.Errorf("the next one: %+v, want 16 drops, 4 of them in doubt", second)
		}
		d.end(first, done) // too late: it is told already
		d.end(second, done)
		d.clock.Advance(time.Hour)
		d.wantDue()
		testkit.EqualSlices(t, d.client.HKeys(d.Context(), d.counts("#a")).Val(), []string{"\nhead"}, "what is left of what is over")
	})
}

// TestClaimEndsLate has an instance stand still while it posts, and say what became of it after its lease.
func TestClaimEndsLate(t *testing.T) {
	for name, test := range map[string]struct {
		end            DigestEnd
		total, doubful int64 // of the next digest
	}{
		"it was posted":     {done, 5, 0},
		"it was not posted": {failed, 6, 0},
		"it does not know":  {DigestEnd{State: DigestDoubt}, 6, 1},
	} {
		t.Run(name, func(t *testing.T) {
			testDrops(t, func(d *dropTest) {
				d.report("one", false, dropped("#a", path("a", 1)))
				d.clock.Advance(time.Minute)
				late := d.wantClaim("#a")
				d.clock.Advance(digestLease)
				d.wantNone("#a") // it is in doubt
				for range 2 {
					d.end(late, test.end)
				}
				d.report("one", false, dropped("#a", path("a", 5)))
				d.clock.Advance(time.Hour)
				if next := d.wantClaim("#a"); next.Dropped != test.total || next.Doubtful != test.doubful {
					t.Errorf("the next one: %+v, want %d drops, %d of them in doubt", next, test.total, test.doubful)
				}
			})
		})
	}
}

// TestFailedDigest is claimed again, with what was counted meanwhile, as one digest.
func TestFailedDigest(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.report("one", false, dropped("#a", Path{Path: "a", Dropped: 3, Title: "old", Reasons: []Reason{{Level: "global", Dropped: 3}}}, path("b", 9)))
		d.clock.Advance(time.Minute)
		digest := d.wantClaim("#a")
		for range 2 {
			d.end(digest, failed) // the second time nothing happens
		}
		d.clock.Advance(10*time.Minute - time.Microsecond)
		d.wantDue()
		d.wantNone("#a")
		d.clock.Advance(time.Microsecond)
		d.wantDue("#a")
		again := d.wantClaim("#a")
		if again.Failures != 1 || again.Dropped != 12 || again.MoreAtLeast || again.Doubtful != 0 || counts(again) != counts(digest) {
			t.Errorf("claimed again: %+v, want what was claimed before: %+v", again, digest)
		}
		resting := DigestEnd{State: DigestFailed, Again: time.Hour}
		d.end(again, resting)
		d.report("two", false, dropped("#a", Path{Path: "a", Dropped: 5, Title: "new", Reasons: []Reason{{Level: "category", Dropped: 5}}}, path("c.d", 1)))
		d.clock.Advance(50 * time.Minute) // longer than the interval: it still is one digest
		d.wantDue()
		d.clock.Advance(10 * time.Minute)
		both := d.wantClaim("#a")
		want := Path{Path: "a", Dropped: 8, Title: "new", Reasons: []Reason{{Level: "category", Dropped: 5}, {Level: "global", Dropped: 3}}}
		if both.Failures != 1 || both.Dropped != 18 || counts(both) != "b 9, a 8, c.d 1" || !reflect.DeepEqual(both.Paths[1], want) {
			t.Errorf("claimed with what came since: %+v", both)
		}
		d.end(both, done)
		d.clock.Advance(time.Hour)
		d.wantDue()
	})
}

// TestClaimIsRepeated has the reply of a claim lost.
func TestClaimIsRepeated(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.report("one", false, dropped("#a", path("a", 1)))
		d.clock.Advance(time.Minute)
		first, _ := d.claimAs("#a", "one")
		d.report("one", false, dropped("#a", path("a", 7)))
		d.clock.Advance(digestLease) // it has lapsed, but this one knows that nothing was posted
		second, inDoubt := d.claimAs("#a", "one")
		if !reflect.DeepEqual(first, second) || first == nil || inDoubt != 0 {
			t.Errorf("claimed %+v, and again %+v", first, second)
		}
		d.clock.Advance(digestLease - time.Microsecond) // a new lease
		d.wantNone("#a")
		d.end(*second, done)
		d.clock.Advance(time.Hour)
		if next := d.wantClaim("#a"); next.Dropped != 7 || next.Doubtful != 0 {
			t.Errorf("the next one: %+v, want 7 drops", next)
		}
	})
}

func TestOneInstanceClaimsADigest(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		for i := range 20 {
			d.report("one", false, dropped(fmt.Sprint("#", i), path("a", int64(i)+1)))
		}
		d.clock.Advance(time.Minute)
		var (
			mu      sync.Mutex
			claimed = make(map[string]int64)
			work    sync.WaitGroup
		)
		for instance := range 8 {
			work.Go(func() {
				channels, err := d.DueDigests(d.Context())
				if err != nil {
					t.Error(err)
				}
				for _, channel := range channels {
					digest, _, err := d.ClaimDigest(d.Context(), digestInterval, digestLease, channel, fmt.Sprint("instance", instance))
					if err != nil {
						t.Error(err)
					}
					if digest != nil {
						mu.Lock()
						claimed[channel] += digest.Dropped
						mu.Unlock()
					}
				}
			})
		}
		work.Wait()
		for i := range 20 {
			if channel := fmt.Sprint("#", i); claimed[channel] != int64(i)+1 {
				t.Errorf("%s: the claims tell of %d drops, want %d", channel, claimed[channel], i+1)
			}
		}
	})
}

func TestAtLeast(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(d *dropTest) // 4 s after instance one has said that it is dropping
		want      bool
	}{
		"killed":                {func(*dropTest) {}, true},
		"told all":              {func(d *dropTest) { d.report("one", false) }, false},
		"drops on, then killed": {func(d *dropTest) { d.report("one", true, dropped("#a", path("a", 1))) }, true},
		"told all later":        {func(d *dropTest) { d.clock.Advance(10 * time.Second); d.report("one", false) }, false},
		"another told all":      {func(d *dropTest) { d.report("two", false) }, true},
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
				if digest = d.wantClaim("#a"); digest.AtLeast != test.want {
					t.Errorf("at least, when it is claimed again: %v, want %v", digest.AtLeast, test.want)
				}
				d.end(digest, done)
				d.report("two", false, dropped("#a", path("a", 1)), dropped("#b", path("b", 1)))
				d.clock.Advance(digestInterval)
				for _, channel := range []string{"#a", "#b"} {
					if next := d.wantClaim(channel); next.AtLeast {
						t.Errorf("what was dropped later is known: %+v", next)
					}
				}
			})
		})
	}
}

// TestDigestWaitsForWhoDrops shows that a digest is not claimed before every instance that is dropping has told what it had
// counted when it came due; or may be taken for killed.
func TestDigestWaitsForWhoDrops(t *testing.T) {
	for name, test := range map[string]struct {
		told      bool
		wait      time.Duration
		wantTotal int64
	}{
		"it tells":      {told: true, wait: 500 * time.Millisecond, wantTotal: 3},
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
				if test.told {
					late := dropped("#a", path("a", 2))
					late.First, late.Last = time.Now(), time.Now().Add(-2*time.Minute)
					d.report("one", true, late)
				}
				d.clock.Advance(time.Microsecond)
				d.wantDue("#a")
				if digest := d.wantClaim("#a"); digest.Dropped != test.wantTotal || digest.AtLeast == test.told {
					t.Errorf("digest %+v, want %d drops", digest, test.wantTotal)
				}
			})
		})
	}
}

func TestDropReportIsCountedOnce(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		report := Report{Instance: "one", Number: testkit.Start.UnixMicro(), Counts: dropped("#a", path("a", 5))}
		for range 3 {
			d.repeat(report)
		}
		next := report
		next.Number++
		d.repeat(next)
		d.repeat(report) // delayed on the way
		other := report
		other.Instance = "two"
		d.repeat(other)
		d.clock.Advance(time.Minute)
		if digest := d.wantClaim("#a"); digest.Dropped != 15 || counts(digest) != "a 15" {
			t.Errorf("%d drops, want 15: %s", digest.Dropped, counts(digest))
		}
	})
}

// TestRoomForPaths floods one first-level category with paths. Another one, that comes later, has its own room; a path that is
// larger than others finds its place; and all adds up.
func TestRoomForPaths(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		var total int64
		for from := 0; from < 5000; from += 50 {
			var paths []Path
			for i := range 50 {
				paths = append(paths, path(fmt.Sprint("payments.x", from+i), 2))
			}
			d.report("one", false, dropped("#a", paths...))
			total += 2 * 50
		}
		d.report("two", false, dropped("#a", path("security.login", 7), path("security", 1), path("payments.real", 1000)))
		for range 10 { // it stays in its place
			d.report("one", false, dropped("#a", path("payments.real", 1), path("payments.y", 3)))
		}
		unnamed := dropped("#a")
		unnamed.Groups = []Group{{Name: "payments", More: 100}}
		unnamed.More = 50
		d.report("one", false, unnamed)
		total += 7 + 1 + 1000 + 10 + 30 + 100 + 50
		d.clock.Advance(time.Minute)
		digest := d.wantClaim("#a")
		rest := total - 8 - 50 - 2*(maxPaths-2) - 1010 - 30
		want := fmt.Sprintf("payments and others %d, payments.real 1010, payments.y 30, security.login 7, ", rest)
		if got := counts(digest); !strings.HasPrefix(got, want) || len(digest.Paths) != maxDigestPaths {
			t.Errorf("the digest shows %q, want %q and %d in all", got, want, maxDigestPaths)
		}
		const morePaths = maxPaths + 2 - (maxDigestPaths - 1) // that are counted by name; one of those in the digest is the rest
		if digest.Dropped != total || digest.MorePaths != morePaths || !digest.MoreAtLeast {
			t.Errorf("%d drops of %d more paths, at least: %v; want %d of %d and others",
				digest.Dropped, digest.MorePaths, digest.MoreAtLeast, total, morePaths)
		}
		testkit.Equal(t, d.client.HLen(d.Context(), d.counts("#a")).Val(), 2, "fields are left, want the head and what is claimed")
		testkit.Equal(t, d.client.ZCard(d.Context(), d.top("#a")).Val(), 0, "first-level categories are left")
	})
}

// TestRoomForGroups has more first-level categories than are counted by name.
func TestRoomForGroups(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		var total int64
		for from := 0; from < maxGroups+100; from += 100 {
			var paths []Path
			for i := range 100 {
				paths = append(paths, path(fmt.Sprint("c", from+i, ".d"), 2))
				total += 2
			}
			d.report("one", false, dropped("#a", paths...))
		}
		testkit.Equal(t, d.client.ZCard(d.Context(), d.top("#a")).Val(), maxGroups, "first-level categories are counted by name")
		d.report("one", false, dropped("#a", path("c0.e", 5), path("more", 9)))
		total += 5 + 9
		d.clock.Advance(time.Minute)
		digest := d.wantClaim("#a")
		if digest.Dropped != total || !digest.MoreAtLeast || digest.MorePaths != maxGroups+1-maxDigestPaths || !strings.HasPrefix(counts(digest), "c0.e 5, c0.d 2") {
			t.Errorf("%d drops, %d more paths, at least: %v, %s", digest.Dropped, digest.MorePaths, digest.MoreAtLeast, counts(digest))
		}
	})
}

// TestManyLevelsOfAPath are counted by name up to a bound; the drops are counted all the same.
func TestManyLevelsOfAPath(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		many := path("a", 100)
		for i := range 2 * maxLevels {
			many.Reasons = append(many.Reasons, Reason{Level: fmt.Sprint("level ", i), Dropped: 2})
		}
		d.report("one", false, dropped("#a", many))
		d.report("two", false, dropped("#a", many))
		d.clock.Advance(time.Minute)
		if got := d.wantClaim("#a").Paths[0]; got.Dropped != 200 || len(got.Reasons) != maxLevels || got.Reasons[0].Dropped != 4 {
			t.Errorf("%+v, want 200 drops by %d levels", got, maxLevels)
		}
	})
}

// TestStrangeCounts has values that nobody here has written: what is counted next is told all the same.
func TestStrangeCounts(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		for field, text := range map[string]string{"a": "text", "\nhead": "text", "\nclaimed": "text", "b": "1\nx\ty\t", "": ""} {
			d.client.HSet(d.Context(), d.counts("#a"), field, text)
		}
		d.client.ZAdd(d.Context(), d.top("#a"), redis.Z{Score: 9, Member: "gone"})
		d.client.ZAdd(d.Context(), d.due(), redis.Z{Score: 1, Member: "#b"})
		d.wantNone("#b") // there is nothing
		d.wantDue()
		d.report("one", false, dropped("#a", path("a", 1), path("b.c", 2)))
		d.clock.Advance(time.Minute)
		if digest := d.wantClaim("#a"); digest.Dropped != 3 || counts(digest) != "b.c 2, a 1, b and others 1" {
			t.Errorf("%d drops: %s", digest.Dropped, counts(digest))
		}
	})
}

// TestWhatIsNotShown counts what is not among the paths of a digest.
func TestWhatIsNotShown(t *testing.T) {
	t.Parallel()
	shown := []Path{{Path: "a", Dropped: 5}, {Path: "b", Rest: true, Dropped: 3}}
	for name, test := range map[string]struct {
		dropped     int64
		named       int
		morePaths   int
		moreDropped int64
	}{
		"nothing":                     {10, 1, 0, 0},
		"paths that have a name":      {17, 4, 3, 7},
		"paths that have none":        {11, 1, 1, 1},
		"a name whose count is shown": {10, 0, 0, 0},
	} {
		d := Digest{Dropped: test.dropped, Unpaired: 2, Paths: shown}
		d.countOthers(test.named)
		if d.MorePaths != test.morePaths || d.MoreDropped != test.moreDropped {
			t.Errorf("%s: %d more paths with %d drops, want %d with %d", name, d.MorePaths, d.MoreDropped, test.morePaths, test.moreDropped)
		}
	}
}

func TestMalformedDigests(t *testing.T) {
	t.Parallel()
	const head = "abc posting 1 0\n1 1 1 0 0 0 0 0 0"
	now := testkit.Start.UnixMicro()
	for name, reply := range map[string][]any{
		"nothing":                  {},
		"half a digest":            {now, head},
		"a time that is none":      {"now", head, int64(0)},
		"a text that is none":      {now, now, int64(0)},
		"no counts":                {now, "abc posting 1 0", int64(0)},
		"too few words":            {now, "abc posting 1\n1 1 1 0 0 0 0 0 0", int64(0)},
		"failures that are none":   {now, "abc posting 1 x\n1 1 1 0 0 0 0 0 0", int64(0)},
		"too few numbers":          {now, "abc posting 1 0\n1 1 1 0 0 0 0 0", int64(0)},
		"a number that is too big": {now, "abc posting 1 0\n99999999999999999999 1 1 0 0 0 0 0 0", int64(0)},
		"half an entry":            {now, head + "\na\t1\t", int64(0)},
		"half a level":             {now, head + "\na\t1\t0\ttitle\tglobal\t", int64(0)},
		"a count that is none":     {now, head + "\na\tx\t0\ttitle\t", int64(0)},
		"a level's that is none":   {now, head + "\na\t1\t0\ttitle\tglobal\tx\t", int64(0)},
	} {
		if digest, _, err := decodeClaim("#a", reply); !errors.Is(err, script.ErrReply) && err == nil || digest != nil {
			t.Errorf("%s: %+v, error %v", name, digest, err)
		}
	}
}

func TestQuiet(t *testing.T) {
	t.Parallel()
	for interval, want := range map[time.Duration]time.Duration{
		time.Second: 2 * time.Second, 30 * time.Second: 3 * time.Second, 30 * time.Minute: time.Minute, 24 * time.Hour: time.Minute,
	} {
		testkit.Equal(t, quiet(interval), want, "quiet interval of %v", interval)
	}
}
