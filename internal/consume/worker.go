package consume

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/health"
	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/openers"
	"github.com/seed-4578ace9/notifier/internal/consume/settle"
	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/consume/watch"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// Options configure a worker.
type Options struct {
	Streams     *stream.Client // Find has succeeded
	Limits      Limits
	Pacer       lane.Pacer
	Updates     UpdatePacer
	Sink        Sink
	Finder      Finder
	Deployment  string // distinguishes the posts of deployments that share a channel
	Decoder     event.Decoder
	MaxAge      time.Duration                       // older events expire, unless Delay allows their category more; 0: no bound
	Concurrency int                                 // concurrent posts to one destination
	SendTimeout time.Duration                       // maximum duration of Sink.Send
	Pace        time.Duration                       // minimum time between two messages to a destination; deliveries then keep their order; 0: none
	Delay       func(category string) time.Duration // how long a denied event may wait for a slot; nil: none may
	Fold        func(category string) time.Duration // how old the message may be into which an event of its key is folded; nil: none is
	Flap        time.Duration                       // how long a flapping key has not changed when it is steady; 0: no key is flapping
	ShowsFolds  bool                                // messages can be updated, so that they show what is folded into them; else digests count it
	Drops       func([]summary.Drop) (round int64)  // counts dropped events once their settlement is confirmed (summary.Counter.Add)
	Journal     Journal
	Shutdown    time.Duration   // time to finish the deliveries under way
	Tracer      *tracing.Tracer // nil: events have no spans
	Logger      *slog.Logger
	Metrics     Metrics
}

// Limits are what a worker asks about limits. One [throttle.Limiter] is all of them.
type Limits struct {
	Known     Known
	Mutes     Mutes
	Throttle  Throttle
	Room      stay.Room
	Positions watch.Positions
	Folds     Folds
}

// Worker takes events from JetStream and settles them.
type Worker struct {
	streams  *stream.Client
	shutdown time.Duration
	health   *health.Health[*delivery]
	lanes    *lane.Lanes
	puller   *puller
	decider  *decider
	mover    *mover
	settler  *settler
	letters  *letterQueue
	leases   *leaseRenewer
	watcher  *watch.Watcher
	recounts *stay.Recounter
}

func (o Options) complete() Options {
	none := func(string) time.Duration { return 0 }
	if o.Delay == nil {
		o.Delay = none
	}
	if o.Fold == nil {
		o.Fold = none
	}
	return o
}

