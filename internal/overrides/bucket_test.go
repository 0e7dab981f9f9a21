package overrides

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

func TestAbsentBucket(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := Open(f.context(), f.js, f.options(false))
	if !errors.Is(err, ErrNoBucket) || !strings.Contains(err.Error(), `"limits"`) {
		t.Errorf("error = %v, want one that names the bucket, and the class ErrNoBucket", err)
	}
	if _, err := f.js.KeyValue(f.context(), bucketName); !errors.Is(err, jetstream.ErrBucketNotFound) {
		t.Errorf("looking for the bucket afterwards: %v, want that there is none", err)
	}
}

// Many instances that start at once create one bucket, and all can use it.
func TestProvision(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var starting sync.WaitGroup
	for i := range 8 {
		starting.Go(func() {
			b, err := Open(f.context(), f.js, f.options(true))
			if err == nil {
				_, err = b.Set(f.context(), enforced(fmt.Sprintf("c%d", i)), "1/1m")
			}
			if err != nil {
				f.Error(err)
			}
		})
	}
	starting.Wait()
	status, err := f.keyValue().Status(f.context())
	if err != nil {
		t.Fatal(err)
	}
	config := status.Config()
	if config.History != 64 || config.Storage != jetstream.FileStorage || config.Replicas != 1 || config.TTL != 0 || config.Description == "" {
		t.Errorf("bucket is made as %+v", config)
	}
	if status.Values() != 8 {
		t.Errorf("%d values are stored, want 8", status.Values())
	}
	if lines := f.log.lines("WARN"); len(lines) > 0 {
		t.Errorf("logged about a bucket of its own: %q", lines)
	}
}

// A bucket that exists stays as it is, and what is odd about it is said once.
func TestExistingBucketIsNotAltered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	kv, err := f.js.CreateKeyValue(f.context(), jetstream.KeyValueConfig{
		Bucket: bucketName, History: 3, TTL: time.Hour, Storage: jetstream.MemoryStorage, Description: "mine",
	})
	if err != nil {
		t.Fatal(err)
	}
	before, err := kv.Status(f.context())
	if err != nil {
		t.Fatal(err)
	}
	b := f.open()
	if err := b.find(f.context()); err != nil {
		t.Fatal(err)
	}
	after, err := kv.Status(f.context())
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(before.Config()) != fmt.Sprint(after.Config()) {
		t.Errorf("bucket was %+v, is %+v", before.Config(), after.Config())
	}
	if few, expires := f.log.lines("keeps few changes"), f.log.lines("expires its keys"); len(few) != 1 || len(expires) != 1 {
		t.Errorf("logged: %q, %q; want each once", few, expires)
	}
}

