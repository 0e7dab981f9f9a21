package summary

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// testReporter runs a test with a reporter whose posts succeed.
func testReporter(t *testing.T, test func(b *bench), due ...*Digest) {
	t.Helper()
	inBubble(t, func(t *testing.T) { test(startBench(t, nil, due...)) })
}

func lastOf(reports []received) received { return reports[len(reports)-1] }

func drops(category string, n int) []Drop {
	return []Drop{{Category: category, Level: "global", Title: "title", N: n}}
}

// after lets the time of synctest pass, and waits until all goroutines are blocked.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestDropsAreReportedEachSecond(t *testing.T) {
	testReporter(t, func(b *bench) {
		after(10*time.Second + 300*time.Millisecond)
		testkit.Equal(b, len(b.store.received()), 0, "reports of nothing")
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

		var got []string
		for _, report := range b.store.received() {
			got = append(got, fmt.Sprintf("%v: %d for %q, dropping %t", report.at.Sub(begin), report.Total(), report.Channel, report.Dropping))
		}
		testkit.EqualSlices(b, got, []string{
			`0s: 1 for "#a", dropping true`, // at once: the instance may be killed
			`700ms: 2 for "#a", dropping true`,
			`700ms: 4 for "#b", dropping true`,
			`1.7s: 8 for "#a", dropping true`,
			`2.7s: 0 for "", dropping false`, // that was all
			`11.5s: 16 for "#b", dropping true`,
		}, "reports")
		opens := b.store.received()[0].Groups[0].Paths[0].Opens
		testkit.Check(b, opens.Equal(begin.Add(time.Hour)), "the next slot opens at %v", opens)
	})
}

func TestManyCategoriesAreReportedInParts(t *testing.T) {
	testReporter(t, func(b *bench) {
		var many []Drop
		for i := range 3*reportSize + 1 {
			many = append(many, drops(fmt.Sprint("c", i), 1)...)
		}
		b.Counter().Add(many)
		after(0)
		if n := len(b.store.received()); n != 4 || b.store.total("#alerts") != 3*reportSize+1 {
			b.Errorf("%d reports of %d drops, want 4 of %d", n, b.store.total("#alerts"), 3*reportSize+1)
		}
		var last int64
		for _, report := range b.store.received() {
			testkit.Check(b, report.Number > last && len(report.Groups) <= reportSize && report.Channel == "#alerts",
				"report %d of %d categories for %s after %d", report.Number, len(report.Groups), report.Channel, last)
			last = report.Number
		}
	})
}

// Drops are reported once each, whether the store was unavailable or its replies were lost.
func TestStoreIsUnavailable(t *testing.T) {
	for name, fail := range map[string]func(s *fakeStore, fails bool){
		"unavailable":   func(s *fakeStore, fails bool) { s.unavailable = fails },
		"replies lost":  func(s *fakeStore, fails bool) { s.down = fails },
		"both in turns": func(s *fakeStore, fails bool) { s.unavailable, s.down = fails && !s.unavailable, fails },
	} {
		t.Run(name, func(t *testing.T) {
			testReporter(t, func(b *bench) {
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
				testkit.Equal(b, b.store.total("#a"), int64(total), "reported drops")
				testkit.Equal(b, lastOf(b.store.received()).Dropping, false, "dropping, in the last report")
				warned, back := b.log.Count("cannot prepare digests"), b.log.Count("preparing digests again")
				testkit.Check(b, warned == back && warned >= 20 && warned <= 40,
					"the log says %d times that digests wait, and %d times that they go on", warned, back)
			})
		})
	}
}

func TestLastDropsAreReported(t *testing.T) {
	testReporter(t, func(b *bench) {
		b.Counter().Add(drops("a", 1))
		after(100 * time.Millisecond)
		b.Counter().Add(drops("a", 2))
		begin := time.Now()
		b.stop()
		took := time.Since(begin)
		testkit.Check(b, took <= 0, "stopping took %v", took)
		if last := lastOf(b.store.received()); b.store.total("#a") != 3 || last.Dropping {
			b.Errorf("reported %d drops, want 3; and goes on to drop: %v", b.store.total("#a"), last.Dropping)
		}
	})
}

func TestLastDropsAreLost(t *testing.T) {
	testReporter(t, func(b *bench) {
		b.store.set(func() { b.store.unavailable = true })
		b.Counter().Add(drops("a", 1))
		after(5 * time.Second)
		b.Counter().Add(drops("a", 2))
		b.stop()
		b.log.WantCount(b, 1, "drops=3")
	})
}

