package stream

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) {
	servertest.MoreTestsAtOnce(8)
	goleak.VerifyTestMain(m)
}

// ackWait is that of the consumers that tests make.
const ackWait = 30 * time.Second

var testNames = Names{
	Stream: "EVENTS", Subject: "notify", Consumer: "notifier", MaxBytes: 64 << 20, MaxAge: 7 * 24 * time.Hour,
	RoomStream:       "ROOM",
	DeadLetterStream: "DEAD", DeadLetterSubject: "notify-dlq",
	DeadLetters: DeadLetterBounds{PerSubject: 100, Bytes: 64 << 20, Age: 30 * 24 * time.Hour},
}

// fixture is a NATS server with a connection of the test's own.
type fixture struct {
	testing.TB
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
	return &fixture{TB: t, server: server, js: servertest.JetStream(t, server.URL, options...), log: testkit.NewLog(t)}
}

// limited starts a server with a user who may not publish on the denied subjects.
func limited(t *testing.T, denied ...string) *fixture {
	t.Helper()
	return newFixtureOn(t, servertest.StartNATS(t, servertest.Limited(denied...)), nats.UserInfo("all", "secret"))
}

func (f *fixture) connectLimited() *Connection {
	f.Helper()
	c := f.connect(ConnectOptions{URL: f.server.URL, User: "limited", Password: "secret"})
	f.eventually("it is connected", c.Conn.IsConnected)
	return c
}

func (f *fixture) connect(o ConnectOptions) *Connection {
	f.Helper()
	o.Logger = f.log.Logger()
	connection := testkit.Must(Connect(f.Context(), o))(f)
	f.Cleanup(func() {
		connection.Conn.Close()
		<-connection.Closed()
	})
	return connection
}

// each runs a parallel test with a fixture of its own for each case.
func each[C any](t *testing.T, cases map[string]C, run func(t *testing.T, f *fixture, test C)) {
	t.Helper()
	testkit.Each(t, cases, func(t *testing.T, test C) { run(t, newFixture(t), test) })
}

// provision creates the streams and consumers as a worker does.
func (f *fixture) provision() {
	f.Helper()
	testkit.Must(search(f.Context(), f.js, ackWait, slog.New(slog.DiscardHandler)))(f)
}

// search finds or creates the streams and consumers once.
func search(ctx context.Context, js jetstream.JetStream, ackWait time.Duration, logger *slog.Logger) (Layout, error) {
	client := &Client{JetStream: js, Names: testNames, options: Options{Provision: true, AckWait: ackWait, Logger: logger}}
	return client.search(ctx)
}

// event publishes an event with an ID.
func (f *fixture) event(category, id string) {
	f.Helper()
	body := fmt.Sprintf(`{"id": %q, "title": "an event"}`, id)
	testkit.Must(f.js.Publish(f.Context(), "notify."+category, []byte(body)))(f)
}

func (f *fixture) eventually(what string, holds func() bool) {
	f.Helper()
	testkit.Eventually(f, what, holds)
}

func (f *fixture) streamInfo(name string) *jetstream.StreamInfo {
	f.Helper()
	return testkit.Must(f.js.Stream(f.Context(), name))(f).CachedInfo()
}

func (f *fixture) check(o Options) []Finding {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), testkit.Patience)
	defer cancel()
	return Check(ctx, o, Further{Channels: []string{"general", "ops"}, Bucket: "limits", MaxBody: 1 << 18})
}
