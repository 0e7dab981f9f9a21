package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Options say how a worker works.
type Options struct {
	Connection  *Connection
	Names       Names
	Provision   bool // create what is absent
	AckWait     time.Duration
	Decoder     event.Decoder
	MaxAge      time.Duration                       // since the event was stored; 0 for no bound
	Concurrency int                                 // posts at once to one destination
	SendTimeout time.Duration                       // the longest that Sink.Send takes
	Pace        time.Duration                       // between two messages for a destination, for which deliveries then wait in their order; 0: none
	Delay       func(category string) time.Duration // how long a denied event may wait for a slot; nil: none may
	Drops       func([]summary.Drop)                // told of events that were dropped, once that is settled; nil: nobody wants to know
	Shutdown    time.Duration                       // how long to finish what is in hand
	Logger      *slog.Logger
	Metrics     Metrics
}

// Worker takes events from JetStream and settles them.
type Worker struct {
	o       Options
	names   Names
	conn    *nats.Conn
	js      jetstream.JetStream
	logger  *slog.Logger
	metrics Metrics
	trouble *trouble
	letters *letters

	finding sync.Mutex // held by whoever looks for the consumers
	place   atomic.Pointer[place]
	ackWait time.Duration
	clock   serverClock
	running atomic.Bool // Run has set what follows

	throttle Throttle
	pacer    Pacer
	sink     Sink
	settler  *settler
	incoming chan *message
	copies   recordCopies
	hand     chan struct{} // a place for each message between decision and settlement
	tasks    chan func()   // for goroutines that have nothing to do
	channels *channels
	mover    *mover
	keeper   *keeper
	openings openings
	refusals refusals
	planning line
	leaving  chan []throttle.Stay
	served   sync.Map    // tokens of the channels whose queues are served: the channel, "" if not known
	unserved chan source // queues that are to be
	working  sync.WaitGroup
}

// handSize is how many decided messages a worker holds at most, on top of its deliveries at once: a full batch.
const handSize = throttle.MaxBatch

// New makes a worker. It talks to NATS from [Worker.Prepare] on.
func New(o Options) (*Worker, error) {
	js, err := jetstream.New(o.Connection.Conn, jetstream.WithDefaultTimeout(apiTimeout), jetstream.WithPublishAsyncTimeout(apiTimeout))
	if err != nil {
		return nil, fmt.Errorf("using jetstream: %w", err)
	}
	return &Worker{
		o: o, names: o.Names, conn: o.Connection.Conn, js: js, logger: o.Logger, metrics: o.Metrics,
		trouble: newTrouble(o.Logger), letters: newLetters(js, o.Names, o.Logger),
	}, nil
}

// Prepare waits until the consumers are there, making them where that is wanted. It tells how long a message is a worker's,
// and how long the stream keeps one (0 for ever or not known). The error is the context's, that the connection was closed,
// or [ErrUnfit].
func (w *Worker) Prepare(ctx context.Context) (ackWait, streamAge time.Duration, err error) {
	if err := w.findConsumer(ctx); err != nil {
		return 0, 0, err
	}
	found := w.place.Load()
	w.ackWait = found.ackWait
	return found.ackWait, found.streamAge, nil
}

// errClosed ends a worker: the connection does not come back.
var errClosed = errors.New("the connection to nats is closed")

// findConsumer looks for the consumers until they are there.
func (w *Worker) findConsumer(ctx context.Context) error {
	before := w.place.Load()
	w.finding.Lock()
	defer w.finding.Unlock()
	if w.place.Load() != before { // another one has found them meanwhile
		return nil
	}
	for {
		found, err := place{}, nats.ErrDisconnected
		if w.conn.IsConnected() {
			found, err = w.names.provision(ctx, w.js, w.o.AckWait, w.o.Provision, w.logger)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && len(w.o.Connection.Denied()) > 0 {
			err = fmt.Errorf("%w (%s)", err, w.o.Connection.Denied()[0])
		}
		if !errors.Is(err, nats.ErrDisconnected) { // the connection reports for itself
			w.trouble.consumerFound(err)
		}
		if err == nil {
			w.place.Store(&found)
			return nil
		}
		if errors.Is(err, ErrUnfit) {
			return err
		}
		if err := w.rest(ctx, time.Second); err != nil {
			return err
		}
	}
}

// rest waits, unless the context or the connection ends.
func (w *Worker) rest(ctx context.Context, d time.Duration) error {
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
	if w.place.Load() == nil {
		return errors.Join(errors.New("the consumer was not found yet"), w.trouble.ready())
	}
	return w.trouble.ready()
}

// Run works until the context ends, and then until what is in hand is finished or given back. [Worker.Prepare] must
// have returned before. The error is nil after an orderly end.
func (w *Worker) Run(ctx context.Context, limiter Throttle, pacer Pacer, out Sink) error {
	w.throttle, w.pacer, w.sink = limiter, pacer, out
	w.incoming = make(chan *message, 2*throttle.MaxBatch)
	w.hand = make(chan struct{}, handSize+w.o.Concurrency)
	w.tasks = make(chan func())
	defer close(w.tasks)

	// Deliveries outlive the context: they have until the shutdown timeout.
	work, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	context.AfterFunc(ctx, func() { w.cut(work, abandon) })
	w.channels = newChannels(w.o.Pace, w.o.Concurrency)
	w.unserved = make(chan source, 4096)
	w.leaving = make(chan []throttle.Stay, settleQueue)
	leaving, stopLeaving := context.WithCancel(context.WithoutCancel(work))
	defer stopLeaving()
	var ending sync.WaitGroup
	ending.Go(func() { w.endStays(leaving) })
	w.settler = newSettler(w.conn, w.metrics, w.o.Drops, w.leaveRoom, w.ackWait, work.Done())
	w.keeper = newKeeper(w)
	w.mover = newMover(work, w)
	keeping, stopKeeping := context.WithCancel(work)
	defer stopKeeping()
	go w.keeper.run(keeping)
	watching := make(chan struct{})
	go func() { defer close(watching); w.watch(keeping) }()
	w.running.Store(true)

	pulled := make(chan error, 1)
	go func() { pulled <- w.pullAll(ctx) }()
	w.receive(ctx, work)
	err := <-pulled

	stop()
	w.working.Wait()
	w.mover.close()
	stopKeeping()
	<-watching
	flushing, cancel := context.WithTimeout(context.WithoutCancel(work), confirmTimeout)
	defer cancel()
	w.settler.close(flushing)
	stopLeaving()
	ending.Wait()
	_ = w.conn.FlushWithContext(flushing)
	return err
}

var errShutdown = errors.New("the shutdown timeout is over")

// cut ends the deliveries in hand that take too long. They are given back.
func (w *Worker) cut(work context.Context, abandon context.CancelCauseFunc) {
	select {
	case <-work.Done(): // all are finished
	case <-time.After(w.o.Shutdown):
		w.logger.Warn("deliveries in hand are given back", "count", w.keeper.count())
		abandon(errShutdown)
	}
}