func TestDigestIsPosted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		first, last, opens := time.Now().Add(-time.Hour), time.Now(), time.Now().Add(time.Hour)
		b := startBench(t, nil)
		changes := []Change{
			{Revision: 4, At: first.Add(-interval), Limit: "before", Value: "1/1h"},
			{Revision: 5, At: first.Add(-time.Minute), Limit: "payments", Value: "40/30m", By: "anna"},
			{Revision: 7, At: first.Add(time.Minute), Limit: "payments"},
			{Revision: 8, At: first.Add(time.Minute), Limit: "after the claim"},
		}
		b.set(func() { b.changes = LimitChanges{Generation: 1, Revision: 8, Changes: changes} })
		claimed := Digest{
			Channel: "#a", Claim: "1", Dropped: 120, Unpaired: 5, Doubtful: 7, AtLeast: true, First: first, Last: last,
			Paths: []Path{
				{Path: "payments.refunds", Dropped: 80, Title: "refund failed", Opens: opens, Reasons: []Reason{
					{Level: "payments.*", Dropped: 60}, {Level: "global", Dropped: 20},
				}},
				{Path: "payments", Rest: true, Dropped: 20},
				{Path: "errors", Dropped: 5},
			},
			MorePaths: 4, MoreAtLeast: true, MoreDropped: 10, BeforeRevision: 8,
		}
		want := claimed
		want.Paths, want.Changes = slices.Clone(claimed.Paths), changes[1:3]
		want.Paths[0].Reasons = []Reason{
			{"payments.*", "payments.* of payments.refunds", 60}, {"global", "global of payments.refunds", 20},
		}
		b.store.set(func() { b.store.due = []*Digest{&claimed} })
		after(2 * lookEvery)
		testkit.EqualDeeply(t, b.posts(), []Digest{want}, "posts")
		testkit.EqualDeeply(t, b.observed, []Digest{want}, "digests that were observed")
		b.wantEnds(DigestEnd{State: DigestDone})
		b.wantResults(Sent)
	})
}

// TestChangesOfADigest selects changes by the revisions of a digest, whatever the clocks of NATS and Redis show.
func TestChangesOfADigest(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var changes []Change
	for revision := range uint64(6) {
		changes = append(changes, Change{Revision: revision + 1, At: now.Add(time.Duration(revision) * time.Minute)})
	}
	known := LimitChanges{Generation: 1, Revision: 6, Changes: changes}
	for name, test := range map[string]struct {
		digest Digest
		want   []Change
	}{
		"between two revisions":          {Digest{FromRevision: 2, BeforeRevision: 5, Since: now.Add(time.Hour), First: now.Add(time.Hour)}, changes[1:4]},
		"none are new":                   {Digest{FromRevision: 7, BeforeRevision: 7}, nil},
		"none were known at the claim":   {Digest{FromRevision: 2}, nil},
		"first digest of a channel":      {Digest{BeforeRevision: 7, First: now.Add(interval + 150*time.Second)}, changes[3:]},
		"first one that knows of any":    {Digest{BeforeRevision: 7, Since: now.Add(90 * time.Second), First: now.Add(time.Hour)}, changes[2:]},
		"claimed before the last change": {Digest{FromRevision: 1, BeforeRevision: 6}, changes[:5]},
	} {
		testkit.EqualSlices(t, known.in(test.digest, interval), test.want, "%s: changes", name)
	}
}

// postError is an error like that of a sink.
type postError struct {
	notPosted, hopeless bool
	rest                time.Duration
}

func (postError) Error() string         { return "not posted" }
func (e postError) NotPosted() bool     { return e.notPosted }
func (e postError) Hopeless() bool      { return e.hopeless }
func (e postError) Rest() time.Duration { return e.rest }

func TestPostFails(t *testing.T) {
	wrapped := func(err postError) error { return fmt.Errorf("wrapped: %w", err) }
	notPosted := wrapped(postError{notPosted: true})
	again := func(after time.Duration) DigestEnd {
		return DigestEnd{State: DigestFailed, Again: after, Failure: true}
	}
	for name, test := range map[string]struct {
		err      error
		failures int // before
		want     DigestEnd
		results  []string
	}{
		"once":              {notPosted, 0, again(2 * time.Second), nil},
		"again":             {notPosted, 1, again(8 * time.Second), nil},
		"and again":         {notPosted, 2, again(32 * time.Second), nil},
		"and once more":     {notPosted, 3, again(128 * time.Second), nil},
		"for the last time": {notPosted, maxFailures - 1, DigestEnd{State: DigestDone}, []string{GivenUp}},
		"for good":          {wrapped(postError{notPosted: true, hopeless: true}), 0, DigestEnd{State: DigestDone}, []string{GivenUp}},
		"at rest": {
			wrapped(postError{notPosted: true, rest: 7 * time.Second}), maxFailures - 1, DigestEnd{State: DigestFailed, Again: 7 * time.Second}, nil,
		},
		"unheard":         {wrapped(postError{}), 0, DigestEnd{State: DigestDoubt}, nil},
		"of another kind": {errors.New("reset"), 0, DigestEnd{State: DigestDoubt}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := startBench(t, func(context.Context, Digest) error { return test.err }, due("#a", test.failures))
				after(2 * lookEvery)
				b.wantEnds(test.want)
				b.wantResults(test.results...)
				rests := time.Duration(0)
				if name == "at rest" {
					rests = 7 * time.Second
				}
				testkit.Equal(t, b.paused["#a"], rests, "the channel rests for")
				b.log.WantCount(t, len(test.results), "gave up a digest")
				if test.results != nil && b.log.Count("dropped=12") != 1 {
					t.Errorf("got the log\n%s\nwant the number of drops", b.log)
				}
			})
		})
	}
}

