package overrides

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// follower is a running watcher and what it applied.
type follower struct {
	*Watcher
	f    *fixture
	stop func() // returns when it has ended

	applying  atomic.Bool
	mayGoBack atomic.Bool
	mu        sync.Mutex
	applied   []Snapshot
}

// follow starts a watcher that is stopped with the test.
func (f *fixture) follow(js jetstream.JetStream, provision bool) *follower {
	f.Helper()
	w := &follower{f: f}
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

// note checks what holds for all snapshots.
func (w *follower) note(s Snapshot) {
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

func (w *follower) snapshots() []Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.applied)
}

// last is the newest snapshot, or an empty one.
func (w *follower) last() Snapshot {
	if s := w.snapshots(); len(s) > 0 {
		return s[len(s)-1]
	}
	return Snapshot{}
}

// requireLast waits until exactly these entries are applied.
func (w *follower) requireLast(want ...string) {
	w.f.Helper()
	w.f.eventually(fmt.Sprintf("%q is applied", want), func() bool {
		return len(w.snapshots()) > 0 && slices.Equal(entries(w.last()), want)
	})
}

const (
	wordAway = "limits bucket is away, last known limits stay in force"
	wordBack = "limits bucket is back"
)

func (w *follower) requireAway() {
	w.f.Helper()
	w.f.eventually("it is away", func() bool { return w.Away() != nil && len(w.f.log.lines(wordAway)) > 0 })
}

func (w *follower) requireBack() {
	w.f.Helper()
	w.f.eventually("it is back", func() bool { return w.Away() == nil && len(w.f.log.lines(wordBack)) > 0 })
}

// requireOneOutage wants both ends of one outage in the log, once each.
func (w *follower) requireOneOutage() {
	w.f.Helper()
	w.requireBack()
	if away, back := w.f.log.lines(wordAway), w.f.log.lines(wordBack); len(away) != 1 || len(back) != 1 {
		w.f.Errorf("logged %d times that it is away and %d times that it is back; log:\n%s", len(away), len(back), w.f.log)
	}
}

// The first snapshot comes even if there is nothing in it, and then one for each change, in order.
func TestWatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	w := f.follow(f.js, false)
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
	if !slices.Equal(got, want) {
		t.Errorf("applied: %q, want %q", got, want)
	}
	if loaded := f.load(b); loaded.Generation != w.last().Generation || !slices.Equal(loaded.Entries, w.last().Entries) {
		t.Errorf("loaded %+v, applied %+v", loaded, w.last())
	}
	if err := w.Away(); err != nil || f.log.String() != strings.Join(f.log.lines("is created"), "") {
		t.Errorf("away: %v, log:\n%s", err, f.log)
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
	w := f.follow(f.js, false)
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
	first, second := f.follow(f.js, false), f.follow(f.connect(f.server.URL), false)
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

// A snapshot belongs to who got it.
func TestSnapshotsShareNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1")
	w := f.follow(f.js, false)
	w.requireLast("a=1")
	w.last().Entries[0].Value = "spoilt"
	f.set(b, enforced("b"), "2")
	w.requireLast("a=1", "b=2")
}

func TestWatchForeignKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	w := f.follow(f.js, false)
	if _, err := f.keyValue().PutString(f.context(), "Foreign", "x"); err != nil {
		t.Fatal(err)
	}
	f.set(b, enforced("a"), "1")
	w.requireLast("a=1")
	if s := w.last(); s.Revision != 2 {
		t.Errorf("revision = %d, want 2", s.Revision)
	}
	// It is read again when the bucket was away, and not logged again.
	f.server.Restart()
	w.requireAway()
	w.requireBack()
	f.set(b, enforced("a"), "2")
	w.requireLast("a=2")
	if lines := f.log.lines("not the name of a limit"); len(lines) != 1 {
		t.Errorf("logged: %q, want it once", lines)
	}
}

