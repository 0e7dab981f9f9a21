package overrides

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func (f *fixture) setFor(b *Bucket, pattern, value string, lasts time.Duration) Change {
	f.Helper()
	return testkit.Must(b.Set(f.context(), f.load(b), enforced(pattern), value, lasts))(f)
}

func (f *fixture) lines(b *Bucket) []string {
	f.Helper()
	var lines []string
	for _, c := range testkit.Must(b.History(f.context()))(f) {
		line := fmt.Sprintf("%s: %s to %s", c.Name, c.Old, c.Value)
		if !c.Until.IsZero() {
			line += " for a time"
		}
		if c.Ended != 0 {
			line += fmt.Sprintf(", ends %d of %s", c.Ended, c.By)
		}
		lines = append(lines, line)
	}
	return lines
}

// until returns the planned end of the override with a revision.
func (f *fixture) until(b *Bucket, revision uint64) time.Time {
	f.Helper()
	for _, c := range testkit.Must(b.History(f.context()))(f) {
		if c.Revision == revision {
			return c.Until
		}
	}
	f.Fatalf("revision %d is not in the history", revision)
	return time.Time{}
}

const soon = 300 * time.Millisecond

// endings are the ways in which the override a=9 ends.
var endings = map[string]struct {
	before []string
	during func(*fixture, *Bucket)
	want   []string // entries at the end
	lines  []string // history after those of before
}{
	"nothing was set": {want: nil, lines: []string{"a:  to 9 for a time", "a: 9 to , ends 1 of ann"}},
	"a value was set": {
		before: []string{"a=1", "b=2"}, want: []string{"a=1", "b=2"},
		lines: []string{"a: 1 to 9 for a time", "a: 9 to 1, ends 3 of ann"},
	},
	"a value was unset": {before: []string{"a=1", "-a"}, want: nil, lines: []string{"a:  to 9 for a time", "a: 9 to , ends 3 of ann"}},
	"another one that ends was set": {
		before: []string{"a=1"}, want: []string{"a=1"},
		during: func(f *fixture, b *Bucket) {
			f.setFor(b, "a", "7", time.Hour)
			f.setFor(b, "a", "8", soon)
		},
		lines: []string{"a: 1 to 9 for a time", "a: 9 to 7 for a time", "a: 7 to 8 for a time", "a: 8 to 1, ends 4 of ann"},
	},
	"a later value replaces it": {
		before: []string{"a=1"}, want: []string{"a=3", "z=1"},
		during: func(f *fixture, b *Bucket) {
			f.change(b, "a=3")
			f.setFor(b, "z", "2", time.Hour)
			f.change(b, "z=1")
		},
		lines: []string{"a: 1 to 9 for a time", "a: 9 to 3", "z:  to 2 for a time", "z: 2 to 1"},
	},
	"it is unset": {
		before: []string{"a=1"}, during: func(f *fixture, b *Bucket) { f.change(b, "-a") },
		lines: []string{"a: 1 to 9 for a time", "a: 9 to "},
	},
}

// An override that ends restores the last value without an end. One change does so, not before the end, and all watchers apply it.
func TestEnds(t *testing.T) {
	t.Parallel()
	for name, test := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.open()
			o := f.options(false)
			o.By = "ann"
			b := newBucket(f.js, o)
			f.change(b, test.before...)
			watchers := []*mirror{f.mirror(f.js, false), f.mirror(f.connect(f.server.URL), false)}
			if test.during != nil {
				f.setFor(b, "a", "9", time.Hour)
				test.during(f, b)
			} else {
				f.setFor(b, "a", "9", soon)
			}
			testkit.Eventually(f, "the end", func() bool { return slices.Equal(f.lines(b)[len(test.before):], test.lines) })
			for _, w := range watchers {
				newest := f.load(b)
				testkit.Eventually(f, "the newest revision", func() bool { return w.last().Revision == newest.Revision })
				f.requireEntries(w.last(), test.want...)
			}
			for _, c := range testkit.Must(b.History(f.context()))(t) {
				if c.Ended != 0 && c.Changed.Before(f.until(b, c.Ended)) {
					t.Errorf("%+v came before its time", c)
				}
			}
		})
	}
}

// An end that passes without a watcher is made up before the first Refresh of the next watcher returns.
func TestEndsBeforeTheStart(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATSProcess(t, ""))
	b := f.open()
	f.change(b, "a=1")
	f.setFor(b, "a", "9", time.Millisecond)
	f.setFor(b, "b", "9", time.Millisecond)
	f.setFor(b, "c", "9", time.Hour)
	f.server.Kill()
	f.restart()
	w := f.mirror(f.js, false)
	testkit.NoError(t, w.Refresh(f.context()))
	f.requireEntries(w.last(), "a=1", "c=9")
}

// A watcher ends no override of an outdated state.
func TestEndsNothingOutdated(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	var outdated atomic.Bool
	outdated.Store(true)
	var asked atomic.Int64
	o := f.options(false)
	o.Outdated = func(_ context.Context, s Snapshot) bool {
		defer asked.Add(1)
		return s.Revision == 1 && outdated.Load()
	}
	f.setFor(b, "a", "9", time.Millisecond)
	w := f.mirrorWith(f.js, o)
	testkit.Eventually(f, "the state is compared twice", func() bool { return asked.Load() > 1 })
	f.requireEntries(f.load(b), "a=9")
	outdated.Store(false)
	w.requireLast()
}

// A watcher without the right to write logs one warning. The override stays in force until a watcher with the right ends it.
func TestEndsWithoutTheRight(t *testing.T) {
	t.Parallel()
	server := servertest.StartNATSProcess(t, `
authorization { users: [
	{ user: all, password: all }
	{ user: reader, password: reader, permissions { publish { deny: "$KV.>" } } }
] }`)
	f := newFixtureOn(t, server, nats.UserInfo("all", "all"))
	b := f.open()
	f.setFor(b, "a", "9", time.Millisecond)
	reader := f.following(f.connect(server.URL, nats.UserInfo("reader", "reader")), "a=9")
	const says = "cannot store the end of live limits"
	testkit.Eventually(f, "it says so", func() bool { return f.log.Count(says) == 1 })
	f.change(b, "b=1")
	reader.requireLast("a=9", "b=1")
	f.following(f.js, "b=1")
	reader.requireLast("b=1")
	f.log.WantCount(t, 1, says)
}

// A rollback restores an override with its end. After that end it restores the value that followed.
func TestRollbackOfEnds(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1")
	long := f.setFor(b, "a", "2", time.Hour)
	f.change(b, "a=3")
	over := f.setFor(b, "b", "4", time.Millisecond)
	f.change(b, "b=5", "c=6")
	for _, test := range []struct {
		to   uint64
		want []string
	}{
		{long.Revision, []string{"a=2"}}, {over.Revision, []string{"a=3"}}, {1, []string{"a=1"}},
	} {
		testkit.Must(b.Rollback(f.context(), test.to, unchecked))(t)
		s := f.load(b)
		f.requireEntries(s, test.want...)
		if test.to == long.Revision && (!s.Entries[0].Until.Equal(long.Until) || s.Entries[0].Then != "1") {
			t.Errorf("restored is %+v, want the end of %+v", s.Entries[0], long)
		}
	}
}
