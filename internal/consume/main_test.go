package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

func TestMain(m *testing.M) {
	servertest.MoreTestsAtOnce(16)
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for, and is no expectation of how long it takes.
const patience = 30 * time.Second

var testNames = Names{
	Stream: "EVENTS", Subject: "notify", Consumer: "notifier", MaxBytes: 64 << 20, MaxAge: 7 * 24 * time.Hour,
	RoomStream:       "ROOM",
	DeadLetterStream: "DEAD", DeadLetterSubject: "notify-dlq",
	DeadLetters: DeadLetterBounds{PerSubject: 100, Bytes: 64 << 20, Age: 30 * 24 * time.Hour},
}

// fixture is a NATS server, and what a worker on it meets.
type fixture struct {
	testing.TB
	server   *servertest.NATS
	js       jetstream.JetStream
	journal  *diary
	throttle *fakeThrottle
	sink     *fakeSink
	metrics  *fakeMetrics
	log      *testkit.Log
	said     *spy
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, servertest.StartNATS(t))
}

func newFixtureOn(t *testing.T, server *servertest.NATS, options ...nats.Option) *fixture {
	t.Helper()
	conn := servertest.Connect(t, server.URL, append(options, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	js := testkit.Must(jetstream.New(conn))(t)
	events := &diary{}
	return &fixture{
		TB: t, server: server, js: js, journal: events,
		throttle: &fakeThrottle{
			journal: events, paused: make(map[string]time.Time), pauses: make(map[string]time.Duration),
			entered: make(map[string]throttle.Stay), unpaired: make(map[string]bool), finished: make(map[string]bool),
		},
		sink:    &fakeSink{journal: events, attempts: make(map[string]int), prepared: make(map[string]string)},
		metrics: &fakeMetrics{}, log: testkit.NewLog(t), said: newSpy(t, conn),
	}
}

// provision makes what a worker would make.
func (f *fixture) provision(ackWait time.Duration) topology {
	f.Helper()
	return testkit.Must(testNames.provision(f.Context(), f.js, ackWait, true, slog.New(slog.DiscardHandler)))(f)
}

// publish stores a message and returns its sequence. Headers are pairs of names and values.
func (f *fixture) publish(subject, body string, headers ...string) uint64 {
	f.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Add(headers[i], headers[i+1])
	}
	stored, err := f.js.PublishMsg(f.Context(), m)
	if err != nil {
		f.Fatalf("publish on %s: %v", subject, err)
	}
	return stored.Sequence
}

// event publishes an event of that ID.
func (f *fixture) event(category, id string) uint64 {
	f.Helper()
	return f.publish("notify."+category, fmt.Sprintf(`{"id": %q, "title": "an event"}`, id))
}

// deliverOnce takes a message as an instance does that then crashes: it comes again at once.
func (f *fixture) deliverOnce(found topology) {
	f.Helper()
	m := testkit.Must(found.consumer.Next(jetstream.FetchMaxWait(patience)))(f)
	testkit.NoError(f, m.Nak())
}

// running is a worker at work.
type running struct {
	*Worker
	f      *fixture
	cancel context.CancelFunc
	result chan error
}

func (f *fixture) options(connection *Connection) Options {
	return Options{
		Connection: connection, Names: testNames, Provision: true, AckWait: patience,
		Decoder: event.Decoder{Prefix: testNames.Subject, MaxBytes: 1 << 20}, Concurrency: 4,
		SendTimeout: time.Second, Shutdown: patience, Logger: f.log.Logger(), Metrics: f.metrics,
	}
}

func (f *fixture) connect(url string) *Connection {
	f.Helper()
	return f.connectAs(ConnectOptions{URL: url})
}

func (f *fixture) connectAs(o ConnectOptions) *Connection {
	f.Helper()
	o.Logger = f.log.Logger()
	connection := testkit.Must(Connect(o))(f)
	f.Cleanup(func() {
		connection.Conn.Close()
		<-connection.Closed()
	})
	return connection
}

// newWorker makes a worker that is not started yet.
func (f *fixture) newWorker(change func(*Options)) *Worker {
	f.Helper()
	o := f.options(nil)
	if change != nil {
		change(&o)
	}
	if o.Connection == nil {
		o.Connection = f.connect(f.server.URL)
	}
	return testkit.Must(New(o))(f)
}

// start prepares and runs a worker, and stops it with the test.
func (f *fixture) start(change func(*Options)) *running {
	f.Helper()
	w := f.newWorker(change)
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	defer cancel()
	if _, _, err := w.Prepare(ctx); err != nil {
		f.Fatal(err)
	}
	return f.run(w)
}

func (f *fixture) run(w *Worker) *running {
	f.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Worker: w, f: f, cancel: cancel, result: make(chan error, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.result <- w.Run(ctx, f.throttle, f.throttle, f.sink)
	}()
	f.Cleanup(func() {
		cancel()
		<-ended
	})
	return r
}

// stop ends the worker in good order.
func (r *running) stop() {
	r.f.Helper()
	r.cancel()
	r.wait()
}

// wait returns when the worker has ended.
func (r *running) wait() {
	r.f.Helper()
	select {
	case err := <-r.result:
		if err != nil {
			r.f.Errorf("the worker ended with %v, want no error", err)
		}
	case <-time.After(patience):
		r.f.Fatal("the worker does not end")
	}
}

// gate is a point at which something waits until the test opens it.
type gate struct {
	once   sync.Once
	opened chan struct{}
}

func newGate(t testing.TB) *gate {
	g := &gate{opened: make(chan struct{})}
	t.Cleanup(g.open)
	return g
}

// isOpen does not wait.
func (g *gate) isOpen() bool {
	select {
	case <-g.opened:
		return true
	default:
		return false
	}
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// pass waits for the gate, or for the context.
func (g *gate) pass(ctx context.Context) error {
	select {
	case <-g.opened:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errScripted = errors.New("scripted")
