package throttle

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

const (
	summaryInterval = 30 * time.Minute
	summaryLease    = 2 * time.Minute
)

// dropTest is a deployment whose clock the test moves.
type dropTest struct {
	*testing.T
	*Redis
	clock   *fakeClock
	client  *redis.Client
	reports int64
}

// testDrops runs a test with scripts, and with functions.
func testDrops(t *testing.T, test func(d *dropTest)) {
	t.Helper()
	t.Parallel()
	server := servertest.StartRedis(t)
	for _, way := range []Scripting{Eval, Functions} {
		t.Run(string(way), func(t *testing.T) {
			client := newClient(t, redis.Options{Addr: server.Addr})
			settings := scriptSettings(t)
			settings.Retention = 24 * time.Hour
			r := NewRedis(RedisOptions{Client: client, Prefix: "drops-" + string(way), Timeout: patience, Scripting: way}, settings)
			test(&dropTest{T: t, Redis: r, clock: withFakeTime(t, r), client: client})
		})
	}
}

// dropped are drops of this moment.
func dropped(category string, total int64) Drops {
	now := time.Now().Add(time.Hour) // no age, however long the test takes
	return Drops{Category: category, Total: total, First: now, Last: now}
}

func (d *dropTest) report(instance string, dropping bool, drops ...Drops) {
	d.Helper()
	d.reports++
	d.repeat(DropReport{Instance: instance, Number: d.clock.read().UnixMicro() + d.reports, Dropping: dropping, Drops: drops})
}

func (d *dropTest) repeat(report DropReport) (leftOut int64) {
	d.Helper()
	leftOut, err := d.CountDrops(d.Context(), summaryInterval, report)
	if err != nil {
		d.Fatal(err)
	}
	return leftOut
}

func (d *dropTest) claim() []DropSummary {
	d.Helper()
	summaries, err := d.ClaimSummaries(d.Context(), summaryInterval, summaryLease, 100)
	if err != nil {
		d.Fatal(err)
	}
	return summaries
}

// wantClaim claims what is due, which has to be summaries of these categories.
func (d *dropTest) wantClaim(categories ...string) []DropSummary {
	d.Helper()
	var claimed []string
	summaries := d.claim()
	for _, s := range summaries {
		claimed = append(claimed, s.Category)
	}
	if slices.Sort(claimed); !slices.Equal(claimed, categories) {
		d.Fatalf("at %v: summaries of %q are claimed, want %q", d.clock.read().Sub(start), claimed, categories)
	}
	return summaries
}

func (d *dropTest) end(s DropSummary, again time.Duration) {
	d.Helper()
	if err := d.EndSummary(d.Context(), summaryInterval, s, again); err != nil {
		d.Fatal(err)
	}
}

