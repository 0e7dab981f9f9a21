package overrides

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestAbsentBucket(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := Open(f.context(), f.js, f.options(false))
	testkit.Fails(f, "error", err, ErrNoBucket, `"limits"`)
	_, err = f.js.KeyValue(f.context(), bucketName)
	testkit.Fails(f, "error", err, jetstream.ErrBucketNotFound)
}

// Instances that start at once create one bucket.
func TestProvision(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	testkit.AtOnce(8, func(i int) {
		b, err := Open(f.context(), f.js, f.options(true))
		if err == nil {
			_, err = f.apply(b, fmt.Sprintf("c%d=1/1m", i))
		}
		if err != nil {
			f.Error(err)
		}
	})
	status := testkit.Must(f.keyValue().Status(f.context()))(t)
	config := status.Config()
	testkit.Check(t, config.History == 64 && config.Storage == jetstream.FileStorage && config.Replicas == 1 && config.TTL == 0 && config.Description != "",
		"bucket is made as %+v", config)
	testkit.Equal(t, status.Values(), 8, "values are stored")
	f.log.WantCount(t, 0, "WARN")
}

// Open does not alter an existing bucket, and warns about its settings once.
func TestExistingBucketIsNotAltered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	kv := testkit.Must(f.js.CreateKeyValue(f.context(), jetstream.KeyValueConfig{
		Bucket: bucketName, History: 3, TTL: time.Hour, Storage: jetstream.MemoryStorage, Description: "mine",
	}))(t)
	before := testkit.Must(kv.Status(f.context()))(t)
	b := f.open()
	testkit.NoError(t, b.find(f.context()))
	after := testkit.Must(kv.Status(f.context()))(t)
	testkit.Equal(t, fmt.Sprint(after.Config()), fmt.Sprint(before.Config()), "configuration of the bucket")
	f.log.WantCount(t, 1, "keeps too little history")
	f.log.WantCount(t, 1, "expires its keys")
}

func TestStreamThatIsNoBucket(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	testkit.Must(f.js.CreateStream(f.context(), jetstream.StreamConfig{Name: "KV_limits", Subjects: []string{"$KV.limits.>"}}))(t)
	_, err := Open(f.context(), f.js, f.options(true))
	testkit.Fails(f, "error", err, jetstream.ErrBadBucket)
	for _, name := range []string{"", "a.b", "a b", "*"} {
		_, err := Open(f.context(), f.js, Options{Name: name, Provision: true, Logger: f.log.Logger()})
		testkit.Fails(t, "bucket "+name, err, nil)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	start := time.Now()
	f.change(b, "shadow payments.*=5/10m", "payments=40/30m", "global=200/30m", "debug=1/1h", "*.failed=", "-debug", "payments=50/30m")

	s := f.load(b)
	f.requireEntries(s, "*.failed=", "global=200/30m", "payments=50/30m", "shadow payments.*=5/10m")
	testkit.Equal(t, s.Revision, 7, "revision")
	var revisions []uint64
	for _, e := range s.Entries {
		revisions = append(revisions, e.Revision)
		testkit.Check(t, !e.Changed.Before(start) && !e.Changed.After(time.Now()), "%v was changed at %v", e.Name, e.Changed)
	}
	testkit.EqualSlices(t, revisions, []uint64{5, 3, 7, 1}, "revisions")

	// A deletion is the newest change.
	f.change(b, "-global")
	testkit.Equal(t, f.load(b).Revision, 8, "revision after a deletion")
}

// Other clients of NATS read the values of this package, and delete them. A value that a client sets is ignored, since it lacks the mark.
func TestOtherClients(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	kv := f.keyValue()
	f.change(b, "shadow payments.*=5/10m")
	entry := testkit.Must(kv.Get(f.context(), "shadow/payments.="))(t)
	testkit.Equal(t, string(entry.Value()), "5/10m", "value that another client reads")
	f.change(b, "deleted=1/1m", "purged=2/1m", "kept.*=3/1m")
	testkit.NoError(t, kv.Delete(f.context(), "deleted"))
	testkit.NoError(t, kv.Purge(f.context(), "purged"))
	f.requireEntries(f.load(b), "kept.*=3/1m", "shadow payments.*=5/10m")

	// Each client sets keys after the other.
	f.change(b, "-kept.*")
	_, err := kv.Get(f.context(), "kept.=")
	testkit.Fails(f, "error", err, jetstream.ErrKeyNotFound)
	testkit.Must(kv.Create(f.context(), "kept.=", []byte("4/1m")))(t)
	testkit.Must(kv.PutString(f.context(), "shadow/payments.=", "6/10m"))(t)
	f.change(b, "purged=5/1m")
	f.requireEntries(f.load(b), "purged=5/1m", "shadow payments.*=5/10m")
}

// A bucket keeps its revision when its last messages are removed.
func TestRemovedMessages(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1/1m", "b=1/1m", "-b")
	testkit.NoError(t, f.keyValue().PurgeDeletes(f.context(), jetstream.DeleteMarkersOlderThan(-1)))
	s := f.load(b)
	f.requireEntries(s, "a=1/1m")
	testkit.Equal(t, s.Revision, 3, "revision without the last message")
	stream := testkit.Must(f.js.Stream(f.context(), "KV_limits"))(t)
	testkit.NoError(t, stream.Purge(f.context()))
	if s := f.load(b); s.Revision != 3 || len(s.Entries) > 0 {
		t.Errorf("snapshot without any message: %+v, want revision 3", s)
	}
	testkit.Equal(t, f.change(b, "b=2/1m"), 4, "next revision")
}

// A key without a limit's name is ignored. Each value of the key is logged once.
func TestForeignKeysAreIgnored(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	kv := f.keyValue()
	put := func(key string) {
		t.Helper()
		f.put(key, "value")
	}
	f.change(b, "a=1/1m")
	put("Foreign")
	put("other/a")
	for range 3 {
		s := f.load(b)
		f.requireEntries(s, "a=1/1m")
		testkit.Equal(t, s.Revision, 3, "revision")
	}
	f.log.WantCount(t, 2, "does not name a limit")
	f.log.WantCount(t, 1, "key=Foreign")
	put("Foreign")
	testkit.NoError(t, kv.Delete(f.context(), "other/a"))
	f.load(b)
	f.log.WantCount(t, 3, "does not name a limit")
	f.log.WantCount(t, 1, "revision=4")
}

// A snapshot never has the entries of one bucket and the generation of another.
func TestBucketRecreatedWhileReading(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.change(f.open(), "a=1/1m")
	b := newBucket(rival{JetStream: f.js, beforeConsumer: func() {
		f.deleteBucket()
		f.open()
	}}, f.options(false))
	_, err := b.Load(f.context())
	testkit.Fails(f, "error", err, errMadeAnew)
}

// A call ends with its context and leaves no subscription behind.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1/1m")
	stored, before := f.load(b), b.source.js.Conn().NumSubscriptions()
	ctx := testkit.Ended(t)
	for what, call := range map[string]func() error{
		"open":     func() error { _, err := Open(ctx, f.js, f.options(true)); return err },
		"load":     func() error { _, err := b.Load(ctx); return err },
		"set":      func() error { _, err := b.Set(ctx, stored, enforced("a"), "1/1m", 0); return err },
		"unset":    func() error { _, err := b.Unset(ctx, stored, enforced("a")); return err },
		"history":  func() error { _, err := b.History(ctx); return err },
		"rollback": func() error { _, err := b.Rollback(ctx, 1, unchecked); return err },
	} {
		testkit.Fails(t, what, call(), context.Canceled)
	}
	f.load(b)
	testkit.Equal(t, b.source.js.Conn().NumSubscriptions(), before, "subscriptions")
}

