package overrides

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// mirror is a running watcher with the snapshots that it applied.
type mirror struct {
	*Watcher
	f    *fixture
	stop func() // returns when Run has ended

	applying  atomic.Bool
	mayGoBack atomic.Bool
	mu        sync.Mutex
	applied   []Snapshot
}

// mirror starts a watcher that is stopped with the test.
func (f *fixture) mirror(js jetstream.JetStream, provision bool) *mirror {
	f.Helper()
	w := &mirror{f: f}
	w.Watcher = NewWatcher(js, f.options(provision), w.note)
	ctx, cancel := context.WithCancel(f.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	f.Cleanup(w.stop)
	return w
}

// note checks that snapshots come one at a time, each newer than the one before.
func (w *mirror) note(s Snapshot) {
	if !w.applying.CompareAndSwap(false, true) {
		w.f.Error("two snapshots are applied at once")
	}
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
}

func (w *mirror) snapshots() []Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.applied)
}

// last is the newest snapshot, or an empty one.
func (w *mirror) last() Snapshot {
	if s := w.snapshots(); len(s) > 0 {
		return s[len(s)-1]
	}
	return Snapshot{}
}

// requireLast waits until exactly these entries are applied.
func (w *mirror) requireLast(want ...string) {
	w.f.Helper()
	w.f.eventually(fmt.Sprintf("%q is applied", want), func() bool {
		return len(w.snapshots()) > 0 && slices.Equal(entries(w.last()), want)
	})
}

const (
	textLoss   = "limits bucket is away, last known limits stay in force"
	textReturn = "limits bucket is back"
)

func (w *mirror) requireUnavailable() {
	w.f.Helper()
	w.f.eventually("the bucket is unavailable", func() bool { return w.Unavailable() != nil && len(w.f.log.Lines(textLoss)) > 0 })
}

func (w *mirror) requireAvailable() {
	w.f.Helper()
	w.f.eventually("the bucket is available again", func() bool { return w.Unavailable() == nil && len(w.f.log.Lines(textReturn)) > 0 })
}

// requireOneOutage waits for the end of an outage. The log must have one line for its begin and one for its end.
func (w *mirror) requireOneOutage() {
	w.f.Helper()
	w.requireAvailable()
	if begins, ends := w.f.log.Lines(textLoss), w.f.log.Lines(textReturn); len(begins) != 1 || len(ends) != 1 {
		w.f.Errorf("the log has %d begins and %d ends of an outage, want one each; log:\n%s", len(begins), len(ends), w.f.log)
	}
}

// A watcher applies a first snapshot even if the bucket is empty, then one for each change, in order.
func TestWatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	w := f.mirror(f.js, false)
	w.requireLast()
	f.set(b, enforced("payments.*"), "1/1m")
	f.set(b, shadow("global"), "2/1m")
	f.unset(b, enforced("payments.*"))
	f.set(b, shadow("global"), "3/1m")
	w.requireLast("shadow global=3/1m")
	var got []string
	for _, s := range w.snapshots() {
		got = append(got, fmt.Sprintf("%d: %s", s.Revision, strings.Join(entries(s), " ")))
	}
	want := []string{
		"0: ", "1: payments.*=1/1m", "2: payments.*=1/1m shadow global=2/1m", "3: shadow global=2/1m", "4: shadow global=3/1m",
	}
	testkit.EqualSlices(t, got, want, "applied")
	if loaded := f.load(b); loaded.Generation != w.last().Generation || !slices.Equal(loaded.Entries, w.last().Entries) {
		t.Errorf("loaded %+v, applied %+v", loaded, w.last())
	}
	if err := w.Unavailable(); err != nil || f.log.String() != strings.Join(f.log.Lines("is created"), "") {
		t.Errorf("unavailable: %v, log:\n%s", err, f.log)
	}
}

func TestWatchBeginsWithWhatIsThere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	for i := range 100 {
		f.set(b, enforced(fmt.Sprintf("c%02d", i)), "1/1m")
	}
	f.unset(b, enforced("c00"))
	w := f.mirror(f.js, false)
	f.eventually("the first snapshot", func() bool { return len(w.snapshots()) > 0 })
	if first := w.snapshots()[0]; first.Revision != 101 || len(first.Entries) != 99 {
		t.Errorf("first snapshot has revision %d and %d entries, want 101 and 99", first.Revision, len(first.Entries))
	}
}