// seedDrops leaves a summary of "claimed" that is claimed, and one of "due" that is due.
func seedDrops(t *testing.T, r *Redis) {
	t.Helper()
	past := time.Now().Add(-time.Hour)
	one := Drops{Total: 1, First: past, Last: past}
	claimed, due := one, one
	claimed.Category, due.Category = "claimed", "due"
	for i, report := range []DropReport{{Drops: []Drops{claimed, due}}, {Dropping: true}} {
		report.Instance, report.Number = "seed", past.UnixMicro()+int64(i)
		if _, err := r.CountDrops(t.Context(), summaryInterval, report); err != nil {
			t.Fatal(err)
		}
		if i == 0 { // before somebody drops on, for whom it would wait
			if _, err := r.ClaimSummaries(t.Context(), summaryInterval, summaryLease, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// claimedSummary is the one that seedDrops has left claimed, or one that nobody has claimed.
func claimedSummary(ctx context.Context, r *Redis) DropSummary {
	text := r.client.HGet(ctx, r.keys.drops(), "claimed\n").Val()
	claim, _, _ := strings.Cut(text, " ")
	s := DropSummary{Drops: Drops{Category: "claimed"}}
	s.Claim, _ = strconv.ParseInt(claim, 10, 64) // 0 if there is none
	return s
}

func TestDropsAddUp(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		now := time.Now().Add(time.Hour)
		d.report("one", false,
			Drops{
				Category: "payments.refunds", Total: 7, First: now, Last: now,
				Levels: []NameCount{{"global", 4}, {"payments.*", 3}}, Titles: []NameCount{{"refund failed", 5}, {"a 10 b", 1}},
			},
			dropped("errors", 1),
		)
		d.clock.advance(20 * time.Second)
		d.report("two", false, Drops{
			Category: "payments.refunds", Total: 6, First: now, Last: now, Opens: now.Add(24 * time.Hour),
			Levels: []NameCount{{"payments.*", 6}}, Titles: []NameCount{{"slow «refund»", 6}},
		})
		d.clock.advance(time.Minute)
		byCategory := make(map[string]DropSummary)
		for _, s := range d.wantClaim("errors", "payments.refunds") {
			byCategory[s.Category] = s
		}
		got := byCategory["payments.refunds"]
		if until := got.Opens.Sub(start); until < 24*time.Hour || until > 26*time.Hour {
			t.Errorf("the slot opens after %v", until)
		}
		got.Opens = time.Time{}
		want := DropSummary{
			Drops: Drops{
				Category: "payments.refunds", Total: 13, First: start, Last: start.Add(20 * time.Second),
				Levels: []NameCount{{"payments.*", 9}, {"global", 4}},
				Titles: []NameCount{{"slow «refund»", 6}, {"refund failed", 5}, {"a 10 b", 1}},
			},
			Claim: start.Add(80 * time.Second).UnixMicro(), Attempt: 1,
		}
		if got.First, got.Last = got.First.UTC(), got.Last.UTC(); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		errors := byCategory["errors"]
		if errors.Total != 1 || !errors.First.Equal(start) || errors.Levels != nil || !errors.Opens.IsZero() {
			t.Errorf("of errors: %+v", errors)
		}
		if keys := wantExpiries(t, d.client); len(keys) < 3 {
			t.Errorf("only %q are there", keys)
		}
	})
}

func TestAgesOfDrops(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		now := time.Now()
		kept := Drops{Category: "a", Total: 2, First: now.Add(-10 * time.Minute), Last: now.Add(-5 * time.Minute)}
		d.report("kept them for a while", false, kept)
		kept.First, kept.Last = now.Add(-20*time.Minute), now.Add(-15*time.Minute)
		d.report("kept them longer", false, kept)
		s := d.wantClaim("a")[0]
		first, last := start.Sub(s.First), start.Sub(s.Last)
		if first.Round(time.Minute) != 20*time.Minute || last.Round(time.Minute) != 5*time.Minute {
			t.Errorf("first %v ago, last %v ago, want 20m and 5m", first, last)
		}
	})
}

func TestSummaryAfterDropsEnd(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.wantClaim()
		for range 5 {
			d.report("one", false, dropped("a", 1))
			d.clock.advance(time.Minute - time.Microsecond)
			d.wantClaim()
		}
		d.clock.advance(time.Microsecond)
		if s := d.wantClaim("a")[0]; s.Total != 5 {
			t.Errorf("%d drops, want 5", s.Total)
		}
		d.wantClaim() // it is claimed
	})
}

func TestSummaryOfEachInterval(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		var claims []time.Duration
		var total, sent int64
		for range 8 * 60 { // two hours, a drop each 15 seconds
			d.report("one", false, dropped("a", 1))
			total++
			for _, s := range d.claim() {
				claims = append(claims, d.clock.read().Sub(start))
				sent += s.Total
				d.end(s, 0)
			}
			d.clock.advance(15 * time.Second)
		}
		want := []time.Duration{30 * time.Minute, 60*time.Minute + 15*time.Second, 90*time.Minute + 30*time.Second}
		if !slices.Equal(claims, want) {
			t.Errorf("summaries after %v, want %v", claims, want)
		}
		d.clock.advance(time.Minute)
		if sent += d.wantClaim("a")[0].Total; sent != total {
			t.Errorf("the summaries tell of %d drops of %d", sent, total)
		}
	})
}

func TestNextSummaryWaits(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.report("one", false, dropped("a", 1))
		d.clock.advance(time.Minute)
		d.end(d.wantClaim("a")[0], 0)
		d.clock.advance(time.Minute)
		d.report("one", false, dropped("a", 2), dropped("b", 3)) // long over by the time that a is due again
		d.clock.advance(time.Minute)
		d.end(d.wantClaim("b")[0], 0)
		d.clock.advance(27*time.Minute + 59*time.Second)
		d.wantClaim()
		d.clock.advance(time.Second)
		if s := d.wantClaim("a")[0]; s.Total != 2 {
			t.Errorf("%d drops, want 2", s.Total)
		}
		d.clock.advance(2 * summaryInterval) // what is empty is forgotten, and what was not ended is there
		d.wantClaim("a")
		if n := d.client.HLen(d.Context(), d.keys.drops()).Val(); n != 1 {
			t.Errorf("%d fields are left, want 1", n)
		}
	})
}