func TestNoBucketOfThisKind(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if _, err := f.js.CreateStream(f.context(), jetstream.StreamConfig{Name: "KV_limits", Subjects: []string{"$KV.limits.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(f.context(), f.js, f.options(true)); !errors.Is(err, jetstream.ErrBadBucket) {
		t.Errorf("error for a stream that is no bucket = %v", err)
	}
	for _, name := range []string{"", "a.b", "a b", "*"} {
		if b, err := Open(f.context(), f.js, Options{Name: name, Provision: true, Logger: f.log.logger()}); err == nil {
			t.Errorf("bucket %q was opened: %v", name, b)
		}
	}
}

func TestEmptyBucket(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	s := f.load(b)
	if s.Revision != 0 || len(s.Entries) != 0 {
		t.Errorf("snapshot of an empty bucket: %+v", s)
	}
	if age := time.Since(time.UnixMilli(s.Generation)); age < 0 || age > time.Minute {
		t.Errorf("generation is %v old", age)
	}
	if changes, err := b.History(f.context()); err != nil || len(changes) > 0 {
		t.Errorf("history of an empty bucket: %+v, %v", changes, err)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	start := time.Now()
	f.set(b, shadow("payments.*"), "5/10m")
	f.set(b, enforced("payments"), "40/30m")
	f.set(b, enforced("global"), "200/30m")
	f.set(b, enforced("debug"), "1/1h")
	f.set(b, enforced("*.failed"), "")
	f.unset(b, enforced("debug"))
	f.set(b, enforced("payments"), "50/30m")

	s := f.load(b)
	f.requireEntries(s, "*.failed=", "global=200/30m", "payments=50/30m", "shadow payments.*=5/10m")
	if s.Revision != 7 {
		t.Errorf("revision = %d, want 7", s.Revision)
	}
	var revisions []uint64
	for _, e := range s.Entries {
		revisions = append(revisions, e.Revision)
		if e.Changed.Before(start) || e.Changed.After(time.Now()) {
			t.Errorf("%v was changed at %v", e.Name, e.Changed)
		}
	}
	if want := []uint64{5, 3, 7, 1}; !slices.Equal(revisions, want) {
		t.Errorf("revisions = %v, want %v", revisions, want)
	}

	// A deletion is the newest change.
	f.unset(b, enforced("global"))
	if s := f.load(b); s.Revision != 8 {
		t.Errorf("revision after a deletion = %d, want 8", s.Revision)
	}
}

// Other clients of NATS and this package understand each other.
func TestOtherClients(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	kv := f.keyValue()
	f.set(b, shadow("payments.*"), "5/10m")
	entry, err := kv.Get(f.context(), "shadow/payments.=")
	if err != nil || string(entry.Value()) != "5/10m" {
		t.Fatalf("what another client reads: %v, %v", entry, err)
	}
	for key, value := range map[string]string{"deleted": "1/1m", "purged": "2/1m", "kept.=": "3/1m"} {
		if _, err := kv.PutString(f.context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := kv.Delete(f.context(), "deleted"); err != nil {
		t.Fatal(err)
	}
	if err := kv.Purge(f.context(), "purged"); err != nil {
		t.Fatal(err)
	}
	f.requireEntries(f.load(b), "kept.*=3/1m", "shadow payments.*=5/10m")

	// It is deleted for them, too, and can be set again, here and there.
	f.unset(b, enforced("kept.*"))
	if _, err := kv.Get(f.context(), "kept.="); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("what another client reads of a deleted key: %v", err)
	}
	if _, err := kv.Create(f.context(), "kept.=", []byte("4/1m")); err != nil {
		t.Error(err)
	}
	f.set(b, enforced("purged"), "5/1m")
	f.requireEntries(f.load(b), "kept.*=4/1m", "purged=5/1m", "shadow payments.*=5/10m")
}

// Revisions go by what happened, not by what is left: a bucket whose last messages were removed is as new as before.
func TestRemovedMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1/1m")
	f.set(b, enforced("b"), "1/1m")
	f.unset(b, enforced("b"))
	if err := f.keyValue().PurgeDeletes(f.context(), jetstream.DeleteMarkersOlderThan(-1)); err != nil {
		t.Fatal(err)
	}
	s := f.load(b)
	f.requireEntries(s, "a=1/1m")
	if s.Revision != 3 {
		t.Errorf("revision without the last message = %d, want 3", s.Revision)
	}
	stream, err := f.js.Stream(f.context(), "KV_limits")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(f.context()); err != nil {
		t.Fatal(err)
	}
	if s := f.load(b); s.Revision != 3 || len(s.Entries) > 0 {
		t.Errorf("snapshot without any message: %+v, want revision 3", s)
	}
	if revision := f.set(b, enforced("b"), "2/1m"); revision != 4 {
		t.Errorf("next revision = %d, want 4", revision)
	}
}

// A key that is no limit's is said once for each of its values, and does not hinder.
func TestForeignKeysAreIgnored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	kv := f.keyValue()
	put := func(key string) {
		t.Helper()
		if _, err := kv.PutString(f.context(), key, "value"); err != nil {
			t.Fatal(err)
		}
	}
	f.set(b, enforced("a"), "1/1m")
	put("Foreign")
	put("other/a")
	for range 3 {
		s := f.load(b)
		f.requireEntries(s, "a=1/1m")
		if s.Revision != 3 {
			t.Errorf("revision = %d, want 3", s.Revision)
		}
	}
	if lines := f.log.lines("not the name of a limit"); len(lines) != 2 || !strings.Contains(lines[0], "key=Foreign") {
		t.Errorf("logged: %q, want each key once", lines)
	}
	put("Foreign")
	if err := kv.Delete(f.context(), "other/a"); err != nil {
		t.Fatal(err)
	}
	f.load(b)
	if lines := f.log.lines("not the name of a limit"); len(lines) != 3 || !strings.Contains(lines[2], "revision=4") {
		t.Errorf("logged: %q, want the new value and not the deletion", lines)
	}
}

// A bucket that is deleted after it was opened is absent; one that was made anew is used.
func TestBucketMadeAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.set(b, enforced("a"), "1/1m")
	f.set(b, enforced("a"), "2/1m")
	first := f.load(b)
	f.deleteBucket()
	if _, err := b.Load(f.context()); !errors.Is(err, ErrNoBucket) {
		t.Errorf("loading from a deleted bucket: %v", err)
	}
	if _, err := b.Set(f.context(), enforced("a"), "3/1m"); !errors.Is(err, ErrNoBucket) {
		t.Errorf("setting in a deleted bucket: %v", err)
	}
	f.open()
	f.set(b, enforced("b"), "1/1m")
	second := f.load(b)
	f.requireEntries(second, "b=1/1m")
	if second.Generation <= first.Generation || second.Revision != 1 {
		t.Errorf("generation and revision after %d, %d: %d, %d", first.Generation, first.Revision, second.Generation, second.Revision)
	}
}

// What is read is never of one bucket and dated by another.
func TestBucketMadeAnewWhileReading(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.set(f.open(), enforced("a"), "1/1m")
	b := newBucket(rival{JetStream: f.js, beforeConsumer: func() {
		f.deleteBucket()
		f.open()
	}}, f.options(false))
	if s, err := b.Load(f.context()); !errors.Is(err, errMadeAnew) {
		t.Errorf("snapshot %+v, error %v; want that the bucket was made anew", s, err)
	}
}

// When the context ends, so does a call, and leaves nothing behind.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	before := b.js.Conn().NumSubscriptions()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, call := range map[string]func() error{
		"open":     func() error { _, err := Open(ctx, f.js, f.options(true)); return err },
		"load":     func() error { _, err := b.Load(ctx); return err },
		"set":      func() error { _, err := b.Set(ctx, enforced("a"), "1/1m"); return err },
		"unset":    func() error { _, err := b.Unset(ctx, enforced("a")); return err },
		"history":  func() error { _, err := b.History(ctx); return err },
		"at":       func() error { _, err := b.At(ctx, 1); return err },
		"rollback": func() error { _, err := b.Rollback(ctx, 1); return err },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	f.load(b)
	if after := b.js.Conn().NumSubscriptions(); after != before {
		t.Errorf("%d subscriptions, before it were %d", after, before)
	}
}