// Server and bucket are away and come back: what was applied stays, what was missed is applied, and each is said once.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *servertest.NATS{
		"orderly": func(t *testing.T) *servertest.NATS { return servertest.StartNATS(t) },
		"killed":  func(t *testing.T) *servertest.NATS { return servertest.StartNATSProcess(t, "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixtureOn(t, start(t))
			b := f.open()
			f.set(b, enforced("a"), "1")
			w := f.follow(f.connect(f.server.URL), false)
			w.requireLast("a=1")
			f.server.Kill()
			w.requireAway()
			f.server.Restart()
			f.eventually("the operator is connected", f.js.Conn().IsConnected)
			f.set(b, enforced("a"), "2")
			w.requireLast("a=2")
			w.requireOneOutage()
			if n := len(w.snapshots()); n != 2 {
				t.Errorf("%d snapshots, want 2", n)
			}
			f.set(b, enforced("a"), "3")
			w.requireLast("a=3")
		})
	}
}

// A server that hangs is noticed, too.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATSProcess(t, ""))
	b := f.open()
	w := f.follow(f.connect(f.server.URL), false)
	w.requireLast()
	f.server.Pause()
	w.requireAway()
	f.server.Resume()
	w.requireBack()
	f.set(b, enforced("a"), "1")
	w.requireLast("a=1")
}

// A change that is lost with the connection is made up for.
func TestConnectionBreaks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	proxy := servertest.StartProxy(t, strings.TrimPrefix(f.server.URL, "nats://"))
	w := f.follow(f.connect("nats://"+proxy.Addr), false)
	w.requireLast()
	for i := range 3 {
		proxy.DropReplies(true)
		f.set(b, enforced("a"), fmt.Sprint(i))
		proxy.Cut()
		proxy.DropReplies(false)
		w.requireLast(fmt.Sprintf("a=%d", i))
	}
}

// The consumer behind a watcher may vanish, as an idle one does, without the watcher's doing.
func TestConsumerVanishes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	w := f.follow(f.js, false)
	w.requireLast()
	stream, err := f.js.Stream(f.context(), "KV_limits")
	if err != nil {
		t.Fatal(err)
	}
	deleted := 0
	for name := range stream.ConsumerNames(f.context()).Name() {
		if err := stream.DeleteConsumer(f.context(), name); err != nil {
			t.Fatal(err)
		}
		deleted++
	}
	if deleted != 1 {
		t.Fatalf("the watcher has %d consumers, want 1", deleted)
	}
	f.set(b, enforced("a"), "1")
	w.requireLast("a=1")
	w.requireOneOutage()
}

// deaf is a JetStream whose consumers get the changes of one key alone while it is switched on.
type deaf struct {
	jetstream.JetStream
	on *atomic.Bool
}

func (d deaf) CreatePushConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.PushConsumer, error) {
	if d.on.Load() {
		c.FilterSubject = "$KV.limits.a"
	}
	return d.JetStream.CreatePushConsumer(ctx, stream, c)
}

// A consumer that is alive and yet does not deliver is not believed, neither while following nor when reading anew.
func TestChangesDoNotArrive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1")
	js := deaf{f.js, new(atomic.Bool)}
	js.on.Store(true)
	w := f.follow(js, false)
	w.requireLast("a=1")
	f.set(b, enforced("b"), "2")
	f.eventually("it is noticed", func() bool { return errors.Is(w.Away(), errBehind) })
	f.eventually("a new reading does not end", func() bool { return errors.Is(w.Away(), errIncomplete) })
	w.requireLast("a=1")
	js.on.Store(false)
	if err := w.Refresh(f.context()); err != nil {
		t.Fatal(err)
	}
	f.requireEntries(w.last(), "a=1", "b=2")
	w.requireOneOutage()
}

// Consumers are forgotten by the server when nobody needs them any more.
func TestConsumersAreForgotten(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.follow(f.js, false).stop()
	f.load(b)
	f.eventually("no consumer is left", func() bool {
		stream, err := f.js.Stream(f.context(), "KV_limits")
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.Consumers == 0
	})
	if n := f.js.Conn().NumSubscriptions(); n > 1 { // that for replies
		t.Errorf("%d subscriptions are left", n)
	}
}