// All watchers see the same changes, in the same order and with the same revisions.
func TestTwoWatchers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	first, second := f.mirror(f.js, false), f.mirror(f.connect(f.server.URL), false)
	first.requireLast()
	second.requireLast()
	for i := range 20 {
		f.set(b, enforced("a"), fmt.Sprint(i))
	}
	first.requireLast("a=19")
	second.requireLast("a=19")
	one, two := first.snapshots(), second.snapshots()
	if len(one) != 21 || len(two) != 21 {
		t.Fatalf("%d and %d snapshots, want 21", len(one), len(two))
	}
	for i := range one {
		if one[i].Generation != two[i].Generation || one[i].Revision != two[i].Revision || !slices.Equal(one[i].Entries, two[i].Entries) {
			t.Errorf("snapshot %d: %+v and %+v", i, one[i], two[i])
		}
	}
}

// The function that gets a snapshot may change it: the next snapshots have memory of their own.
func TestSnapshotsShareNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1")
	w := f.mirror(f.js, false)
	w.requireLast("a=1")
	w.last().Entries[0].Value = "changed by the caller"
	f.set(b, enforced("b"), "2")
	w.requireLast("a=1", "b=2")
}

func TestWatchForeignKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	w := f.mirror(f.js, false)
	testkit.Must(f.keyValue().PutString(f.context(), "Foreign", "x"))(t)
	f.set(b, enforced("a"), "1")
	w.requireLast("a=1")
	if s := w.last(); s.Revision != 2 {
		t.Errorf("revision = %d, want 2", s.Revision)
	}
	// After an outage the watcher reads the key again, and does not log it again.
	f.server.Restart()
	w.requireUnavailable()
	w.requireAvailable()
	f.set(b, enforced("a"), "2")
	w.requireLast("a=2")
	if lines := f.log.Lines("not the name of a limit"); len(lines) != 1 {
		t.Errorf("logged: %q, want it once", lines)
	}
}

// The changes since a time come with their authors.
func TestWatcherTellsOfChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.mirror(f.js, true)
	if _, err := NewWatcher(f.js, f.options(false), func(Snapshot) {}).Changes(f.context(), time.Time{}); err == nil {
		t.Error("a watcher that has read nothing returned no error")
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
	f.set(ann, enforced("a"), "1")
	testkit.Must(f.keyValue().PutString(f.context(), "a", "2"))(t)
	f.unset(ann, enforced("a"))
	w.requireLast()
	f.set(ann, shadow("b"), "3")
	w.requireLast("shadow b=3")
	testkit.Equal(t, w.last().Entries[0].By, "ann[31m", "set by")
	revision := testkit.Must(ann.NoteAdoption(f.context(), "revision 9"))(t)
	f.eventually("the adoption is applied", func() bool { return w.last().Revision == revision })
	want(time.Time{}, `a: "1" by "ann[31m"`, `a: "2" by ""`, `a: "" by "ann[31m"`, `shadow b: "3" by "ann[31m"`)
	history, err := ann.History(f.context())
	if err != nil || len(history) != 5 {
		t.Fatalf("history %v, %v", history, err)
	}
	if last := history[4]; !last.Adopted || last.Value != "revision 9" || last.By != "ann[31m" {
		t.Errorf("the last of the history is %+v, want the adoption", last)
	}
	want(history[2].Changed, `shadow b: "3" by "ann[31m"`)
	want(history[3].Changed)
	if lines := f.log.Lines("not the name of a limit"); len(lines) > 0 {
		t.Errorf("logged %q", lines)
	}
}

// Changes returns the newest 20, and asks the server only if there are any.
func TestWatcherTellsOfTheNewestChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.mirror(f.js, true)
	w.requireLast()
	b := f.open()
	for i := range 30 {
		f.set(b, enforced("c"), fmt.Sprint(i))
	}
	w.requireLast("c=29")
	changes, err := w.Changes(f.context(), time.Time{})
	if err != nil || len(changes) != mostChanges || changes[mostChanges-1].Value != "29" {
		t.Errorf("%d changes, %v; want the newest %d", len(changes), err, mostChanges)
	}
	f.server.Kill()
	if changes, err := w.Changes(f.context(), time.Now().Add(time.Hour)); err != nil || len(changes) > 0 {
		t.Errorf("without a change and a server: %v, %v", changes, err)
	}
}

