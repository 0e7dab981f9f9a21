package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/settle"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// Options say how a worker works.
type Options struct {
	Connection  *Connection
	Names       Names
	Provision   bool // create what is absent
	AckWait     time.Duration
	Decoder     event.Decoder
	MaxAge      time.Duration                       // an older event expires, unless Delay gives its category longer; 0: no bound
	Concurrency int                                 // posts at once to one destination
	SendTimeout time.Duration                       // the longest that Sink.Send takes
	Pace        time.Duration                       // between two messages for a destination, for which deliveries then wait in their order; 0: none
	Delay       func(category string) time.Duration // how long a denied event may wait for a slot; nil: none may
	Drops       func([]summary.Drop) (round int64)  // counts events that were dropped, once that is settled (summary.Counter.Add); nil: nobody wants to know
	Journal     Journal                             // nil: nobody wants to know
	Revision    func() string                       // of the limits in force, for the journal
	Shutdown    time.Duration                       // how long to finish the deliveries under way
	Tracer      *tracing.Tracer                     // nil: events have no spans
	Logger      *slog.Logger
	Metrics     Metrics
}

// Worker takes events from JetStream and settles them.
type Worker struct {
	o         Options
	names     Names
	conn      *nats.Conn
	js        jetstream.JetStream
	logger    *slog.Logger
	metrics   Metrics
	journal   Journal
	health    *health
	letters   *letters
	letterLog *letterLog

	finding  sync.Mutex // held by whoever looks for the consumers
	topology atomic.Pointer[topology]
	ackWait  time.Duration
	tally    *tally
	clock    serverClock
	running  atomic.Bool // Run has set what follows

	throttle     Throttle
	pacer        Pacer
	sink         Sink
	settlers     *settle.Settlers[settlement]
	incoming     chan *message
	hand         *hand
	behind       atomic.Bool // messages of producers wait to be delivered
	bodies       *bodies
	copies       recordCopies
	pool         chan struct{} // has an element for each message between decision and settlement
	tasks        chan func()   // for goroutines that have nothing to do
	channels     *channels
	mover        *mover
	leases       *leaseRenewer
	openings     openings
	examined     examined                    // watch has it
	refusedCache *lru.Cache[string, refusal] // of what may not wait, by category
	planning     line                        // of delays
	leaving      chan []throttle.Stay
	served       sync.Map    // tokens of the channels whose queues are served: the channel, "" if not known
	unserved     chan source // queues that are to be
	pulling      sync.WaitGroup
	working      sync.WaitGroup
}

// poolSize is how many decided messages a worker holds at most, on top of its deliveries at once: a full batch.
const poolSize = throttle.MaxBatch

// New makes a worker. It talks to NATS from [Worker.Prepare] on.
func New(o Options) (*Worker, error) {
	js, err := jetstream.New(o.Connection.Conn, jetstream.WithDefaultTimeout(apiTimeout), jetstream.WithPublishAsyncTimeout(apiTimeout))
	if err != nil {
		return nil, fmt.Errorf("using jetstream: %w", err)
	}
	if o.Journal == nil {
		o.Journal = (*journal.Recorder)(nil)
	}
	w := &Worker{
		o: o, names: o.Names, conn: o.Connection.Conn, js: js, logger: o.Logger, metrics: o.Metrics, journal: o.Journal,
		health: newHealth(o.Logger), letters: newLetters(js, o.Names, o.Logger), letterLog: newLetterLog(o.Logger),
		refusedCache: newCache[string, refusal](mostRefusals), hand: newHand(),
	}
	w.tally = newTally(w.conn, w.metrics, w.counted)
	return w, nil
}

// Prepare waits until the consumers are there, making them where provisioning is on. It tells the lease of a message, and how long the
// stream keeps one (0: for ever). The error is the context's, that of a closed connection, or [ErrUnfit].
func (w *Worker) Prepare(ctx context.Context) (ackWait, streamAge time.Duration, err error) {
	if err := w.findConsumer(ctx); err != nil {
		return 0, 0, err
	}
	found := w.topology.Load()
	w.ackWait = leaseOf(found.consumer.CachedInfo().Config)
	return w.ackWait, found.stream.CachedInfo().Config.MaxAge, nil
}

// Now is the time by the NATS server's clock, as far as this worker knows it.
func (w *Worker) Now() time.Time { return w.clock.now() }

// errClosed ends a worker: the connection does not come back.
var errClosed = errors.New("the connection to nats is closed")

