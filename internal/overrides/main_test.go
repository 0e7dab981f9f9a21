package overrides

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

func TestMain(m *testing.M) {
	servertest.MoreTestsAtOnce(16)
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for, and is no expectation of how long it takes.
const patience = 30 * time.Second

const bucketName = "limits"

// fixture is a server, an operator's connection to it, and a log.
type fixture struct {
	*testing.T
	server *servertest.NATS
	js     jetstream.JetStream
	log    *logBuffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, servertest.StartNATS(t))
}

func newFixtureOn(t *testing.T, server *servertest.NATS, options ...nats.Option) *fixture {
	t.Helper()
	f := &fixture{T: t, server: server, log: &logBuffer{}}
	f.js = f.connect(server.URL, options...)
	return f
}

// connect is a connection that comes back by itself.
func (f *fixture) connect(url string, options ...nats.Option) jetstream.JetStream {
	f.Helper()
	options = append([]nats.Option{
		nats.Timeout(patience),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(20 * time.Millisecond),
		nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, options...)
	conn, err := nats.Connect(url, options...)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		f.Fatal(err)
	}
	return js
}

func (f *fixture) options(provision bool) Options {
	return Options{Name: bucketName, Provision: provision, Logger: f.log.logger()}
}

// open opens the bucket, and creates it first where it is absent.
func (f *fixture) open() *Bucket {
	f.Helper()
	b, err := Open(f.context(), f.js, f.options(true))
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// keyValue is the bucket as other clients of NATS see it.
func (f *fixture) keyValue() jetstream.KeyValue {
	f.Helper()
	kv, err := f.js.KeyValue(f.context(), bucketName)
	if err != nil {
		f.Fatal(err)
	}
	return kv
}

// deleteBucket leaves another stream behind: with an account's last stream the server removes the account's folder some
// time later, and a stream that is created just then fails.
func (f *fixture) deleteBucket() {
	f.Helper()
	if _, err := f.js.CreateStream(f.context(), jetstream.StreamConfig{Name: "REMAINS", Subjects: []string{"remains"}}); err != nil {
		f.Fatal(err)
	}
	if err := f.js.DeleteKeyValue(f.context(), bucketName); err != nil {
		f.Fatal(err)
	}
}

// context ends when the test runs out of patience.
func (f *fixture) context() context.Context {
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	f.Cleanup(cancel)
	return ctx
}

func (f *fixture) set(b *Bucket, name Name, value string) uint64 {
	f.Helper()
	revision, err := b.Set(f.context(), name, value)
	if err != nil {
		f.Fatal(err)
	}
	return revision
}

func (f *fixture) unset(b *Bucket, name Name) uint64 {
	f.Helper()
	revision, err := b.Unset(f.context(), name)
	if err != nil {
		f.Fatal(err)
	}
	return revision
}

func (f *fixture) load(b *Bucket) Snapshot {
	f.Helper()
	s, err := b.Load(f.context())
	if err != nil {
		f.Fatal(err)
	}
	return s
}

func (f *fixture) eventually(what string, holds func() bool) {
	f.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("waited in vain until %s; log:\n%s", what, f.log)
		}
	}
}

// requireEntries compares a snapshot's entries, each written as name=value.
func (f *fixture) requireEntries(s Snapshot, want ...string) {
	f.Helper()
	if got := entries(s); !slices.Equal(got, want) {
		f.Errorf("entries at revision %d: %q, want %q", s.Revision, got, want)
	}
}

func entries(s Snapshot) []string {
	var lines []string
	for _, e := range s.Entries {
		lines = append(lines, e.Name.String()+"="+e.Value)
	}
	return lines
}

// enforced and shadow are short for the two kinds of names.
func enforced(pattern string) Name { return Name{Pattern: pattern} }
func shadow(pattern string) Name   { return Name{Pattern: pattern, Shadow: true} }

// rival is a JetStream in which somebody else does something right before each message is published, or each consumer
// is made.
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

// logBuffer is a log that can be searched.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// lines are those that contain the text.
func (l *logBuffer) lines(containing string) []string {
	var lines []string
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, containing) {
			lines = append(lines, line)
		}
	}
	return lines
}
