package overrides

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/replicas"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// During an outage the last snapshot stays applied. After it the watcher applies what it missed.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	testkit.Each(t, map[string]func(*testing.T) *servertest.NATS{
		"orderly": func(t *testing.T) *servertest.NATS { return servertest.StartNATS(t) },
		"killed":  func(t *testing.T) *servertest.NATS { return servertest.StartNATSProcess(t, "") },
	}, func(t *testing.T, start func(*testing.T) *servertest.NATS) {
		f := newFixtureOn(t, start(t))
		b := f.open()
		f.change(b, "a=1")
		w := f.following(f.connect(f.server.URL), "a=1")
		f.server.Kill()
		w.requireUnavailable()
		f.restart()
		w.requireFollows(b, "a=2")
		w.requireOneOutage()
		testkit.Equal(t, len(w.snapshots()), 2, "snapshots")
		w.requireFollows(b, "a=3")
	})
}

// A watcher notices a server that hangs.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATSProcess(t, ""))
	b := f.open()
	w := f.following(f.connect(f.server.URL))
	f.server.Pause()
	w.requireUnavailable()
	f.server.Resume()
	w.requireAvailable()
	w.requireFollows(b, "a=1")
}

// A watcher applies a change whose message was lost with the connection.
func TestConnectionBreaks(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	proxy := servertest.StartProxy(t, strings.TrimPrefix(f.server.URL, "nats://"))
	w := f.following(f.connect("nats://" + proxy.Addr))
	for i := range 3 {
		proxy.DropReplies(true)
		f.change(b, "a="+fmt.Sprint(i))
		proxy.Cut()
		proxy.DropReplies(false)
		w.requireLast(fmt.Sprintf("a=%d", i))
	}
}

// A watcher notices that the server deleted its consumer.
func TestConsumerVanishes(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	w := f.following(f.js)
	stream := testkit.Must(f.js.Stream(f.context(), "KV_limits"))(t)
	deleted := 0
	for name := range stream.ConsumerNames(f.context()).Name() {
		testkit.NoError(t, stream.DeleteConsumer(f.context(), name))
		deleted++
	}
	testkit.Equal(t, deleted, 1, "consumers of the watcher")
	w.requireFollows(b, "a=1")
	w.requireOneOutage()
}

// oneKey is a JetStream whose new consumers get the changes of one key only, while on is set.
type oneKey struct {
	jetstream.JetStream
	on *atomic.Bool
}

func (o oneKey) CreatePushConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.PushConsumer, error) {
	if o.on.Load() {
		c.FilterSubject = "$KV.limits.a"
	}
	return o.JetStream.CreatePushConsumer(ctx, stream, c)
}

// A watcher notices a consumer that lives and does not deliver, both while mirroring and while reading again.
func TestChangesDoNotArrive(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1")
	js := oneKey{f.js, new(atomic.Bool)}
	js.on.Store(true)
	w := f.following(js, "a=1")
	f.change(b, "b=2")
	testkit.Eventually(f, "the missing change is noticed", func() bool { return errors.Is(w.Unavailable(), errBehind) })
	testkit.Eventually(f, "a new reading fails", func() bool { return errors.Is(w.Unavailable(), errIncomplete) })
	w.requireLast("a=1")
	js.on.Store(false)
	testkit.NoError(t, w.Refresh(f.context()))
	f.requireEntries(w.last(), "a=1", "b=2")
	w.requireOneOutage()
}

// The server deletes the consumers of watchers that have stopped.
func TestConsumersAreForgotten(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.mirror(f.js, false).stop()
	f.load(b)
	testkit.Eventually(f, "no consumer is left", func() bool {
		stream := testkit.Must(f.js.Stream(f.context(), "KV_limits"))(t)
		return stream.CachedInfo().State.Consumers == 0
	})
	testkit.AtMost(t, f.js.Conn().NumSubscriptions(), 1, "subscriptions, of which one is for replies,")
}