// TestClaimLapses has an instance killed while it posts.
func TestClaimLapses(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		d.report("one", false, dropped("a", 1))
		d.clock.advance(time.Minute)
		first := d.wantClaim("a")[0]
		d.report("one", false, dropped("a", 10))
		d.clock.advance(summaryLease - time.Microsecond)
		d.wantClaim()
		d.clock.advance(time.Microsecond)
		second := d.wantClaim("a")[0]
		if want := first.Attempt + 1; second.Attempt != want || second.Claim != first.Claim || second.Total != 1 {
			t.Errorf("claimed again: %+v, want attempt %d of %+v", second, want, first)
		}
		d.end(second, 10*time.Minute)
		d.clock.advance(10*time.Minute - time.Microsecond)
		d.wantClaim()
		d.clock.advance(time.Microsecond)
		if third := d.wantClaim("a")[0]; third.Attempt != 3 || third.Total != 1 {
			t.Errorf("claimed after a failed post: %+v", third)
		}
		d.clock.advance(summaryInterval)
		d.wantClaim("a") // still the old one: the next waits for it
		d.clock.advance(time.Minute)
		d.end(first, 0) // whoever posted it did
		d.clock.advance(time.Minute)
		next := d.wantClaim("a")[0]
		if next.Total != 10 || next.Attempt != 1 {
			t.Errorf("the next one: %+v", next)
		}
		d.end(first, 0) // is over
		d.clock.advance(summaryLease)
		d.wantClaim("a")
	})
}

func TestOneInstanceClaimsASummary(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		var drops []Drops
		for i := range 100 {
			drops = append(drops, dropped(fmt.Sprint("c", i), int64(i)+1))
		}
		d.report("one", false, drops...)
		d.clock.advance(time.Minute)
		var (
			mu      sync.Mutex
			claimed = make(map[string]int64)
			work    sync.WaitGroup
		)
		for range 8 {
			work.Go(func() {
				for {
					summaries, err := d.ClaimSummaries(d.Context(), summaryInterval, summaryLease, 3)
					if err != nil || len(summaries) > 3 {
						t.Errorf("%d summaries, error %v", len(summaries), err)
					}
					if err != nil || len(summaries) == 0 {
						return
					}
					mu.Lock()
					for _, s := range summaries {
						claimed[s.Category] += s.Total
					}
					mu.Unlock()
				}
			})
		}
		work.Wait()
		for _, want := range drops {
			if claimed[want.Category] != want.Total {
				t.Errorf("%s: the claims tell of %d drops, want %d", want.Category, claimed[want.Category], want.Total)
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
		"drops on, then killed": {func(d *dropTest) { d.report("one", true, dropped("a", 1)) }, true},
		"told all later":        {func(d *dropTest) { d.clock.advance(10 * time.Second); d.report("one", false) }, false},
		"another told all":      {func(d *dropTest) { d.report("two", false) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			testDrops(t, func(d *dropTest) {
				d.report("one", true, dropped("a", 1))
				d.report("two", false, dropped("a", 1))
				d.clock.advance(4 * time.Second)
				test.meanwhile(d)
				d.clock.advance(time.Minute)
				if s := d.wantClaim("a")[0]; s.AtLeast != test.want {
					t.Errorf("at least: %v, want %v", s.AtLeast, test.want)
				}
				// What is dropped later is known.
				d.report("two", false, dropped("a", 1), dropped("b", 1))
				d.clock.advance(summaryInterval)
				for _, s := range d.wantClaim("a", "b") {
					if s.AtLeast != (s.Category == "a" && s.Attempt == 2 && test.want) {
						t.Errorf("dropped later: %+v", s)
					}
				}
			})
		})
	}
}

// TestSummaryWaitsForWhoDrops shows that a summary is not claimed before every instance that is dropping has told what it
// had counted when it came due; or may be taken for killed.
func TestSummaryWaitsForWhoDrops(t *testing.T) {
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
				d.report("two", false, dropped("a", 1))
				d.clock.advance(time.Minute - 500*time.Millisecond)
				d.report("one", true, dropped("b", 1))
				d.clock.advance(500 * time.Millisecond)
				d.wantClaim()
				d.clock.advance(test.wait - time.Microsecond)
				d.wantClaim()
				if test.told {
					d.report("one", true, Drops{Category: "a", Total: 2, First: time.Now(), Last: time.Now().Add(-2 * time.Minute)})
				}
				d.clock.advance(time.Microsecond)
				if s := d.wantClaim("a")[0]; s.Total != test.wantTotal || s.AtLeast == test.told {
					t.Errorf("summary %+v, want %d drops", s, test.wantTotal)
				}
			})
		})
	}
}