// The error of a lost connection names no missing right.
func TestConnectionIsLost(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.server.Kill()
	testkit.Eventually(f, "the connection is lost", func() bool { return !f.js.Conn().IsConnected() })
	_, err := b.Load(f.context())
	testkit.Fails(t, "a call", err, nil, "nats is not connected")
	testkit.Lacks(t, "error", fmt.Sprint(err), "right")
}

// The rights that each kind of user needs.
var (
	readRights = []string{
		"$JS.API.STREAM.INFO.KV_limits",
		"$JS.API.CONSUMER.CREATE.KV_limits.*.$KV.limits.>",
	}
	provisionRights = []string{"$JS.API.INFO", "$JS.API.STREAM.CREATE.KV_limits"}
	writeRights     = []string{"$KV.limits.>"}
)

const inboxPrefix = "_INBOX_test"

// restricted starts a server with userServer, and connects as the user "restricted".
func restricted(t *testing.T, publish ...string) (f *fixture, js jetstream.JetStream, denied *testkit.Log) {
	t.Helper()
	f = newFixtureOn(t, userServer(t, publish), nats.UserInfo("all", "secret"))
	denied = testkit.NewLog(t)
	js = f.connect(f.server.URL, nats.UserInfo("restricted", "secret"), nats.CustomInboxPrefix(inboxPrefix),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied.Logger().Error("denied", "error", err) }))
	return f, js, denied
}

// userServer starts a server with two users: "all" has all rights, "restricted" may publish to the given subjects only.
func userServer(t *testing.T, publish []string) *servertest.NATS {
	t.Helper()
	return servertest.StartNATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "secret"},
			{Username: "restricted", Password: "secret", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: publish},
				Subscribe: &server.SubjectPermission{Allow: []string{inboxPrefix + ".>"}},
			}},
		}
	})
}

// Each kind of user works with its rights alone.
func TestRights(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rights []string
		use    func(f *fixture, js jetstream.JetStream)
	}{
		"command": {slices.Concat(readRights, writeRights), func(f *fixture, js jetstream.JetStream) {
			f.open()
			b := testkit.Must(Open(f.context(), js, f.options(true)))(f)
			first := f.change(b, "payments.*=1/1m")
			f.change(b, "shadow global=1/1m", "-payments.*")
			f.load(b)
			testkit.Must(b.History(f.context()))(f)
			testkit.Equal(f, len(testkit.Must(b.Rollback(f.context(), first, unchecked))(f)), 2, "overrides rolled back")
		}},
		"provisioning": {slices.Concat(readRights, provisionRights), func(f *fixture, js jetstream.JetStream) {
			f.load(testkit.Must(Open(f.context(), js, f.options(true)))(f))
		}},
		"watcher": {readRights, func(f *fixture, js jetstream.JetStream) {
			b := f.open()
			w := f.following(js)
			w.requireFollows(b, "a=1")
			testkit.NoError(f, w.Refresh(f.context()))
			w.stop()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, js, denied := restricted(t, test.rights...)
			test.use(f, js)
			testkit.NoError(t, js.Conn().FlushTimeout(testkit.Patience))
			testkit.Equal(t, denied.String(), "", "denied")
		})
	}
}

// A request without its right times out. The error names the bucket and the right.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	all := slices.Concat(readRights, provisionRights, writeRights)
	for _, right := range all {
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			f, js, _ := restricted(t, slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r == right })...)
			var err error
			if slices.Contains(provisionRights, right) {
				_, err = Open(f.context(), js, f.options(true))
			} else {
				f.open()
				_, err = f.apply(newBucket(js, f.options(false)), "a=1/1m")
			}
			testkit.Fails(f, "error", err, context.DeadlineExceeded, right, `"limits"`)
		})
	}
}
