package summary

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// failure is an error of a post.
type failure struct {
	after     time.Duration
	permanent bool
}

func (f failure) Error() string             { return "it was not posted" }
func (f failure) RetryAfter() time.Duration { return f.after }
func (f failure) Permanent() bool           { return f.permanent }

// inBubble runs a test with a clock of its own, that moves when all wait.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

func drops(category string, n int) []Drop {
	return []Drop{{Category: category, Level: "global", Title: "title", N: n}}
}

// after lets time pass, and what is due by then happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func lastOf(reports []told) told { return reports[len(reports)-1] }

func TestDropsAreToldEachSecond(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := startBench(t, nil)
		after(10*time.Second + 300*time.Millisecond)
		if n := len(b.store.told()); n != 0 {
			t.Errorf("%d reports of nothing", n)
		}
		begin := time.Now()
		b.Counter().Add(drops("a", 1))
		after(0)
		b.Counter().Add(drops("a", 2))
		b.Counter().Add(drops("b", 4))
		after(1500 * time.Millisecond)
		b.Counter().Add(drops("a", 8))
		after(10 * time.Second)
		b.Counter().Add(drops("b", 16))
		after(0)

		type line struct {
			after    time.Duration
			dropping bool
			totals   string
		}
		var got []line
		for _, report := range b.store.told() {
			l := line{after: report.at.Sub(begin), dropping: report.Dropping}
			for _, d := range report.Drops {
				l.totals += fmt.Sprint(d.Category, d.Total, " ")
			}
			got = append(got, l)
		}
		want := []line{
			{0, true, "a1 "}, // at once: it may be killed
			{700 * time.Millisecond, true, "a2 b4 "},
			{1700 * time.Millisecond, true, "a8 "},
			{2700 * time.Millisecond, false, ""}, // that was all
			{11500 * time.Millisecond, true, "b16 "},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("told %v\nwant %v", got, want)
		}
		if opens := b.store.told()[0].Drops[0].Opens; !opens.Equal(begin.Add(time.Hour)) {
			t.Errorf("the next slot opens at %v", opens)
		}
	})
}

func TestManyCategoriesAreToldInParts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := startBench(t, nil)
		var many []Drop
		for i := range 3*reportSize + 1 {
			many = append(many, drops(fmt.Sprint("c", i), 1)...)
		}
		b.Counter().Add(many)
		after(0)
		if n := len(b.store.told()); n != 4 {
			t.Errorf("%d reports, want 4", n)
		}
		var last int64
		for _, report := range b.store.told() {
			if report.Number <= last || len(report.Drops) > reportSize {
				t.Errorf("report %d of %d categories after %d", report.Number, len(report.Drops), last)
			}
			last = report.Number
		}
	})
}

// TestStoreIsAway keeps what was counted, and tells it once, whether or not the store took it unheard.
func TestStoreIsAway(t *testing.T) {
	for name, fail := range map[string]func(s *fakeStore, fails bool){
		"away":          func(s *fakeStore, fails bool) { s.away = fails },
		"replies lost":  func(s *fakeStore, fails bool) { s.down = fails },
		"both in turns": func(s *fakeStore, fails bool) { s.away, s.down = fails && !s.away, fails },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := startBench(t, nil)
				total := 0
				for range 20 {
					b.store.set(func() { fail(b.store, true) })
					for i := range 7 {
						b.Counter().Add(drops("a", i))
						total += i
						after(400 * time.Millisecond)
					}
					b.store.set(func() { fail(b.store, false) })
					b.Counter().Add(drops("a", 1))
					total++
					after(time.Second)
				}
				after(2 * time.Second)
				if got := b.store.total("a"); got != int64(total) {
					t.Errorf("told of %d drops, want %d", got, total)
				}
				if last := lastOf(b.store.told()); last.Dropping {
					t.Error("nobody was told that this is all")
				}
				warned, back := b.log.count("summaries wait"), b.log.count("summaries go on")
				if warned != back || warned < 20 || warned > 40 {
					t.Errorf("the log says %d times that summaries wait, and %d times that they go on", warned, back)
				}
			})
		})
	}
}