// findConsumer looks for the consumers until they are there.
func (w *Worker) findConsumer(ctx context.Context) error {
	before := w.topology.Load()
	w.finding.Lock()
	defer w.finding.Unlock()
	if w.topology.Load() != before { // another one has found them meanwhile
		return nil
	}
	for {
		found, err := topology{}, nats.ErrDisconnected
		if w.conn.IsConnected() {
			err = w.o.Connection.request(ctx, func(ctx context.Context) (err error) {
				found, err = w.names.provision(ctx, w.js, w.o.AckWait, w.o.Provision, w.logger)
				return err
			})
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && len(w.o.Connection.Denied()) > 0 {
			err = fmt.Errorf("%w (%s)", err, w.o.Connection.Denied()[0])
		}
		w.health.lookedForConsumer(err)
		if err == nil {
			w.topology.Store(&found)
			return nil
		}
		if errors.Is(err, ErrUnfit) {
			return err
		}
		pause := time.Second
		if errors.Is(err, nats.ErrDisconnected) {
			pause = connectedPoll
		}
		if err := w.sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// newCache makes a cache that forgets the least recently used.
func newCache[K comparable, V any](most int) *lru.Cache[K, V] {
	cache, _ := lru.New[K, V](most) // it fails only where most is not positive
	return cache
}

// arrives waits for a channel, and tells whether it was ready before the context ended. A nil channel is ready.
func arrives[T any](ctx context.Context, channel <-chan T) bool {
	if channel == nil {
		return true
	}
	select {
	case <-channel:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleep waits, unless the context or the connection ends.
func (w *Worker) sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.o.Connection.Closed():
		return errClosed
	}
}

// Ready is nil while the worker can do its work, as far as NATS and the sink are concerned.
func (w *Worker) Ready() error {
	if !w.conn.IsConnected() {
		return errors.New("nats is not connected")
	}
	if w.topology.Load() == nil {
		return errors.Join(errors.New("the consumer was not found yet"), w.health.ready())
	}
	return w.health.ready()
}

// Run works until the context ends, and then until the deliveries under way are finished or returned to the stream. [Worker.Prepare] must
// have returned before. The error is nil after an orderly end.
func (w *Worker) Run(ctx context.Context, limiter Throttle, pacer Pacer, out Sink) error {
	w.throttle, w.pacer, w.sink = limiter, pacer, out
	w.incoming = make(chan *message, 2*throttle.MaxBatch)
	w.bodies = newBodies(w)
	w.pool = make(chan struct{}, poolSize+w.o.Concurrency)
	w.tasks = make(chan func())
	defer close(w.tasks)

	// Deliveries outlive the context: they have until the shutdown timeout.
	work, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w.health.stopping = ctx.Done()
	context.AfterFunc(ctx, func() { w.cut(work, abandon) })
	w.channels = newChannels(w.o.Pace, w.o.Concurrency)
	w.unserved = make(chan source, 4096)
	w.leaving = make(chan []throttle.Stay, leavingQueue)
	leaving, stopLeaving := context.WithCancel(context.WithoutCancel(work))
	defer stopLeaving()
	var ending sync.WaitGroup
	ending.Go(func() { w.endStays(leaving) })
	w.settlers = w.newSettlers()
	w.leases = newLeaseRenewer(w)
	w.mover = newMover(work, w)
	keeping, stopKeeping := context.WithCancel(work)
	defer stopKeeping()
	go w.leases.run(keeping)
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(keeping) })
	watching.Go(func() { w.keepRemoving(keeping) })
	w.running.Store(true)

	pulled := make(chan error, 1)
	go func() { pulled <- w.pullAll(ctx) }()
	w.receive(ctx, work)
	err := <-pulled

	stop()
	w.working.Wait()
	w.mover.close()
	stopKeeping()
	watching.Wait()
	flushing, cancel := context.WithTimeout(context.WithoutCancel(work), settle.ConfirmTimeout)
	defer cancel()
	w.settlers.Close(flushing)
	w.letterLog.stop()
	stopLeaving()
	ending.Wait()
	_ = w.conn.FlushWithContext(flushing)
	return err
}

var errShutdown = errors.New("the shutdown timeout is over")

// cut ends the deliveries under way that take too long, and returns their messages to the stream.
func (w *Worker) cut(work context.Context, abandon context.CancelCauseFunc) {
	select {
	case <-work.Done(): // all are finished
	case <-time.After(w.o.Shutdown):
		w.logger.Warn("unfinished deliveries are returned to the stream", "count", w.leases.count())
		abandon(errShutdown)
	}
}
