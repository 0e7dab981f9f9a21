package consume

import (
	"cmp"
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

	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func TestMain(m *testing.M) {
	servertest.MoreTestsAtOnce(8)
	goleak.VerifyTestMain(m)
}

// patience bounds each wait of a test.
const patience = testkit.Patience

// usualAckWait is the ack wait of most tests. A starved client may give up a request whose events are on their way. They come again within
// patience.
const usualAckWait = patience / 3

var testNames = stream.Names{
	Stream: "EVENTS", Subject: "notify", Consumer: "notifier", MaxBytes: 64 << 20, MaxAge: 7 * 24 * time.Hour,
	RoomStream:       "ROOM",
	DeadLetterStream: "DEAD", DeadLetterSubject: "notify-dlq",
	DeadLetters: stream.DeadLetterBounds{PerSubject: 100, Bytes: 64 << 20, Age: 30 * 24 * time.Hour},
	Journal:     journal.Names{Stream: "JOURNAL", Subject: "notify", Age: 24 * time.Hour, MaxBytes: 1 << 20},
}

var testDecoder = event.Decoder{Prefix: testNames.Subject, MaxBytes: 1 << 20}

// lifeOf is the life of activities that end with one context.
func lifeOf(ctx context.Context) stage.Life { return stage.Life{Waiting: ctx, Working: ctx} }

// fixture holds a NATS server and the fakes around a worker.
type fixture struct {
	testing.TB
	server   *servertest.NATS
	js       jetstream.JetStream
	calls    *callLog
	throttle *fakeThrottle
	known    *fakeKnown
	mutes    *fakeMutes
	pacer    *fakePacer
	room     *fakeRoom
	watched  *fakePositions
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
	js, calls := servertest.JetStream(t, server.URL, options...), &callLog{}
	return &fixture{
		TB: t, server: server, js: js, calls: calls,
		throttle: &fakeThrottle{calls: calls, finished: make(map[string]bool), released: make(map[string]bool)},
		known:    &fakeKnown{calls: calls, unpaired: make(map[string]bool)},
		pacer:    &fakePacer{calls: calls, paused: make(map[string]time.Time), pauses: make(map[string]time.Duration), causes: make(map[string]string)},
		room:     &fakeRoom{entered: make(map[string]store.Stay)}, watched: &fakePositions{},
		sink:    &fakeSink{calls: calls, attempts: make(map[string]int)},
		mutes:   new(fakeMutes),
		metrics: &fakeMetrics{}, log: testkit.NewLog(t), said: newSpy(t, js.Conn()),
	}
}

// provision creates the streams and consumers as a worker does.
func (f *fixture) provision(ackWait time.Duration) stream.Layout {
	f.Helper()
	silent := slog.New(slog.DiscardHandler)
	connection := f.connectAs(stream.ConnectOptions{URL: f.server.URL, Logger: silent})
	client := f.newClient(stream.Options{Connection: connection, Names: testNames, Provision: true, AckWait: ackWait, Logger: silent})
	testkit.NoError(f, client.Find(f.Context()))
	return *client.Layout()
}

// newProvisioned makes a fixture whose streams and consumers exist before its worker runs.
func newProvisioned(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.provision(usualAckWait)
	return f
}

// publish stores a message and returns its sequence. The headers are pairs of a name and a value.
func (f *fixture) publish(subject, body string, headers ...string) uint64 {
	f.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Add(headers[i], headers[i+1])
	}
	stored, err := f.js.PublishMsg(f.Context(), m)
	testkit.Require(f, err == nil, "publish on %s: %v", subject, err)
	return stored.Sequence
}

// event publishes an event with an ID.
func (f *fixture) event(category, id string) uint64 {
	f.Helper()
	return f.publish("notify."+category, fmt.Sprintf(`{"id": %q, "title": "an event"}`, id))
}

// deliverOnce takes the next message and returns it to the server at once. The worker under test gets a redelivery.
func (f *fixture) deliverOnce(found stream.Layout) {
	f.Helper()
	m := testkit.Must(found.Consumer.Next(jetstream.FetchMaxWait(patience)))(f)
	testkit.NoError(f, m.Nak())
}

// running is a worker that runs.
type running struct {
	*Worker
	f      *fixture
	cancel context.CancelFunc
	result chan error
}

