package overrides

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/replicas"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestApply creates the bucket, finds nothing to do, and repairs a bucket that somebody else made. A dry run does none of it.
func TestApply(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	apply := func(provision, created bool, changes ...string) {
		t.Helper()
		got := testkit.Must(Apply(f.context(), f.js, f.options(provision)))(t)
		testkit.Equal(t, got.Created, created, "created")
		testkit.EqualSlices(t, got.Changes, changes, "changes")
	}
	apply(false, true)
	_, err := f.js.KeyValue(f.context(), bucketName)
	testkit.Fails(f, "error", err, jetstream.ErrBucketNotFound)
	apply(true, true)
	apply(true, false)

	f.deleteBucket()
	testkit.Must(f.js.CreateKeyValue(f.context(), jetstream.KeyValueConfig{Bucket: bucketName, History: 3, TTL: time.Hour}))(t)
	f.change(f.open(), "payments=1/1m")
	want := []string{"history 64, was 3", "ttl unlimited, was 1h0m0s"}
	apply(false, false, want...)
	apply(false, false, want...)
	apply(true, false, want...)
	apply(true, false)
	f.requireEntries(f.load(f.open()), "payments=1/1m")
}

// TestApplyReplicas gives an existing bucket of a cluster three replicas. Settings without a number change none.
func TestApplyReplicas(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, &servertest.NATS{URL: servertest.StartNATSCluster(t, 3).URL})
	apply := func(count int, changes ...string) {
		t.Helper()
		options := f.options(true)
		options.Replicas = count
		got := testkit.Must(Apply(f.context(), f.js, options))(t)
		testkit.EqualSlices(t, got.Changes, changes, "changes")
	}
	apply(1)
	apply(replicas.Auto)
	apply(3, "num_replicas 3, was 1")
	apply(3)
	found := testkit.Must(f.js.Stream(f.context(), "KV_"+bucketName))(t)
	testkit.Equal(t, found.CachedInfo().Config.Replicas, 3, "replicas")
}