// A digest waits while events wait for its channel, and while the channel takes no message. It is neither claimed nor failed.
func TestDigestWaitsForEvents(t *testing.T) {
	for name, test := range map[string]struct {
		wait func(b *bench, is bool)
		most int // moments asked for in ten minutes
	}{
		"busy":    {func(b *bench, is bool) { b.set(func() { b.busy["#a"] = is }) }, 0},
		"paced":   {func(b *bench, is bool) { b.pause(is, time.Second/2) }, 800},
		"resting": {func(b *bench, is bool) { b.pause(is, time.Hour) }, 12},
	} {
		t.Run(name, func(t *testing.T) {
			testReporter(t, func(b *bench) {
				test.wait(b, true)
				b.store.set(func() { b.store.due = []*Digest{due("#a", 0)} })
				after(10 * time.Minute)
				testkit.Check(b, b.store.called.Get("claim") == 0 && len(b.posts()) == 0 && b.moments <= test.most,
					"%d claims, %d posts, %d moments", b.store.called.Get("claim"), len(b.posts()), b.moments)
				test.wait(b, false)
				after(longestPause + 2*lookEvery)
				b.wantEnds(DigestEnd{State: DigestDone})
				b.wantResults(Sent)
			})
		})
	}
}

func (b *bench) pause(is bool, wait time.Duration) {
	b.set(func() {
		b.wait = 0
		if is {
			b.wait = wait
		}
	})
}

// A claim without an answer is repeated under its name.
func TestClaimWithoutAnswer(t *testing.T) {
	testReporter(t, func(b *bench) {
		b.store.set(func() { b.store.down = true })
		after(30 * time.Second)
		testkit.Check(b, b.store.called.Get("claim") >= 2 && len(b.posts()) == 0, "%d claims, %d posts", b.store.called.Get("claim"), len(b.posts()))
		b.store.set(func() { b.store.down = false })
		after(30 * time.Second)
		b.wantEnds(DigestEnd{State: DigestDone})
		testkit.Equal(b, len(b.store.claimed), 1, "names of the claim")
	}, due("#a", 0))
}

// A digest in doubt is looked for. What was found is recorded; after a failure nothing is.
func TestDoubt(t *testing.T) {
	const carried, again, gaveUp = "its counts carry over", "it is posted again", "gave up a digest"
	ofMute := func(failures int) *Digest {
		d := due("#a", failures)
		d.Mute = &Muted{Mute: aMute}
		return d
	}
	for name, test := range map[string]struct {
		digest        *Digest
		posted, known bool
		err           error
		want          []DigestEnd
		results       []string
		logged        string // with the number of drops
	}{
		"posted":                       {due("#a", 0), true, true, nil, []DigestEnd{{State: DigestDone}}, []string{Sent}, ""},
		"not posted":                   {due("#a", 0), false, true, nil, []DigestEnd{{State: DigestFailed}}, nil, ""},
		"nobody can know":              {due("#a", 0), false, false, nil, []DigestEnd{{State: DigestCarried}}, nil, carried},
		"look-up failed":               {due("#a", 0), false, false, errStore, nil, nil, "cannot look for a digest"},
		"of a mute":                    {ofMute(0), false, false, nil, []DigestEnd{{State: DigestFailed, Failure: true}}, nil, again},
		"of a mute, after failures":    {ofMute(maxFailures - 2), false, false, nil, []DigestEnd{{State: DigestFailed, Failure: true}}, nil, again},
		"of a mute, for the last time": {ofMute(maxFailures - 1), false, false, nil, []DigestEnd{{State: DigestDone}}, []string{GivenUp}, gaveUp},
	} {
		t.Run(name, func(t *testing.T) {
			testReporter(t, func(b *bench) {
				claimed := time.Now().Add(-time.Minute)
				b.set(func() {
					b.find = func(context.Context) (bool, bool, error) { return test.posted, test.known, test.err }
				})
				b.store.set(func() {
					b.store.doubt, b.store.due = Claimed{test.digest, true, time.Minute}, []*Digest{due("#a", 0)}
				})
				after(5 * lookEvery / 4)
				b.wantEnds(test.want...)
				b.wantResults(test.results...)
				testkit.Equal(b, len(b.posts()), 0, "posts")
				b.set(func() {
					testkit.Check(b, len(b.lookedAt) == 1 && b.lookedAt[0].Sub(claimed) <= 5*lookEvery/4,
						"looked for digests claimed at %v, want one at about %v", b.lookedAt, claimed)
				})
				if test.logged != "" {
					b.log.WantCount(b, 1, test.logged)
					b.log.WantCount(b, 1, "dropped=12")
				}
			})
		})
	}
}

