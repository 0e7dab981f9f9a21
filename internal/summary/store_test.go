package summary

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// dropTest is a store whose clock the test moves.
type dropTest struct {
	*testing.T
	*Redis
	clock   *testkit.Clock
	client  *redis.Client
	known   LimitChanges // at each claim
	reports int64
	claims  int
}

// testDrops runs a test with scripts and with functions.
func testDrops(t *testing.T, test func(d *dropTest)) {
	t.Helper()
	t.Parallel()
	client := scripttest.NewClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	for _, way := range scripttest.Ways(t) {
		t.Run(string(way), func(t *testing.T) {
			o, clock := scripttest.WithClock(t, script.Options{
				Client: client, Prefix: "drops-" + string(way), Timeout: scripttest.Patience, Scripting: way,
			})
			test(&dropTest{T: t, Redis: NewRedis(script.NewRunner(o), interval, 24*time.Hour), clock: clock, client: client})
		})
	}
}

// dropped makes the counts of a channel, by path.
func dropped(channel string, paths ...Path) Counts {
	now := time.Now().Add(time.Hour) // the counts have no age
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

// drop reports drops for the channel #a.
func (d *dropTest) drop(paths ...Path) {
	d.Helper()
	d.report("one", false, dropped("#a", paths...))
}

func (d *dropTest) repeat(report Report) {
	d.Helper()
	testkit.NoError(d, d.CountDrops(d.Context(), report))
}

// wantDue compares the channels with a due digest.
func (d *dropTest) wantDue(channels ...string) {
	d.Helper()
	due := testkit.Must(d.DueDigests(d.Context()))(d)
	if slices.Sort(due); !slices.Equal(due, channels) {
		d.Fatalf("at %v: digests for %q are due, want %q", d.clock.Read().Sub(testkit.Start), due, channels)
	}
}

// claim claims a channel's digest under a new name. It returns nil without a digest.
func (d *dropTest) claim(channel string) *Digest {
	d.Helper()
	d.claims++
	digest, _ := d.claimAs(channel, fmt.Sprint("claim", d.claims))
	return digest
}

func (d *dropTest) claimAs(channel, name string) (digest *Digest, inDoubt bool) {
	d.Helper()
	claimed := testkit.Must(d.ClaimDigest(d.Context(), channel, name, d.known))(d)
	return claimed.Digest, claimed.InDoubt
}

// wantDoubt wants a digest of the channel #a to be in doubt.
func (d *dropTest) wantDoubt(of Digest, age time.Duration) {
	d.Helper()
	claimed := testkit.Must(d.ClaimDigest(d.Context(), "#a", "another", d.known))(d)
	if !claimed.InDoubt || claimed.Age != age || !reflect.DeepEqual(*claimed.Digest, of) {
		d.Fatalf("at %v: claimed %+v, want %+v in doubt since %v", d.clock.Read().Sub(testkit.Start), claimed, of, age)
	}
}

func (d *dropTest) wantClaim(channel string) Digest {
	d.Helper()
	digest := d.claim(channel)
	if digest == nil {
		d.Fatalf("at %v: there is no digest for %s", d.clock.Read().Sub(testkit.Start), channel)
	}
	return *digest
}

// wantDrops claims the digest of the channel #a, and checks its counts.
func (d *dropTest) wantDrops(total, doubtful int64) Digest {
	d.Helper()
	digest := d.wantClaim("#a")
	testkit.Check(d, digest.Dropped == total && digest.Doubtful == doubtful,
		"digest %+v, want %d drops, %d of them in doubt", digest, total, doubtful)
	return digest
}

func (d *dropTest) wantNone(channel string) {
	d.Helper()
	if digest := d.claim(channel); digest != nil {
		d.Fatalf("at %v: there is a digest for %s: %+v", d.clock.Read().Sub(testkit.Start), channel, digest)
	}
}

func (d *dropTest) end(digest Digest, end DigestEnd) {
	d.Helper()
	testkit.NoError(d, d.EndDigest(d.Context(), digest.Channel, digest.Claim, end))
}

var (
	done    = DigestEnd{State: DigestDone}
	failed  = DigestEnd{State: DigestFailed, Again: 10 * time.Minute, Failure: true}
	carried = DigestEnd{State: DigestCarried}
)

// counts prints the paths and counts of a digest.
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
		until := got.Paths[0].Opens.Sub(testkit.Start)
		testkit.Check(t, until >= 24*time.Hour && until <= 26*time.Hour, "got a slot that opens after %v, want about a day", until)
		got.Paths[0].Opens = time.Time{}
		want := Digest{
			Channel: "#a", Claim: "claim1", Dropped: 22, Unpaired: 5, First: testkit.Start, Last: testkit.Start.Add(20 * time.Second), Rounds: []Rounds{{Instance: "one"}, {Instance: "two"}},
			Paths: []Path{
				{Path: "payments.refunds", Dropped: 13, Title: "slow «refund»", Reasons: []Reason{{Level: "payments.*", Dropped: 9}, {Level: "global", Dropped: 4}}},
				{Path: "payments", Dropped: 4, Reasons: []Reason{{Level: "global", Dropped: 2}}},
			},
		}
		got.First, got.Last = got.First.UTC(), got.Last.UTC()
		testkit.EqualDeeply(t, got, want, "digest")
		if other := d.wantClaim("#b"); other.Dropped != 1 || counts(other) != "errors 1" || !other.Paths[0].Opens.IsZero() {
			t.Errorf("the other channel: got %+v, want one drop", other)
		}
		keys := scripttest.WantExpiries(t, d.client)
		testkit.Check(t, len(keys) >= 3, "got the keys %q, want three at least", keys)
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
		testkit.Check(t, first.Round(time.Minute) == 20*time.Minute && last.Round(time.Minute) == 5*time.Minute,
			"first %v ago, last %v ago, want 20m and 5m", first, last)
	})
}