// setup configures a worker and its client.
type setup struct {
	Options
	client stream.Options
}

func (f *fixture) setup() setup {
	return setup{
		client: stream.Options{Names: testNames, Provision: true, AckWait: usualAckWait, Logger: f.log.Logger()},
		Options: Options{
			Limits: Limits{Known: f.known, Mutes: f.mutes, Throttle: f.throttle, Room: f.room, Positions: f.watched}, Pacer: f.pacer, Updates: f.pacer, Sink: f.sink, Finder: f.sink, Deployment: "notifier",
			Decoder: testDecoder, Concurrency: 4, Drops: func([]summary.Drop) int64 { return 0 }, Journal: (*journal.Recorder)(nil),
			SendTimeout: time.Second, Shutdown: patience, Logger: f.log.Logger(), Metrics: Metrics{Events: f.metrics, Deliveries: f.metrics, Room: f.metrics, Streams: f.metrics, Letters: f.metrics},
		},
	}
}

func (f *fixture) connect(url string) *stream.Connection {
	f.Helper()
	return f.connectAs(stream.ConnectOptions{URL: url})
}

func (f *fixture) connectAs(o stream.ConnectOptions) *stream.Connection {
	f.Helper()
	o.Logger = cmp.Or(o.Logger, f.log.Logger())
	connection := testkit.Must(stream.Connect(f.Context(), o))(f)
	f.Cleanup(func() {
		connection.Conn.Close()
		<-connection.Closed()
	})
	return connection
}

// newClient makes a client that has found nothing yet.
func (f *fixture) newClient(o stream.Options) *stream.Client {
	f.Helper()
	if o.Connection == nil {
		o.Connection = f.connect(f.server.URL)
	}
	return testkit.Must(stream.NewClient(o))(f)
}

// newWorker makes a worker without running it, and the streams and consumers if it may.
func (f *fixture) newWorker(change func(*setup)) *Worker {
	f.Helper()
	o := f.setup()
	if change != nil {
		change(&o)
	}
	if o.Streams == nil {
		o.Streams = f.newClient(o.client)
	}
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	defer cancel()
	testkit.NoError(f, o.Streams.Find(ctx))
	return New(o.Options)
}

// start prepares and runs a worker, and stops it with the test.
func (f *fixture) start(change func(*setup)) *running {
	f.Helper()
	return f.run(f.newWorker(change))
}

func (f *fixture) run(w *Worker) *running {
	f.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Worker: w, f: f, cancel: cancel, result: make(chan error, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.result <- w.Run(ctx)
		if w.streams.Connection.Conn.IsConnected() { // else messages may wait to be acknowledged
			testkit.Equal(f, w.puller.hand.Held(), 0, "bytes in hand of a worker that has ended")
		}
	}()
	f.Cleanup(func() {
		cancel()
		<-ended
	})
	return r
}

func (r *running) stop() {
	r.f.Helper()
	r.cancel()
	r.wait()
}

// wait returns when the worker has ended.
func (r *running) wait() {
	r.f.Helper()
	testkit.Equal(r.f, receive(r.f, "the end of the worker", r.result), nil, "error of the worker")
}

// receive returns the next value of a channel, or the zero value of a closed one.
func receive[T any](t testing.TB, what string, values <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-values:
	case <-time.After(patience):
		t.Fatalf("%s: got nothing within %v, want it", what, patience)
	}
	return value
}

// each runs a parallel test with a fixture of its own for each case.
func each[C any](t *testing.T, cases map[string]C, run func(t *testing.T, f *fixture, test C)) {
	t.Helper()
	testkit.Each(t, cases, func(t *testing.T, test C) { run(t, newFixture(t), test) })
}

// gate is a point at which a fake waits until the test opens it.
type gate struct {
	once   sync.Once
	opened chan struct{}
}

func newGate(t testing.TB) *gate {
	g := &gate{opened: make(chan struct{})}
	t.Cleanup(g.open)
	return g
}

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

// holdPosts has each post wait until the gate opens.
func (f *fixture) holdPosts(until *gate) {
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		if err := until.pass(ctx); err != nil {
			return &sink.Error{Class: sink.Unknown, Err: err}
		}
		return nil
	}
}

var errScripted = errors.New("scripted")