// What was applied stays while the bucket is deleted, and the one that is made anew wins, though its revisions are smaller.
func TestBucketIsMadeAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	for i := range 5 {
		f.set(b, enforced("a"), fmt.Sprint(i))
	}
	w := f.follow(f.js, false)
	w.requireLast("a=4")
	old := w.last()
	f.deleteBucket()
	w.requireAway()
	f.eventually("it says what is wrong", func() bool { return errors.Is(w.Away(), ErrNoBucket) })
	w.requireLast("a=4")
	f.open()
	f.set(b, enforced("b"), "1")
	w.requireLast("b=1")
	if s := w.last(); s.Generation <= old.Generation || s.Revision >= old.Revision {
		t.Errorf("generation and revision after %d, %d: %d, %d", old.Generation, old.Revision, s.Generation, s.Revision)
	}
	w.requireOneOutage()
}

// The same when it happens faster than anybody could look: the watcher must not take the new bucket's silence for the old one's.
func TestBucketIsMadeAnewAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1")
	w := f.follow(f.js, false)
	w.requireLast("a=1")
	f.deleteBucket()
	f.open()
	w.requireLast()
	f.set(b, enforced("b"), "2")
	w.requireLast("b=2")
	w.requireOneOutage()
}

// A watcher that may create the bucket makes it anew when it is deleted.
func TestWatcherProvisions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.follow(f.js, true)
	w.requireLast()
	b := newBucket(f.js, f.options(false))
	f.set(b, enforced("a"), "1")
	w.requireLast("a=1")
	f.deleteBucket()
	w.requireLast()
	f.set(b, enforced("b"), "2")
	w.requireLast("b=2")
	w.requireOneOutage()
	if lines := f.log.lines("limits bucket is created"); len(lines) != 2 {
		t.Errorf("logged: %q, want two creations", lines)
	}
}

// A bucket that is absent is waited for.
func TestBucketAppearsLater(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.follow(f.js, false)
	w.requireAway()
	if err := w.Away(); !errors.Is(err, ErrNoBucket) || !strings.Contains(err.Error(), `"limits"`) {
		t.Errorf("away: %v", err)
	}
	if n := len(w.snapshots()); n != 0 {
		t.Errorf("%d snapshots of no bucket", n)
	}
	f.set(f.open(), enforced("a"), "1")
	w.requireLast("a=1")
	w.requireOneOutage()
}

// Before anything was read, that is what is wrong.
func TestAwayBeforeTheFirstSnapshot(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if err := NewWatcher(f.js, f.options(false), func(Snapshot) {}).Away(); err == nil {
		t.Error("a watcher that has read nothing says that all is well")
	}
}

// setBack gives the server a store that it had before, and returns when it runs again.
func (f *fixture) setBack(store string) {
	f.Helper()
	f.server.Kill()
	if err := os.RemoveAll(filepath.Join(f.server.Dir, "jetstream")); err != nil {
		f.Fatal(err)
	}
	if err := os.CopyFS(f.server.Dir, os.DirFS(store)); err != nil {
		f.Fatal(err)
	}
	f.server.Restart()
	f.eventually("the operator is connected", f.js.Conn().IsConnected)
}

// backUp copies the server's store.
func (f *fixture) backUp() string {
	f.Helper()
	f.server.Kill()
	store := f.TempDir()
	if err := os.CopyFS(store, os.DirFS(f.server.Dir)); err != nil {
		f.Fatal(err)
	}
	f.server.Restart()
	f.eventually("the operator is connected", f.js.Conn().IsConnected)
	return store
}

// A bucket that went back is followed: Redis, and not the watcher, knows whether its state may be used.
func TestBucketIsRestored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1")
	backup := f.backUp()
	w := f.follow(f.connect(f.server.URL), false)
	w.mayGoBack.Store(true)
	w.requireLast("a=1")
	f.set(b, enforced("a"), "2")
	f.set(b, enforced("a"), "3")
	w.requireLast("a=3")

	f.setBack(backup)
	w.requireLast("a=1")
	if got := w.last().Revision; got != 1 {
		t.Errorf("revision %d is applied, want 1", got)
	}
	w.requireOneOutage()
	f.set(b, enforced("a"), "4")
	w.requireLast("a=4")
}