func TestDropReportIsCountedOnce(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		report := Report{Instance: "one", Number: testkit.Start.UnixMicro(), Counts: dropped("#a", path("a", 5))}
		next, other := report, report
		next.Number++
		other.Instance = "two"
		for _, sent := range []Report{report, report, report, next, report, other} { // one of them delayed on the way
			d.repeat(sent)
		}
		d.clock.Advance(time.Minute)
		testkit.Equal(t, counts(d.wantDrops(15, 0)), "a 15", "shown")
	})
}

// TestRoomForPaths floods one first-level category with paths. A later category has its own room. A larger path replaces a smaller one.
// All drops add up.
func TestRoomForPaths(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		var total int64
		for from := 0; from < 5000; from += 50 {
			var paths []Path
			for i := range 50 {
				paths = append(paths, path(fmt.Sprint("payments.x", from+i), 2))
			}
			d.drop(paths...)
			total += 2 * 50
		}
		d.report("two", false, dropped("#a", path("security.login", 7), path("security", 1), path("payments.real", 1000)))
		for range 10 { // it stays in its place
			d.drop(path("payments.real", 1), path("payments.y", 3))
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
		testkit.Check(t, digest.Dropped == total && digest.MorePaths == morePaths && digest.MoreAtLeast,
			"%d drops of %d more paths, at least: %v; want %d of %d and others", digest.Dropped, digest.MorePaths, digest.MoreAtLeast, total, morePaths)
		testkit.Equal(t, d.client.HLen(d.Context(), d.runner.Key("drops:counts:#a")).Val(), 2, "fields are left, want the head and what is claimed")
		testkit.Equal(t, d.client.ZCard(d.Context(), d.runner.Key("drops:top:#a")).Val(), 0, "first-level categories are left")
	})
}