// Look-ups that fail log one line. The first look-up that succeeds logs another line.
func TestDoubtIsLoggedOnce(t *testing.T) {
	testReporter(t, func(b *bench) {
		for i, err := range []error{errStore, errStore, errStore, nil, nil} {
			b.set(func() { b.find = func(context.Context) (bool, bool, error) { return true, true, err } })
			b.store.set(func() {
				b.store.doubt, b.store.due = Claimed{due("#a", 0), true, time.Minute}, []*Digest{due("#a", 0)}
			})
			after(5 * lookEvery / 4)
			b.set(func() { testkit.Equal(b, len(b.lookedAt), i+1, "look-ups") })
		}
		b.log.WantCount(b, 1, "cannot look for a digest that may have been posted")
		b.log.WantCount(b, 1, "looked for a digest that may have been posted")
	})
}

// Posts that hang end before the lease does. Neither they nor a busy channel delay the others.
func TestStuckPosts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		began := time.Now()
		b := startBench(t, func(ctx context.Context, d Digest) error {
			if d.Channel == "#0" || d.Channel == "#1" {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			time.Sleep(time.Second) // of the time of synctest
			return nil
		}, manyDue(maxPosts+10)...)
		b.set(func() { b.busy["#2"] = true })
		after(5 * time.Second)
		testkit.Equal(t, len(b.store.ends()), maxPosts+7, "ended posts")
		after(lease)
		ends := b.store.ends()[maxPosts+7:]
		testkit.Require(t, len(ends) == 2, "posts that hung: got %+v, want two", ends)
		for _, end := range ends {
			if took := end.at.Sub(began); end.State != DigestDoubt || took < time.Minute || took >= lease {
				t.Errorf("%s: got %+v after %v, want doubt between a minute and the lease", end.channel, end.DigestEnd, took)
			}
		}
	})
}

func TestNoMorePostsThanThereIsRoomFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := startBench(t, func(ctx context.Context, _ Digest) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, manyDue(2*maxPosts)...)
		after(time.Minute)
		testkit.Check(t, len(b.posts()) == maxPosts && b.store.called.Get("claim") == maxPosts,
			"%d posts are under way after %d claims, want %d", len(b.posts()), b.store.called.Get("claim"), maxPosts)
	})
}

// The end of a post is tried again, since the next digest would repeat counts without an end.
func TestEndIsInsistedOn(t *testing.T) {
	testReporter(t, func(b *bench) {
		b.store.set(func() { b.store.endFails = 30 })
		after(40 * time.Second)
		testkit.Check(b, len(b.store.ends()) == 1 && len(b.posts()) == 1, "%d posts, ended: %+v", len(b.posts()), b.store.ends())
		b.store.set(func() { b.store.endFails, b.store.due = 1000, []*Digest{due("#b", 0)} })
		after(2 * lease)
		b.log.WantCount(b, 1, "cannot record the end of a digest")
	}, due("#a", 0))
}

// Stopping waits a moment for posts. A post that is cut off does not count as a failure.
func TestStopWhilePosting(t *testing.T) {
	done := DigestEnd{State: DigestDone}
	for name, test := range map[string]struct {
		takes time.Duration
		want  DigestEnd
	}{
		"it ends":        {3 * time.Second, done},
		"it does not":    {time.Minute, DigestEnd{State: DigestFailed, Again: shortestPause}},
		"it is over now": {0, done},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := startBench(t, func(ctx context.Context, _ Digest) error {
					select {
					case <-time.After(test.takes):
						return nil
					case <-ctx.Done():
						return postError{notPosted: true}
					}
				}, due("#a", 0))
				after(2 * lookEvery)
				begin := time.Now()
				b.stop()
				took := time.Since(begin)
				testkit.Check(t, took <= StopPatience, "stopping took %v, want %v at most", took, StopPatience)
				b.wantEnds(test.want)
			})
		})
	}
}

func TestLooksEachSecond(t *testing.T) {
	testReporter(t, func(b *bench) {
		after(100 * time.Second)
		looks := b.store.called.Get("look")
		testkit.Check(b, looks >= 80 && looks <= 125, "%d looks in 100 seconds", looks)
	})
}