func TestDropReportIsCountedOnce(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		report := DropReport{Instance: "one", Number: start.UnixMicro(), Drops: []Drops{dropped("a", 5)}}
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
		d.clock.advance(time.Minute)
		if s := d.wantClaim("a")[0]; s.Total != 15 {
			t.Errorf("%d drops, want 15", s.Total)
		}
	})
}

func TestBoundsOfDrops(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		many := dropped("a", 200)
		for i := range 100 {
			many.Titles = append(many.Titles, NameCount{fmt.Sprint("title ", i), 2})
		}
		d.report("one", false, many)
		d.report("two", false, many)
		d.clock.advance(time.Minute)
		if s := d.wantClaim("a")[0]; s.Total != 400 || len(s.Titles) != MaxDropNames || s.Titles[0].Count != 4 {
			t.Errorf("%d drops with %d titles, want 400 and %d", s.Total, len(s.Titles), MaxDropNames)
		}

		fields := int(d.client.HLen(d.Context(), d.keys.drops()).Val())
		var drops []Drops
		for i := range MaxDropCategories - fields {
			drops = append(drops, dropped(fmt.Sprint("c", i), 1))
		}
		for part := range slices.Chunk(drops, 1000) {
			d.report("one", false, part...)
		}
		report := DropReport{Instance: "three", Number: 1, Drops: []Drops{dropped("more", 7), dropped("c0", 1), dropped("a", 1)}}
		if leftOut := d.repeat(report); leftOut != 7 {
			t.Errorf("%d drops are left out, want 7", leftOut)
		}
		if n := d.client.HLen(d.Context(), d.keys.drops()).Val(); n != MaxDropCategories {
			t.Errorf("%d fields, want %d", n, MaxDropCategories)
		}
	})
}

// TestStrangeSummaries has values that nobody here has written: they do not hide the others.
func TestStrangeSummaries(t *testing.T) {
	testDrops(t, func(d *dropTest) {
		for field, text := range map[string]string{"odd": "text", "odd\n": "text", "odder\n": "1 1 0\ntext", "": ""} {
			d.client.HSet(d.Context(), d.keys.drops(), field, text)
			d.client.ZAdd(d.Context(), d.keys.dropsDue(), redis.Z{Score: 1, Member: field})
		}
		d.client.ZAdd(d.Context(), d.keys.dropsDue(), redis.Z{Score: 1, Member: "without text"})
		d.report("one", false, dropped("a", 1))
		d.clock.advance(time.Minute)
		summaries, err := d.ClaimSummaries(d.Context(), summaryInterval, summaryLease, 10)
		if !errors.Is(err, ErrRefused) || !errors.Is(err, errReply) {
			t.Errorf("error %v, want %v", err, errReply)
		}
		if len(summaries) != 1 || summaries[0].Category != "a" {
			t.Errorf("summaries %+v, want that of a", summaries)
		}
		d.report("one", false, dropped("odd", 2))
		d.clock.advance(time.Minute)
		if s := d.wantClaim("odd")[0]; s.Total != 2 {
			t.Errorf("%d drops, want 2", s.Total)
		}
	})
}

func TestMalformedSummaries(t *testing.T) {
	t.Parallel()
	now := start.UnixMicro()
	for name, reply := range map[string][]any{
		"nothing":                  {},
		"half a summary":           {now, "a"},
		"a time that is none":      {"now"},
		"a category that is none":  {now, now, "1 1 0\n1 1 1 0 0"},
		"no counts":                {now, "a", "1 1 0"},
		"too few numbers":          {now, "a", "1 1\n1 1 1 0 0"},
		"too few counts":           {now, "a", "1 1 0\n1 1 1 0"},
		"a count that is none":     {now, "a", "1 1 0\n1 1 1 0 0\nx Lglobal"},
		"a count without a name":   {now, "a", "1 1 0\n1 1 1 0 0\n1 "},
		"a number that is too big": {now, "a", "1 1 0\n99999999999999999999 1 1 0 0"},
	} {
		if summaries, err := decodeSummaries(reply); !errors.Is(err, errReply) || len(summaries) > 0 {
			t.Errorf("%s: %+v, error %v", name, summaries, err)
		}
	}
}

func TestSummaryQuiet(t *testing.T) {
	t.Parallel()
	for interval, want := range map[time.Duration]time.Duration{
		time.Second: 2 * time.Second, 30 * time.Second: 3 * time.Second, 30 * time.Minute: time.Minute, 24 * time.Hour: time.Minute,
	} {
		if got := summaryQuiet(interval); got != want {
			t.Errorf("of %v: %v, want %v", interval, got, want)
		}
	}
}