// After a restore another state may have come to the revision that was applied before.
func TestRestoredBucketReachesTheSameRevision(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1")
	backup := f.backUp()
	proxy := servertest.StartProxy(t, strings.TrimPrefix(f.server.URL, "nats://"))
	w := f.follow(f.connect("nats://"+proxy.Addr), false)
	w.mayGoBack.Store(true)
	f.set(b, enforced("a"), "2")
	w.requireLast("a=2")
	proxy.DropReplies(true)
	f.setBack(backup)
	f.set(b, enforced("a"), "3")
	proxy.Cut()
	proxy.DropReplies(false)
	w.requireLast("a=3")
	if got := w.last().Revision; got != 2 {
		t.Errorf("revision %d is applied, want 2", got)
	}
}

// A watcher that is still connected notices at once that the bucket went back.
func TestRefreshAfterTheBucketWentBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1")
	backup := f.backUp()
	w := f.follow(f.connect(f.server.URL), false)
	w.mayGoBack.Store(true)
	f.set(b, enforced("a"), "2")
	w.requireLast("a=2")
	f.setBack(backup)
	if err := w.Refresh(f.context()); err != nil {
		t.Fatal(err)
	}
	f.requireEntries(w.last(), "a=1")
}

// The changes since a time are told with what was before and with who made them.
func TestWatcherTellsOfChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.follow(f.js, true)
	if _, err := NewWatcher(f.js, f.options(false), func(Snapshot) {}).Changes(f.context(), time.Time{}); err == nil {
		t.Error("a watcher that has read nothing tells that nothing was changed")
	}
	w.requireLast()
	o := f.options(false)
	o.By = " ann\n\x1b[31m "
	ann, err := Open(f.context(), f.js, o)
	if err != nil {
		t.Fatal(err)
	}
	want := func(since time.Time, lines ...string) {
		t.Helper()
		changes, err := w.Changes(f.context(), since)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range changes {
			got = append(got, fmt.Sprintf("%s: %q -> %q by %q", c.Name, c.Old, c.Value, c.By))
		}
		if !slices.Equal(got, lines) {
			t.Errorf("changes %q, want %q", got, lines)
		}
	}
	want(time.Time{})
	f.set(ann, enforced("a"), "1")
	if _, err := f.keyValue().PutString(f.context(), "a", "2"); err != nil {
		t.Fatal(err)
	}
	f.unset(ann, enforced("a"))
	w.requireLast()
	f.set(ann, shadow("b"), "3")
	w.requireLast("shadow b=3")
	if by := w.last().Entries[0].By; by != "ann[31m" {
		t.Errorf("set by %q", by)
	}
	revision, err := ann.NoteAdoption(f.context(), "revision 9")
	if err != nil {
		t.Fatal(err)
	}
	f.eventually("the adoption is applied", func() bool { return w.last().Revision == revision })
	want(time.Time{}, `a: "" -> "1" by "ann[31m"`, `a: "1" -> "2" by ""`, `a: "2" -> "" by "ann[31m"`, `shadow b: "" -> "3" by "ann[31m"`)
	history, err := ann.History(f.context())
	if err != nil || len(history) != 5 {
		t.Fatalf("history %v, %v", history, err)
	}
	if last := history[4]; !last.Adopted || last.Value != "revision 9" || last.By != "ann[31m" {
		t.Errorf("the last of the history is %+v, want the adoption", last)
	}
	want(history[2].Changed, `shadow b: "" -> "3" by "ann[31m"`)
	want(history[3].Changed)
	for i := range 30 {
		f.set(ann, enforced("c"), fmt.Sprint(i))
	}
	w.requireLast("c=29", "shadow b=3")
	changes, err := w.Changes(f.context(), time.Time{})
	if err != nil || len(changes) != mostChanges || changes[mostChanges-1].Value != "29" {
		t.Errorf("%d changes, %v; want the newest %d", len(changes), err, mostChanges)
	}
	if lines := f.log.lines("not the name of a limit"); len(lines) > 0 {
		t.Errorf("logged %q", lines)
	}
	// Where nothing has changed, nobody is asked.
	f.server.Kill()
	want(time.Now().Add(time.Hour))
}