func TestLastDropsAreTold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := startBench(t, nil)
		b.Counter().Add(drops("a", 1))
		after(100 * time.Millisecond)
		b.Counter().Add(drops("a", 2))
		begin := time.Now()
		b.stop()
		if took := time.Since(begin); took > 0 {
			t.Errorf("stopping took %v", took)
		}
		if last := lastOf(b.store.told()); b.store.total("a") != 3 || last.Dropping {
			t.Errorf("told of %d drops, want 3; and goes on to drop: %v", b.store.total("a"), last.Dropping)
		}
	})
}

func TestLastDropsAreLost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := startBench(t, nil)
		b.store.set(func() { b.store.away = true })
		b.Counter().Add(drops("a", 1))
		after(5 * time.Second)
		b.Counter().Add(drops("a", 2))
		b.stop()
		if b.log.count("drops=3") != 1 {
			t.Errorf("the log does not tell of 3 lost drops:\n%s", b.log)
		}
	})
}

func TestLeftOutIsSaid(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := startBench(t, nil)
		b.store.set(func() { b.store.leftOut = 1 })
		for range 90 {
			b.Counter().Add(drops("a", 1))
			after(time.Second)
		}
		if n := b.log.count("too many categories"); n != 2 {
			t.Errorf("the log says so %d times in 90 seconds, want 2", n)
		}
	})
}

func TestSummaryIsPosted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		first, last, opens := time.Unix(100, 0), time.Unix(200, 0), time.Unix(300, 0)
		b := startBench(t, nil, throttle.DropSummary{
			Drops: throttle.Drops{
				Category: "payments.refunds", Total: 112, First: first, Last: last, Opens: opens,
				Levels: []throttle.NameCount{{Name: "payments.*", Count: 100}, {Name: "global", Count: 12}},
				Titles: []throttle.NameCount{{Name: "a", Count: 50}, {Name: "b", Count: 30}, {Name: "c", Count: 20}, {Name: "d", Count: 2}},
			},
			Claim: 1, Attempt: 1, AtLeast: true,
		})
		after(2 * claimEvery)
		want := []Summary{{
			Path: "payments.refunds", Dropped: 112, AtLeast: true, First: first, Last: last, Opens: opens,
			Limits: []SuppressedBy{
				{Level: "payments.*", Limit: "payments.* of payments.refunds", Dropped: 100},
				{Level: "global", Limit: "global of payments.refunds", Dropped: 12},
			},
			Titles: []TitleCount{{"a", 50}, {"b", 30}, {"c", 20}},
		}}
		if !reflect.DeepEqual(b.posts(), want) {
			t.Errorf("got  %+v\nwant %+v", b.posts(), want)
		}
		if len(b.store.ends()) != 1 || b.store.ends()[0].again != 0 {
			t.Errorf("ended: %+v", b.store.ends())
		}
		b.wantResults(Sent)
	})
}

func TestPostFails(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		attempt int
		again   time.Duration // 0: it is given up
	}{
		"once":                    {failure{}, 1, 2 * time.Second},
		"again":                   {errors.New("reset"), 2, 8 * time.Second},
		"and again":               {failure{}, 3, 32 * time.Second},
		"and once more":           {failure{}, 4, 128 * time.Second},
		"for the last time":       {failure{after: time.Minute}, maxAttempts, 0},
		"for good":                {fmt.Errorf("wrapped: %w", failure{permanent: true}), 1, 0},
		"for a time":              {fmt.Errorf("wrapped: %w", failure{after: 7 * time.Second}), 1, 7 * time.Second},
		"somewhere else, unheard": {nil, maxAttempts + 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := startBench(t, func(context.Context, Summary) error { return test.err }, due("a", test.attempt))
				after(2 * claimEvery)
				if len(b.store.ends()) != 1 || b.store.ends()[0].again != test.again {
					t.Errorf("ended: %+v, want again after %v", b.store.ends(), test.again)
				}
				if test.again == 0 {
					b.wantResults(GivenUp)
				} else {
					b.wantResults()
				}
				if n := b.log.count("summary is given up"); (n == 1) != (test.again == 0) {
					t.Errorf("the log says %d times that it is given up", n)
				}
			})
		})
	}
}