func TestRoomForGroups(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		var total int64
		for from := 0; from < maxGroups+100; from += 100 {
			var paths []Path
			for i := range 100 {
				paths = append(paths, path(fmt.Sprint("c", from+i, ".d"), 2))
				total += 2
			}
			d.drop(paths...)
		}
		testkit.Equal(t, d.client.ZCard(d.Context(), d.runner.Key("drops:top:#a")).Val(), maxGroups, "first-level categories are counted by name")
		d.drop(path("c0.e", 5), path("more", 9))
		total += 5 + 9
		d.clock.Advance(time.Minute)
		digest := d.wantClaim("#a")
		if digest.Dropped != total || !digest.MoreAtLeast || digest.MorePaths != maxGroups+1-maxDigestPaths || !strings.HasPrefix(counts(digest), "c0.e 5, c0.d 2") {
			t.Errorf("got %d drops, %d more paths, at least: %v, %s, want %d drops and more paths at least", digest.Dropped, digest.MorePaths, digest.MoreAtLeast, counts(digest), total)
		}
	})
}

// The levels of a path are bounded. Their drops are counted all the same.
func TestManyLevelsOfAPath(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		many := path("a", 100)
		for i := range 2 * maxLevels {
			many.Reasons = append(many.Reasons, Reason{Level: fmt.Sprint("level ", i), Dropped: 2})
		}
		d.drop(many)
		d.report("two", false, dropped("#a", many))
		d.clock.Advance(time.Minute)
		if got := d.wantClaim("#a").Paths[0]; got.Dropped != 200 || len(got.Reasons) != maxLevels || got.Reasons[0].Dropped != 4 {
			t.Errorf("%+v, want 200 drops by %d levels", got, maxLevels)
		}
	})
}

// TestClockOfDropsGoesBack has the clock of the server go back by a day, as after a failover: with drops, while a digest is posted, and after
// a digest. Digests go on.
func TestClockOfDropsGoesBack(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		goesBack := func() {
			d.clock.Advance(-24 * time.Hour)
			d.reports += (24 * time.Hour).Microseconds() // the clock of the instance goes on
		}
		d.clock.Advance(24 * 365 * time.Hour)
		d.drop(path("a", 1))
		goesBack()
		d.wantDue("#a")
		digest := d.wantDrops(1, 0)
		d.wantDue()

		goesBack()
		d.wantDue("#a")
		claimed := testkit.Must(d.ClaimDigest(d.Context(), "#a", "another", d.known))(d)
		testkit.Require(t, claimed.InDoubt && claimed.Age >= time.Hour && claimed.Age <= 2*time.Hour && claimed.Digest.Claim == digest.Claim,
			"claimed %+v, want the digest in doubt since about an hour", claimed)
		d.end(digest, done)

		d.drop(path("a", 2))
		d.clock.Advance(interval)
		d.end(d.wantDrops(2, 0), done)
		goesBack()
		d.drop(path("a", 4))
		d.wantDue()
		d.clock.Advance(time.Minute)
		d.wantDue("#a")
		d.wantDrops(4, 0)
	})
}

// Foreign values in the keys do not stop the counting.
func TestStrangeCounts(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		for field, text := range map[string]string{"a": "text", "\nhead": "text", "\nclaimed": "text", "b": "1\nx\ty\t", "": ""} {
			d.client.HSet(d.Context(), d.runner.Key("drops:counts:#a"), field, text)
		}
		d.client.ZAdd(d.Context(), d.runner.Key("drops:top:#a"), redis.Z{Score: 9, Member: "gone"})
		d.client.ZAdd(d.Context(), d.runner.Key("drops:due"), redis.Z{Score: 1, Member: "#b"})
		d.wantNone("#b") // has no counts
		d.wantDue()
		d.drop(path("a", 1), path("b.c", 2))
		d.clock.Advance(time.Minute)
		testkit.Equal(t, counts(d.wantDrops(3, 0)), "b.c 2, a 1, b and others 1", "shown")
	})
}