// A watcher needs the rights to read, and no other.
func TestRightsOfAWatcher(t *testing.T) {
	t.Parallel()
	f, js, denied := restricted(t, readRights...)
	b := f.open()
	w := f.mirror(js, true)
	w.requireLast()
	f.set(b, enforced("a"), "1")
	w.requireLast("a=1")
	if err := w.Refresh(f.context()); err != nil {
		t.Error(err)
	}
	w.stop()
	if err := js.Conn().FlushTimeout(patience); err != nil || denied.String() != "" {
		t.Errorf("denied: %s, %v", denied, err)
	}
}

// A watcher without a right names it, and goes on trying.
func TestWatcherWithoutRight(t *testing.T) {
	t.Parallel()
	for _, missing := range readRights {
		t.Run(missing, func(t *testing.T) {
			t.Parallel()
			f, js, denied := restricted(t, slices.DeleteFunc(slices.Clone(readRights), func(r string) bool { return r == missing })...)
			f.open()
			w := f.mirror(js, false)
			w.requireUnavailable()
			if err := w.Unavailable(); !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), `"limits"`) {
				t.Errorf("unavailable: %v, want the bucket and the right", err)
			}
			f.eventually("the watcher tries again", func() bool { return len(denied.Lines("Permissions Violation")) > 1 })
			if lines := f.log.Lines(textLoss); len(lines) != 1 {
				t.Errorf("logged: %q, want it once", lines)
			}
		})
	}
}

// Refresh returns when what was confirmed before the call is applied.
func TestRefresh(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	w := f.mirror(f.js, false)
	testkit.NoError(t, w.Refresh(f.context()))
	testkit.Equal(t, len(w.snapshots()), 1, "snapshots after the first refresh")
	for range 20 {
		revision := f.set(b, enforced("a"), "1/1m")
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				if err := w.Refresh(f.context()); err != nil {
					f.Error(err)
				}
				if got := w.last().Revision; got < revision {
					f.Errorf("revision %d is applied, want %d", got, revision)
				}
			})
		}
		asking.Wait()
	}
	testkit.Equal(t, len(w.snapshots()), 21, "snapshots, want 21: none for a refresh that brings nothing new")
}

// A waiter is released once the watcher has applied the revision it waits for, and not before.
func TestRefreshWaitsForChangesOnTheirWay(t *testing.T) {
	t.Parallel()
	w := NewWatcher(nil, Options{}, func(Snapshot) {})
	advance := func(revision uint64) {
		w.advance(&state{generation: 1, revision: revision})
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
	if served > 0 {
		t.Error("the call was released before revision 5 was applied")
	}
	advance(5)
	if err := <-refreshed; err != nil {
		t.Error(err)
	}
}

// Refresh ends a long pause.
func TestRefreshShortensThePause(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	w := NewWatcher(nil, Options{}, func(Snapshot) {})
	w.look <- struct{}{}
	w.rest(ctx, time.Hour)
	if ctx.Err() != nil {
		t.Error("the pause went on")
	}
}

// Refresh notices a new bucket at once.
func TestRefreshFindsTheNewBucket(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1")
	w := f.mirror(f.js, false)
	w.requireLast("a=1")
	f.deleteBucket()
	f.set(f.open(), enforced("b"), "2")
	testkit.NoError(t, w.Refresh(f.context()))
	f.requireEntries(w.last(), "b=2")
}

// While there is no bucket, Refresh waits until its context ends.
func TestRefreshWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.mirror(f.js, false)
	w.requireUnavailable()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Refresh(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("refresh with a context that has ended: %v", err)
	}
	refreshed := make(chan error, 1)
	go func() { refreshed <- w.Refresh(f.context()) }()
	f.set(f.open(), enforced("a"), "1")
	if err := <-refreshed; err != nil {
		t.Error(err)
	}
	w.requireLast("a=1")
}

// A watcher can be stopped in every state, and logs no outage then.
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
			before := len(f.log.Lines(textLoss))
			w.stop()
			if after := len(f.log.Lines(textLoss)); after != before {
				t.Error("stopping is logged as an outage")
			}
		})
	}
}