// TestStuckPosts shows that some posts may hang, for a time; the others go on meanwhile.
func TestStuckPosts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var all []throttle.DropSummary
		for i := range maxPosts + 10 {
			all = append(all, due(fmt.Sprint("c", i), 1))
		}
		began := time.Now()
		b := startBench(t, func(ctx context.Context, s Summary) error {
			if s.Path == "c0" || s.Path == "c1" {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			time.Sleep(time.Second)
			return nil
		}, all...)
		after(5 * time.Second)
		if n := len(b.store.ends()); n != maxPosts+8 {
			t.Errorf("%d posts are over, want %d", n, maxPosts+8)
		}
		after(lease)
		ends := b.store.ends()[maxPosts+8:]
		if len(ends) != 2 {
			t.Fatalf("the posts that hung: %+v", ends)
		}
		for _, end := range ends {
			if took := end.at.Sub(began); end.again == 0 || took < time.Minute || took >= lease {
				t.Errorf("%s is over after %v, to be tried again after %v", end.category, took, end.again)
			}
		}
	})
}

func TestNoMorePostsThanThereIsRoomFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var all []throttle.DropSummary
		for i := range 2 * maxPosts {
			all = append(all, due(fmt.Sprint("c", i), 1))
		}
		b := startBench(t, func(ctx context.Context, _ Summary) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, all...)
		after(time.Minute)
		claims, left := b.store.claims()
		if n := len(b.posts()); n != maxPosts || left != maxPosts {
			t.Errorf("%d posts are under way, %d summaries are left, want %d of each", n, left, maxPosts)
		}
		if claims > 2 {
			t.Errorf("%d claims, with room for none", claims)
		}
	})
}

// TestEndIsInsistedOn: a post that is not recorded would be made again.
func TestEndIsInsistedOn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := startBench(t, nil, due("a", 1))
		b.store.set(func() { b.store.endFails = 30 })
		after(40 * time.Second)
		if len(b.store.ends()) != 1 || len(b.posts()) != 1 {
			t.Errorf("%d posts, ended: %+v", len(b.posts()), b.store.ends())
		}
		b.store.set(func() { b.store.endFails, b.store.due = 1000, []throttle.DropSummary{due("b", 1)} })
		after(2 * lease)
		if n := b.log.count("end of a summary is not recorded"); n != 1 {
			t.Errorf("the log says %d times that it is not recorded", n)
		}
	})
}

// TestStopWhilePosting gives posts that are under way a moment.
func TestStopWhilePosting(t *testing.T) {
	for name, test := range map[string]struct {
		takes, again time.Duration
	}{
		"it ends":        {takes: 3 * time.Second},
		"it does not":    {takes: time.Minute, again: 2 * time.Second},
		"it is over now": {takes: 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := startBench(t, func(ctx context.Context, _ Summary) error {
					select {
					case <-time.After(test.takes):
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}, due("a", 1))
				after(2 * claimEvery)
				begin := time.Now()
				b.stop()
				if took := time.Since(begin); took > StopPatience {
					t.Errorf("stopping took %v", took)
				}
				if len(b.store.ends()) != 1 || b.store.ends()[0].again != test.again {
					t.Errorf("ended: %+v, want again after %v", b.store.ends(), test.again)
				}
			})
		})
	}
}

func TestClaimsEachSecond(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := startBench(t, nil)
		after(100 * time.Second)
		if n, _ := b.store.claims(); n < 80 || n > 125 {
			t.Errorf("%d claims in 100 seconds", n)
		}
	})
}
