package overrides

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

func TestMain(m *testing.M) {
	servertest.MoreTestsAtOnce(8)
	goleak.VerifyTestMain(m)
}

const bucketName = "limits"

// fixture is a server, an operator's connection to it, and a log.
type fixture struct {
	*testing.T
	server *servertest.NATS
	js     jetstream.JetStream
	log    *testkit.Log
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, servertest.StartNATS(t))
}

func newFixtureOn(t *testing.T, server *servertest.NATS, options ...nats.Option) *fixture {
	t.Helper()
	f := &fixture{T: t, server: server, log: testkit.NewLog(t)}
	f.js = f.connect(server.URL, options...)
	return f
}

// connect returns a connection that reconnects by itself.
func (f *fixture) connect(url string, options ...nats.Option) jetstream.JetStream {
	f.Helper()
	return servertest.JetStream(f, url, options...)
}

func (f *fixture) options(provision bool) Options {
	return Options{Name: bucketName, Provision: provision, Logger: f.log.Logger()}
}

// open opens the bucket, and creates it first where it is absent.
func (f *fixture) open() *Bucket {
	f.Helper()
	return testkit.Must(Open(f.context(), f.js, f.options(true)))(f)
}

func newBucketFixture(t *testing.T) (*fixture, *Bucket) {
	t.Helper()
	f := newFixture(t)
	return f, f.open()
}

// keyValue returns the bucket as other clients of NATS use it.
func (f *fixture) keyValue() jetstream.KeyValue {
	f.Helper()
	return testkit.Must(f.js.KeyValue(f.context(), bucketName))(f)
}

// put stores a value of a key, which may name no limit, as this package does.
func (f *fixture) put(key, value string) {
	f.Helper()
	m := nats.NewMsg("$KV." + bucketName + "." + key)
	m.Data = []byte(value)
	trusted.Mark(m.Header)
	testkit.Must(f.js.PublishMsg(f.context(), m))(f)
}

// deleteBucket creates another stream first: after the last stream of an account the server removes the account's folder, and a
// stream that is created at that moment fails.
func (f *fixture) deleteBucket() {
	f.Helper()
	testkit.Must(f.js.CreateStream(f.context(), jetstream.StreamConfig{Name: "OTHER_STREAM", Subjects: []string{"other"}}))(f)
	testkit.NoError(f, f.js.DeleteKeyValue(f.context(), bucketName))
}

// context returns a context of the test that ends after [testkit.Patience].
func (f *fixture) context() context.Context {
	return testkit.Context(f)
}

// apply makes a change: name=value sets an override, -name unsets an override.
func (f *fixture) apply(b *Bucket, change string) (revision uint64, err error) {
	f.Helper()
	s, err := b.Load(f.context())
	if err != nil {
		return 0, err
	}
	return f.applyTo(b, s, change)
}

// applyTo is apply for a change that replaces what a snapshot has.
func (f *fixture) applyTo(b *Bucket, s Snapshot, change string) (revision uint64, err error) {
	f.Helper()
	name, isUnset := strings.CutPrefix(change, "-")
	name, value, _ := strings.Cut(name, "=")
	pattern, isShadow := strings.CutPrefix(name, "shadow ")
	of := Name{Pattern: pattern, Shadow: isShadow}
	if isUnset {
		return b.Unset(f.context(), s, of)
	}
	set, err := b.Set(f.context(), s, of, value, 0)
	return set.Revision, err
}

// change applies changes, and returns the revision of the last one.
func (f *fixture) change(b *Bucket, changes ...string) (revision uint64) {
	f.Helper()
	for _, change := range changes {
		revision = testkit.Must(f.apply(b, change))(f)
	}
	return revision
}

func (f *fixture) load(b *Bucket) Snapshot {
	f.Helper()
	return testkit.Must(b.Load(f.context()))(f)
}

// requireEntries compares a snapshot's entries, each written as name=value.
func (f *fixture) requireEntries(s Snapshot, want ...string) {
	f.Helper()
	testkit.EqualSlices(f, entries(s), want, "entries at revision %d", s.Revision)
}

func entries(s Snapshot) []string {
	var lines []string
	for _, e := range s.Entries {
		lines = append(lines, e.Name.String()+"="+e.Value)
	}
	return lines
}

// enforced and shadow return the two kinds of names.
func enforced(pattern string) Name { return Name{Pattern: pattern} }
func shadow(pattern string) Name   { return Name{Pattern: pattern, Shadow: true} }

// rival is a JetStream that calls a function right before it publishes a message or creates a consumer.
type rival struct {
	jetstream.JetStream
	before         func()
	beforeConsumer func() // nil: nothing
}

func (r rival) CreatePushConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.PushConsumer, error) {
	if r.beforeConsumer != nil {
		r.beforeConsumer()
	}
	return r.JetStream.CreatePushConsumer(ctx, stream, c)
}

func (r rival) PublishMsg(ctx context.Context, m *nats.Msg, o ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	r.before()
	return r.JetStream.PublishMsg(ctx, m, o...)
}