// A watcher does all of its work with the rights to read.
func TestRightsOfAWatcher(t *testing.T) {
	t.Parallel()
	f, js, denied := restricted(t, readRights...)
	b := f.open()
	w := f.follow(js, true)
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

// A watcher without a right says which one it is, and goes on trying.
func TestWatcherWithoutRight(t *testing.T) {
	t.Parallel()
	for _, missing := range readRights {
		t.Run(missing, func(t *testing.T) {
			t.Parallel()
			f, js, denied := restricted(t, slices.DeleteFunc(slices.Clone(readRights), func(r string) bool { return r == missing })...)
			f.open()
			w := f.follow(js, false)
			w.requireAway()
			if err := w.Away(); !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), `"limits"`) {
				t.Errorf("away: %v, want the bucket and the right", err)
			}
			f.eventually("it tries again", func() bool { return len(denied.lines("Permissions Violation")) > 1 })
			if lines := f.log.lines(wordAway); len(lines) != 1 {
				t.Errorf("logged: %q, want it once", lines)
			}
		})
	}
}

// After a refresh what was confirmed before it is applied.
func TestRefresh(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	w := f.follow(f.js, false)
	if err := w.Refresh(f.context()); err != nil {
		t.Fatal(err)
	}
	if n := len(w.snapshots()); n != 1 {
		t.Errorf("%d snapshots after the first refresh, want 1", n)
	}
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
	if n := len(w.snapshots()); n != 21 {
		t.Errorf("%d snapshots, want 21: none for a refresh that brings nothing new", n)
	}
}

// A refresh that finds changes on their way returns when they are applied, and not before.
func TestRefreshWaitsForChangesOnTheirWay(t *testing.T) {
	t.Parallel()
	w := NewWatcher(nil, Options{}, func(Snapshot) {})
	advance := func(revision uint64) {
		w.advance(&state{generation: 1, revision: revision})
	}
	advance(3)
	refreshed := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() { refreshed <- w.Refresh(ctx) }()
	<-w.look
	if arrived := w.promise(w.questions(), 5); arrived != 3 {
		t.Errorf("revision %d is applied, want 3", arrived)
	}
	advance(4)
	w.mu.Lock()
	answered := w.answered
	w.mu.Unlock()
	if answered > 0 {
		t.Error("it was answered before revision 5")
	}
	advance(5)
	if err := <-refreshed; err != nil {
		t.Error(err)
	}
}

// Who asks for a refresh does not wait for the end of a long pause.
func TestRefreshShortensThePause(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := NewWatcher(nil, Options{}, func(Snapshot) {})
	w.look <- struct{}{}
	w.rest(ctx, time.Hour)
	if ctx.Err() != nil {
		t.Error("the pause went on")
	}
}

// A refresh notices at once what would be noticed later.
func TestRefreshFindsTheNewBucket(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1")
	w := f.follow(f.js, false)
	w.requireLast("a=1")
	f.deleteBucket()
	f.set(f.open(), enforced("b"), "2")
	if err := w.Refresh(f.context()); err != nil {
		t.Fatal(err)
	}
	f.requireEntries(w.last(), "b=2")
}

// While there is no bucket a refresh waits, as long as it may.
func TestRefreshWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.follow(f.js, false)
	w.requireAway()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Refresh(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("refresh with a context that has ended: %v", err)
	}
	refreshed := make(chan error, 1)
	go func() { refreshed <- w.Refresh(f.context()) }()
	f.set(f.open(), enforced("a"), "1")
	// The bucket may have been read before the override was set, but not if the refresh came later.
	if err := <-refreshed; err != nil {
		t.Error(err)
	}
	w.requireLast("a=1")
}

// A watcher stops whatever it is doing, and calls that no outage.
func TestWatcherStops(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*fixture){
		"following": func(f *fixture) { f.open() },
		"waiting":   func(*fixture) {},
		"away":      func(f *fixture) { f.open(); f.server.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			prepare(f)
			w := f.follow(f.js, false)
			if name == "following" {
				w.requireLast()
			} else {
				w.requireAway()
			}
			before := len(f.log.lines(wordAway))
			w.stop()
			if after := len(f.log.lines(wordAway)); after != before {
				t.Error("stopping is logged as an outage")
			}
		})
	}
}