// While the bucket is absent, the last snapshot stays applied. A new bucket replaces it, although its revisions are smaller.
func TestBucketIsRecreated(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	for i := range 5 {
		f.change(b, "a="+fmt.Sprint(i))
	}
	w := f.following(f.js, "a=4")
	old := w.last()
	f.deleteBucket()
	w.requireUnavailable()
	testkit.Eventually(f, "the watcher says that the bucket is absent", func() bool { return errors.Is(w.Unavailable(), ErrNoBucket) })
	w.requireLast("a=4")
	f.open()
	w.requireFollows(b, "b=1")
	if s := w.last(); s.Generation <= old.Generation || s.Revision >= old.Revision {
		t.Errorf("got generation %d, revision %d, want a later generation than %d and a smaller revision than %d",
			s.Generation, s.Revision, old.Generation, old.Revision)
	}
	w.requireOneOutage()
}

// A watcher notices a new bucket without having noticed that the old bucket was absent.
func TestBucketIsRecreatedAtOnce(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1")
	w := f.following(f.js, "a=1")
	f.deleteBucket()
	f.open()
	w.requireLast()
	w.requireFollows(b, "b=2")
	w.requireOneOutage()
}

// A watcher with the option Provision creates a deleted bucket again.
func TestWatcherProvisions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.mirror(f.js, true)
	w.requireLast()
	b := newBucket(f.js, f.options(false))
	w.requireFollows(b, "a=1")
	removed := time.Now()
	f.deleteBucket()
	testkit.NoError(t, w.Refresh(f.context()))
	w.requireLast()
	made := testkit.Must(f.js.Stream(f.context(), "KV_"+bucketName))(t).CachedInfo().Created
	testkit.Between(t, made.Sub(removed), replicas.DeletionTime, time.Minute, "time after which the bucket is recreated")
	w.requireFollows(b, "b=2")
	w.requireOneOutage()
	f.log.WantCount(t, 2, "created the limits bucket")
}

// restart starts the killed server, and waits until it answers the operator.
func (f *fixture) restart() {
	f.Helper()
	f.server.Restart()
	servertest.AwaitAnswer(f, f.js)
}

// restore restarts the server with an earlier store.
func (f *fixture) restore(store string) {
	f.Helper()
	f.server.Kill()
	testkit.NoError(f, os.RemoveAll(filepath.Join(f.server.Dir, "jetstream")))
	testkit.NoError(f, os.CopyFS(f.server.Dir, os.DirFS(store)))
	f.restart()
}

func (f *fixture) backUp() string {
	f.Helper()
	f.server.Kill()
	store := f.TempDir()
	testkit.NoError(f, os.CopyFS(store, os.DirFS(f.server.Dir)))
	f.restart()
	return store
}

// A watcher mirrors a bucket that went back, and Refresh waits for that state. Redis decides whether the state may be used.
func TestBucketIsRestored(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1")
	backup := f.backUp()
	w := f.mirror(f.connect(f.server.URL), false)
	w.mayGoBack.Store(true)
	w.requireLast("a=1")
	f.change(b, "a=2", "a=3")
	w.requireLast("a=3")

	f.restore(backup)
	testkit.NoError(t, w.Refresh(f.context()))
	f.requireEntries(w.last(), "a=1")
	testkit.Equal(t, w.last().Revision, 1, "revision that is applied")
	w.requireOneOutage()
	w.requireFollows(b, "a=4")
}

// After a restore a new state may have the revision of the applied state.
func TestRestoredBucketReachesTheSameRevision(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1")
	backup := f.backUp()
	proxy := servertest.StartProxy(t, strings.TrimPrefix(f.server.URL, "nats://"))
	w := f.mirror(f.connect("nats://"+proxy.Addr), false)
	w.mayGoBack.Store(true)
	w.requireFollows(b, "a=2")
	proxy.DropReplies(true)
	f.restore(backup)
	f.change(b, "a=3")
	proxy.Cut()
	proxy.DropReplies(false)
	w.requireLast("a=3")
	testkit.Equal(t, w.last().Revision, 2, "revision that is applied")
}
