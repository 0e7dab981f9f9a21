package overrides

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// mirror is a running watcher with its applied snapshots.
type mirror struct {
	*Watcher
	f    *fixture
	stop func() // returns when Run has ended

	applying  atomic.Bool
	mayGoBack atomic.Bool
	mu        sync.Mutex
	applied   []Snapshot
}

// mirror starts a watcher, and stops it at the end of the test.
func (f *fixture) mirror(js jetstream.JetStream, provision bool) *mirror {
	f.Helper()
	return f.mirrorWith(js, f.options(provision))
}

func (f *fixture) mirrorWith(js jetstream.JetStream, o Options) *mirror {
	f.Helper()
	w := &mirror{f: f}
	w.Watcher = NewWatcher(js, o, w.note)
	w.stop = testkit.Run(f, w.Run)
	return w
}

// following starts a watcher of an existing bucket, and waits until these entries are applied.
func (f *fixture) following(js jetstream.JetStream, want ...string) *mirror {
	f.Helper()
	w := f.mirror(js, false)
	w.requireLast(want...)
	return w
}

// note checks that snapshots come one at a time, each newer than the last.
func (w *mirror) note(s Snapshot) error {
	testkit.Check(w.f, w.applying.CompareAndSwap(false, true), "two snapshots are applied at once")
	defer w.applying.Store(false)
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.applied); n > 0 {
		before, now := w.applied[n-1], s
		newer := now.Generation > before.Generation || now.Generation == before.Generation && now.Revision > before.Revision
		if !newer && !w.mayGoBack.Load() {
			w.f.Errorf("after generation %d, revision %d came %d, %d", before.Generation, before.Revision, now.Generation, now.Revision)
		}
	}
	w.applied = append(w.applied, s)
	return nil
}

func (w *mirror) snapshots() []Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.applied)
}

func (w *mirror) last() Snapshot {
	if s := w.snapshots(); len(s) > 0 {
		return s[len(s)-1]
	}
	return Snapshot{}
}

// requireLast waits until exactly these entries are applied.
func (w *mirror) requireLast(want ...string) {
	w.f.Helper()
	testkit.Eventually(w.f, fmt.Sprintf("%q is applied", want), func() bool {
		return len(w.snapshots()) > 0 && slices.Equal(entries(w.last()), want)
	})
}

// requireFollows makes a change, and waits until the change is the only entry.
func (w *mirror) requireFollows(b *Bucket, change string) {
	w.f.Helper()
	w.f.change(b, change)
	w.requireLast(change)
}

const (
	textLoss   = "limits bucket is unavailable: keeping the last known limits"
	textReturn = "limits bucket is available again"
)

func (w *mirror) requireUnavailable() {
	w.f.Helper()
	testkit.Eventually(w.f, "the bucket is unavailable", func() bool { return w.Unavailable() != nil && len(w.f.log.Lines(textLoss)) > 0 })
}

func (w *mirror) requireAvailable() {
	w.f.Helper()
	testkit.Eventually(w.f, "the bucket is available again", func() bool { return w.Unavailable() == nil && len(w.f.log.Lines(textReturn)) > 0 })
}

// requireOneOutage waits for the end of an outage. The log has one line for its begin and one for its end.
func (w *mirror) requireOneOutage() {
	w.f.Helper()
	w.requireAvailable()
	w.f.log.WantCount(w.f, 1, textLoss)
	w.f.log.WantCount(w.f, 1, textReturn)
}

// Each watcher applies the same snapshots in order: the first even of an empty bucket, then one for each change.
func TestWatch(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	watchers := []*mirror{f.following(f.js), f.following(f.connect(f.server.URL))}
	f.change(b, "payments.*=1/1m", "shadow global=2/1m", "-payments.*", "shadow global=3/1m")
	want := []string{
		"0: ", "1: payments.*=1/1m", "2: payments.*=1/1m shadow global=2/1m", "3: shadow global=2/1m", "4: shadow global=3/1m",
	}
	loaded := f.load(b)
	for _, w := range watchers {
		w.requireLast("shadow global=3/1m")
		var got []string
		for _, s := range w.snapshots() {
			got = append(got, fmt.Sprintf("%d: %s", s.Revision, strings.Join(entries(s), " ")))
		}
		testkit.EqualSlices(t, got, want, "applied")
		testkit.Check(t, loaded.Generation == w.last().Generation && slices.Equal(loaded.Entries, w.last().Entries),
			"got %+v applied, want %+v as loaded", w.last(), loaded)
		testkit.NoError(t, w.Unavailable())
	}
	late := f.following(f.js, "shadow global=3/1m")
	testkit.Equal(t, len(late.snapshots()), 1, "snapshots of a watcher that begins with the current state")
	testkit.Equal(t, late.last().Revision, loaded.Revision, "revision of its snapshot")
	f.log.Want(t, "created the limits bucket")
}

func TestSnapshotsShareNothing(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1")
	w := f.following(f.js, "a=1")
	w.last().Entries[0].Value = "changed by the caller"
	f.change(b, "b=2")
	w.requireLast("a=1", "b=2")
}

func TestWatcherReportsChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.mirror(f.js, true)
	blind := NewWatcher(f.js, f.options(false), func(Snapshot) error { return nil })
	if _, err := blind.Changes(f.context(), time.Time{}); err == nil || blind.Unavailable() == nil {
		t.Error("a watcher that has read nothing is available, or returned no error")
	}
	w.requireLast()
	o := f.options(false)
	o.By = " ann\n\x1b[31m "
	ann := testkit.Must(Open(f.context(), f.js, o))(t)
	want := func(since time.Time, lines ...string) {
		t.Helper()
		changes := testkit.Must(w.Changes(f.context(), since))(t)
		var got []string
		for _, c := range changes {
			got = append(got, fmt.Sprintf("%s: %q by %q", c.Name, c.Value, c.By))
		}
		testkit.EqualSlices(t, got, lines, "changes")
	}
	want(time.Time{})
	f.change(ann, "a=1")
	f.put("a", "2")
	f.change(ann, "-a")
	w.requireLast()
	w.requireFollows(ann, "shadow b=3")
	testkit.Equal(t, w.last().Entries[0].By, "ann[31m", "set by")
	revision := testkit.Must(ann.NoteAdoption(f.context(), f.load(ann), "revision 9"))(t)
	testkit.Eventually(f, "the adoption is applied", func() bool { return w.last().Revision == revision })
	want(time.Time{}, `a: "1" by "ann[31m"`, `a: "2" by ""`, `a: "" by "ann[31m"`, `shadow b: "3" by "ann[31m"`)
	history, err := ann.History(f.context())
	testkit.Require(t, err == nil && len(history) == 5, "history %v, %v", history, err)
	last := history[4]
	testkit.Check(t, last.Adopted() && last.Value == "revision 9" && last.By == "ann[31m", "the last of the history is %+v, want the adoption", last)
	want(history[2].Changed, `shadow b: "3" by "ann[31m"`)
	want(history[3].Changed)
	f.log.WantCount(t, 0, "not the name of a limit")
	f.server.Kill()
	want(time.Now().Add(time.Hour)) // without new changes, no server is asked
}

// Refresh returns after all changes confirmed before the call are applied.
func TestRefresh(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	w := f.mirror(f.js, false)
	testkit.NoError(t, w.Refresh(f.context()))
	testkit.Equal(t, len(w.snapshots()), 1, "snapshots after the first refresh")
	for range 20 {
		revision := f.change(b, "a=1/1m")
		testkit.AtOnce(4, func(int) {
			if err := w.Refresh(f.context()); err != nil {
				f.Error(err)
			}
			testkit.AtLeast(f, w.last().Revision, revision, "revision that is applied")
		})
	}
	testkit.Equal(t, len(w.snapshots()), 21, "snapshots, want 21: none for a refresh that brings nothing new")
}

// TestWatcherAppliesAgain has a first state that cannot be applied at once. It is read and applied again, without another change.
func TestWatcherAppliesAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open()
	applied, failures := make(chan Snapshot, 1), 2
	w := NewWatcher(f.js, f.options(false), func(s Snapshot) error {
		if failures--; failures >= 0 {
			return errors.New("not now")
		}
		applied <- s
		return nil
	})
	testkit.Run(t, w.Run)
	<-applied
	testkit.Eventually(t, "the recovery is logged", func() bool { return f.log.Count("limits bucket is available again") == 1 })
	testkit.NoError(t, w.Unavailable())
	f.log.WantCount(t, 1, "not now")
}

// A call of Refresh returns when its revision is applied, not before.
func TestRefreshWaitsForChangesOnTheirWay(t *testing.T) {
	t.Parallel()
	w := NewWatcher(nil, Options{Logger: slog.New(slog.DiscardHandler)}, func(Snapshot) error { return nil })
	advance := func(revision uint64) {
		testkit.NoError(t, w.advance(&state{Snapshot: Snapshot{Generation: 1, Revision: revision}}))
	}
	advance(3)
	refreshed := make(chan error, 1)
	ctx := testkit.Context(t)
	go func() { refreshed <- w.Refresh(ctx) }()
	<-w.look
	w.release(waiter{calls: w.calls.Load(), revision: 5})
	advance(4)
	w.mu.Lock()
	served := w.served
	w.mu.Unlock()
	testkit.Equal(t, served, 0, "calls released before revision 5 was applied")
	advance(5)
	testkit.NoError(t, <-refreshed)
}

// Refresh ends a long pause.
func TestRefreshShortensThePause(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	w := NewWatcher(nil, Options{Logger: slog.New(slog.DiscardHandler)}, func(Snapshot) error { return nil })
	w.look <- struct{}{}
	w.sleep(ctx, time.Hour)
	testkit.NoError(t, ctx.Err())
}

// While the bucket is absent, a watcher applies nothing, and Refresh waits until its context ends.
func TestRefreshWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.mirror(f.js, false)
	w.requireUnavailable()
	testkit.Fails(f, "error", w.Unavailable(), ErrNoBucket, `"limits"`)
	testkit.Equal(t, len(w.snapshots()), 0, "snapshots of no bucket")
	testkit.Fails(f, "error", w.Refresh(testkit.Ended(t)), context.Canceled)
	refreshed := make(chan error, 1)
	go func() { refreshed <- w.Refresh(f.context()) }()
	f.change(f.open(), "a=1")
	testkit.NoError(t, <-refreshed)
	w.requireLast("a=1")
	w.requireOneOutage()
}

// A watcher can be stopped in each state. Stopping logs no outage.
func TestWatcherStops(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*fixture){
		"following":   func(f *fixture) { f.open() },
		"waiting":     func(*fixture) {},
		"unavailable": func(f *fixture) { f.open(); f.server.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			prepare(f)
			w := f.mirror(f.js, false)
			if name == "following" {
				w.requireLast()
			} else {
				w.requireUnavailable()
			}
			before := f.log.Count(textLoss)
			w.stop()
			f.log.WantCount(t, before, textLoss)
		})
	}
}