// A connection that is away is not taken for a right that is missing.
func TestConnectionIsAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	f.server.Kill()
	f.eventually("the connection is lost", func() bool { return !f.js.Conn().IsConnected() })
	_, err := b.Load(f.context())
	if err == nil || !strings.Contains(err.Error(), "nats is not connected") || strings.Contains(err.Error(), "right") {
		t.Errorf("error = %v", err)
	}
}

// The rights with which each kind of user does all of its work.
var (
	readRights = []string{
		"$JS.API.STREAM.INFO.KV_limits",
		"$JS.API.CONSUMER.CREATE.KV_limits.*.$KV.limits.>",
	}
	provisionRights = []string{"$JS.API.INFO", "$JS.API.STREAM.CREATE.KV_limits"}
	writeRights     = []string{"$KV.limits.>"}
)

const inboxPrefix = "_INBOX_test"

// restricted is a server with a user who may publish on these subjects alone, and a connection of that user's.
func restricted(t *testing.T, publish ...string) (f *fixture, js jetstream.JetStream, denied *logBuffer) {
	t.Helper()
	f = newFixtureOn(t, userServer(t, publish), nats.UserInfo("all", "secret"))
	denied = &logBuffer{}
	js = f.connect(f.server.URL, nats.UserInfo("restricted", "secret"), nats.CustomInboxPrefix(inboxPrefix),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { _, _ = fmt.Fprintln(denied, err) }))
	return f, js, denied
}

// userServer has the user "all", who may do everything, and "restricted", who may publish on these subjects alone.
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

func TestRightsOfACommand(t *testing.T) {
	t.Parallel()
	f, js, denied := restricted(t, slices.Concat(readRights, writeRights)...)
	f.open()
	b, err := Open(f.context(), js, f.options(true))
	if err != nil {
		t.Fatal(err)
	}
	first := f.set(b, enforced("payments.*"), "1/1m")
	f.set(b, shadow("global"), "1/1m")
	f.unset(b, enforced("payments.*"))
	f.load(b)
	if _, err := b.History(f.context()); err != nil {
		t.Error(err)
	}
	if _, err := b.At(f.context(), first); err != nil {
		t.Error(err)
	}
	if changed, err := b.Rollback(f.context(), first); err != nil || len(changed) != 2 {
		t.Errorf("rolled back: %v, %v", changed, err)
	}
	if err := js.Conn().FlushTimeout(patience); err != nil || denied.String() != "" {
		t.Errorf("denied: %s, %v", denied, err)
	}
}

func TestRightsOfProvisioning(t *testing.T) {
	t.Parallel()
	f, js, denied := restricted(t, slices.Concat(readRights, provisionRights)...)
	b, err := Open(f.context(), js, f.options(true))
	if err != nil {
		t.Fatal(err)
	}
	f.load(b)
	if err := js.Conn().FlushTimeout(patience); err != nil || denied.String() != "" {
		t.Errorf("denied: %s, %v", denied, err)
	}
}

// A right that is missing looks like a timeout; the error names the bucket and the right.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	all := slices.Concat(readRights, provisionRights, writeRights)
	set := func(f *fixture, js jetstream.JetStream) error {
		_, err := newBucket(js, f.options(false)).Set(f.context(), enforced("a"), "1/1m")
		return err
	}
	open := func(f *fixture, js jetstream.JetStream) error {
		_, err := Open(f.context(), js, f.options(true))
		return err
	}
	for _, right := range all {
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			f, js, _ := restricted(t, slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r == right })...)
			call := open
			if !slices.Contains(provisionRights, right) {
				f.open()
				call = set
			}
			err := call(f, js)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), right) || !strings.Contains(err.Error(), `"limits"`) {
				t.Errorf("error = %v, want a timeout that names the bucket and %s", err, right)
			}
		})
	}
}