// New returns a worker that does not run yet.
func New(o Options) *Worker {
	mayDelay := o.Delay != nil
	o = o.complete()
	reader := &reader{Decoder: o.Decoder, streams: o.Streams, maxAge: o.MaxAge, delay: o.Delay, fold: o.Fold, flaps: o.Flap > 0}
	reporter := &reporter{
		reader: reader, journal: o.Journal, throttle: o.Limits.Throttle, tracer: o.Tracer, sink: o.Sink, logger: o.Logger,
	}
	refusals, stays := newRefusals(o.Delay, o.Metrics.Room), newStays(o.Limits.Room, o.Streams.Names)
	queues, faults, inbox, pool := newChannelQueues(o.Streams, o.Sink, o.Logger), health.New[*delivery](o.Logger), newInbox(), newPool(o.Concurrency)
	settler := newSettler(o, reader, reporter, stays)
	letters := newLetterQueue(settler)
	replans := &replanner{
		throttle: o.Limits.Throttle, streams: o.Streams, settler: settler, on: mayDelay,
		waits:   stay.Waits{Streams: o.Streams, Room: o.Limits.Room, Decoder: o.Decoder},
		failing: oplog.NewCondition(o.Logger, "cannot replan waiting events", "replanning waiting events again"),
	}
	recounts := stay.NewRecounter(replans.waits, o.Logger)
	o.Limits.Room = stay.WatchedRoom{Room: o.Limits.Room, Refused: recounts.Add}
	mover := &mover{
		streams: o.Streams, room: o.Limits.Room, reader: reader, reporter: reporter, refusals: refusals, replans: replans, settler: settler,
		queues: queues, metrics: o.Metrics.Room, moves: make(chan *move, store.MaxBatch),
		answers: roomAnswers{storing: oplog.NewCondition(o.Logger, "cannot store waiting events", "storing waiting events again")},
	}
	bodies := newBodies(bodyOwners{streams: o.Streams, inbox: inbox, reader: reader, refusals: refusals, mover: mover, settler: settler, letters: letters})
	lanes := lane.New(lane.Options{
		Pacer: o.Pacer, Pace: o.Pace, Concurrency: o.Concurrency, Poll: pollTime, Held: o.Metrics.Deliveries.Held,
	})
	updater, leases := newUpdater(o, reader, reporter, settler, pool), newLeaseRenewer(settler, o.Metrics.Deliveries, o.Logger)
	return &Worker{
		streams: o.Streams, shutdown: o.Shutdown, health: faults, lanes: lanes, mover: mover, settler: settler, letters: letters, leases: leases, recounts: recounts,
		puller: &puller{
			streams: o.Streams, throttle: o.Limits.Throttle, settler: settler, lanes: lanes, queues: queues, bodies: bodies, health: faults,
			inbox: inbox, hand: new(hand), logger: o.Logger,
			finding: oplog.NewCondition(o.Logger, "cannot serve the queues of channels", "serving the queues of channels again"),
		},
		decider: &decider{
			incoming: inbox.messages, throttle: o.Limits.Throttle, pool: pool, refusals: refusals, mover: mover, settler: settler, reporter: reporter,
			intake: &intake{
				reader: reader, known: o.Limits.Known, mutes: o.Limits.Mutes, refusals: refusals, bodies: bodies, updater: updater, settler: settler,
				letters: letters, pool: pool, replans: replans, metrics: o.Metrics.Events, forged: o.Metrics.Streams,
			},
			pairs: &pairs{
				streams: o.Streams, reader: reader, known: o.Limits.Known, refusals: refusals, metrics: o.Metrics.Events,
				openers: openers.New(o.Streams, o.Decoder), begun: quota{most: mostBegun, period: pairPatience},
			},
			planner: &planner{
				throttle: o.Limits.Throttle, clock: &o.Streams.Clock, refusals: refusals, mover: mover, settler: settler, pool: pool,
				recounts: recounts, queue: newQueue[plan](cap(pool.elements)),
			},
			folds: newFolds(o, updater, settler, pool),
			deliverer: &deliverer{
				lanes: lanes, sink: o.Sink, sendTimeout: o.SendTimeout, settler: settler, mover: mover, pool: pool, leases: leases, health: faults,
				reporter: reporter, doubts: newDoubts(o), mutes: muteCheck{o.Limits.Mutes, o.Pacer}, updater: updater,
			},
		},
		watcher: watch.New(watch.Options{
			Streams: o.Streams, Positions: o.Limits.Positions, EachQueue: queues.eachToken, Serves: queues.serves,
			Serve:    func(token string) { queues.serve(source{inRoom: true, token: token}) },
			Channels: o.Sink.Destinations, Unacknowledged: faults.Unacknowledged, Metrics: o.Metrics.Streams, Logger: o.Logger,
		}),
	}
}

// Ready returns nil if NATS and the sink let the worker do its work.
func (w *Worker) Ready() error { return errors.Join(w.streams.Ready(), w.health.Ready()) }

// Failing returns why the latest post failed, and why what was last to be stored was not: a dead letter, an event that waits, an update of a
// message. The worker retries all of these, and each success ends a failure of its kind.
func (w *Worker) Failing() error {
	return errors.Join(w.health.Failing(), w.settler.letters.health.Failing(), w.mover.answers.storing.Failing(),
		w.decider.deliverer.updater.log.storing.Failing())
}

