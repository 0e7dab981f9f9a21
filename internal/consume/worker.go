package consume

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/seed-4578ace9/notifier/internal/consume/settle"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// Options configure a worker.
type Options struct {
	Streams     *stream.Client // Find has succeeded
	Throttle    Throttle
	Pacer       Pacer
	Sink        Sink
	Decoder     event.Decoder
	MaxAge      time.Duration                       // older events expire, unless Delay allows their category more; 0: no bound
	Concurrency int                                 // concurrent posts to one destination
	SendTimeout time.Duration                       // maximum duration of Sink.Send
	Pace        time.Duration                       // minimum time between two messages to a destination; deliveries then keep their order; 0: none
	Delay       func(category string) time.Duration // how long a denied event may wait for a slot; nil: none may
	Drops       func([]summary.Drop) (round int64)  // counts dropped events once their settlement is confirmed (summary.Counter.Add); nil: nobody counts them
	Journal     Journal                             // nil: no journal
	Revision    func() string                       // of the limits in force, for the journal
	Shutdown    time.Duration                       // time to finish the deliveries under way
	Tracer      *tracing.Tracer                     // nil: events have no spans
	Logger      *slog.Logger
	Metrics     Metrics
}

// Worker takes events from JetStream and settles them.
type Worker struct {
	o        Options
	streams  *stream.Client
	throttle Throttle
	pacer    Pacer
	sink     Sink
	logger   *slog.Logger
	metrics  Metrics
	journal  Journal
	health   *health
	letters  *deadletters.Writer
	ackWait  time.Duration
	tally    *tally
	settlers *settle.Settlers[settlement]

	incoming     chan *message
	hand         *hand
	behind       atomic.Bool // producers' messages wait to be delivered
	bodies       *bodies
	pool         chan struct{} // has an element for each message between decision and settlement
	tasks        chan func()   // feeds idle goroutines of the pool
	channels     *channels
	mover        *mover
	leases       *leaseRenewer
	openings     openings
	examined     examined                    // only watch uses it
	refusedCache *lru.Cache[string, refusal] // by category: whose events may not enter the room at present
	planning     line                        // serialises the planning of delays in the order of the decisions
	leaving      chan []store.Stay
	served       sync.Map    // tokens of the channels whose queues are served: the channel, "" if not known
	unserved     chan source // queues waiting for a puller
	pulling      sync.WaitGroup
	working      sync.WaitGroup
}

// poolSize is how many decided messages a worker holds at most, beside its concurrent deliveries: one full batch.
const poolSize = store.MaxBatch

// mostUnserved bounds the channel queues that wait for a puller.
const mostUnserved = 4096

// New returns a worker that does not run yet.
func New(o Options) *Worker {
	if o.Journal == nil {
		o.Journal = (*journal.Recorder)(nil)
	}
	w := &Worker{
		o: o, streams: o.Streams, throttle: o.Throttle, pacer: o.Pacer, sink: o.Sink, logger: o.Logger, metrics: o.Metrics, journal: o.Journal,
		health: newHealth(o.Logger), ackWait: o.Streams.Layout().AckWait(), refusedCache: newCache[string, refusal](mostRefusals), hand: newHand(),
		incoming: make(chan *message, 2*store.MaxBatch), pool: make(chan struct{}, poolSize+o.Concurrency), tasks: make(chan func()),
		channels: newChannels(o.Pace, o.Concurrency), unserved: make(chan source, mostUnserved), leaving: make(chan []store.Stay, leavingQueue),
	}
	w.letters = deadletters.NewWriter(deadletters.WriterOptions{
		Streams: o.Streams, MaxBody: o.Decoder.MaxBytes, Metrics: o.Metrics, Logger: o.Logger,
	})
	w.tally = newTally(o.Streams.Connection.Conn, o.Metrics, w.counted)
	w.settlers = w.newSettlers()
	w.bodies, w.mover, w.leases = newBodies(w), newMover(w), newLeaseRenewer(w)
	return w
}

// newCache returns a cache that evicts the least recently used entry.
func newCache[K comparable, V any](most int) *lru.Cache[K, V] {
	cache, _ := lru.New[K, V](most) // fails only if most is not positive
	return cache
}

// arrives waits for a channel, and reports whether the channel was ready before the context ended. A nil channel is ready.
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

// Ready returns nil if NATS and the sink let the worker do its work.
func (w *Worker) Ready() error { return errors.Join(w.streams.Ready(), w.health.ready()) }

// Run works until the context ends, and then until the deliveries under way are finished or returned to the stream. It may be called once.
// The error is nil after an orderly shutdown.
func (w *Worker) Run(ctx context.Context) error {
	defer close(w.tasks)

	// Deliveries outlive the context, by at most the shutdown timeout.
	work, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	parent := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	stop := sync.OnceFunc(func() {
		close(w.health.stopping) // before the cancellation ends anything
		cancel(context.Cause(parent))
	})
	defer stop()
	defer context.AfterFunc(parent, stop)()
	context.AfterFunc(ctx, func() { w.cut(work, abandon) })
	leaving, stopLeaving := context.WithCancel(context.WithoutCancel(work))
	defer stopLeaving()
	var ending sync.WaitGroup
	ending.Go(func() { w.endStays(leaving) })
	keeping, stopKeeping := context.WithCancel(work)
	defer stopKeeping()
	var watching sync.WaitGroup
	watching.Go(func() { w.leases.run(keeping) })
	watching.Go(func() { w.watch(keeping) })
	watching.Go(func() { w.keepRemoving(keeping) })
	w.mover.start()

	pulled := make(chan error, 1)
	go func() { pulled <- w.pullAll(ctx) }()
	w.receive(ctx, work)
	err := <-pulled

	stop()
	w.working.Wait()
	w.mover.close()
	stopKeeping()
	watching.Wait()
	flushing, endFlushing := context.WithTimeout(context.WithoutCancel(work), settle.ConfirmTimeout)
	defer endFlushing()
	w.settlers.Close(flushing)
	w.letters.Close()
	stopLeaving()
	ending.Wait()
	_ = w.streams.Connection.Conn.FlushWithContext(flushing)
	return err
}

var errShutdown = errors.New("the shutdown timeout is over")

// cut stops the deliveries that exceed the shutdown timeout, and returns their messages to the stream.
func (w *Worker) cut(work context.Context, abandon context.CancelCauseFunc) {
	select {
	case <-work.Done(): // all are finished
	case <-time.After(w.o.Shutdown):
		w.logger.Warn("unfinished deliveries are returned to the stream", "count", w.leases.count())
		abandon(errShutdown)
	}
}