// Busy reports whether a channel is paused, or events wait for it in this worker or in the room.
func (w *Worker) Busy(channel string) bool { return w.lanes.Busy(channel) }

// DropMuted ends the waiting of deliveries that are muted by now. It is called after the limits in force have changed.
func (w *Worker) DropMuted() { w.leases.stopWaiting(w.decider.deliverer.mutes.covers) }

// Run works until the context ends, and finishes or returns the deliveries under way. It returns nil then, and may be called once.
func (w *Worker) Run(ctx context.Context) error {
	// Deliveries outlive the context, by at most the shutdown timeout.
	working, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	waiting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := sync.OnceFunc(func() {
		w.health.Stop() // before the cancellation ends anything
		cancel(context.Cause(ctx))
	})
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	context.AfterFunc(waiting, func() { w.cut(working, abandon) })
	keeping, stopKeeping := context.WithCancel(working)
	defer stopKeeping()
	var watching sync.WaitGroup
	watching.Go(func() { w.leases.run(keeping) })
	watching.Go(func() { w.watcher.Watch(keeping) })
	watching.Go(func() { w.watcher.KeepRemoving(keeping) })
	watching.Go(func() { w.recounts.Run(keeping) })
	watching.Go(func() { w.recounts.KeepAdvancing(keeping) })
	watching.Go(func() { w.mover.replans.watch(keeping) })
	w.settler.stays.start()
	w.letters.start(working)
	w.mover.start()
	w.decider.planner.start(working)

	pulled := make(chan error, 1)
	go func() { pulled <- w.puller.pullAll(waiting) }()
	w.decider.receive(life{waiting: waiting, working: working})
	err := <-pulled
	stop()
	w.decider.pool.close()
	w.decider.planner.queue.close()
	w.mover.close()
	w.letters.queue.close()
	stopKeeping()
	watching.Wait()
	flushing, endFlushing := context.WithTimeout(context.WithoutCancel(working), settle.ConfirmTimeout)
	defer endFlushing()
	w.settler.close(flushing)
	return err
}

var errShutdown = errors.New("the shutdown timeout is over")

// cut stops the deliveries that exceed the shutdown timeout, and returns their messages to the stream.
func (w *Worker) cut(work context.Context, abandon context.CancelCauseFunc) {
	select {
	case <-work.Done(): // all are finished
	case <-time.After(w.shutdown):
		w.leases.warnOfAll()
		abandon(errShutdown)
	}
}

// life has the contexts of a worker's stages. A shutdown never cuts off what has to reach Redis or NATS, such as the end of a lease.
type life struct {
	waiting context.Context // ends with the worker: requests, decisions, and waiting for a turn, a pause or a retry
	working context.Context // ends when the shutdown timeout is over: posts, leases, searches and dead letters that have begun
}

// ending returns a context for the end of an event, which nothing cuts off.
func (l life) ending() context.Context { return context.WithoutCancel(l.working) }

// Sink delivers events: a [sink.Sink]. Its methods may be called concurrently.
type Sink interface {
	// Send tries once; a failure is a *sink.Error. The receipt identifies the message for the event that resolves this one.
	Send(ctx context.Context, d sink.Delivery) (receipt string, err error)
	Destination(d sink.Delivery) string

	// Updatable reports whether the message of a receipt can be updated. Update changes the message to show that d has resolved it. Update may
	// be repeated; a failure is a *sink.Error, which is Rejected if the message can never be updated.
	Updatable(receipt string) bool
	Update(ctx context.Context, d sink.Delivery, receipt string) error

	// Destinations returns the destinations that the settings name.
	Destinations() []string
}

// Metrics count what a worker does. One value may have all these methods.
type Metrics struct {
	Events     EventMetrics
	Deliveries DeliveryMetrics
	Room       RoomMetrics
	Streams    watch.Metrics
	Letters    deadletters.Metrics
}

func levelOf(denial *store.Denial) string {
	if denial == nil {
		return ""
	}
	return denial.Level
}
