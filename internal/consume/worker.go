package consume

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/health"
	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/openers"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/settle"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/consume/update"
	"github.com/seed-4578ace9/notifier/internal/consume/watch"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// Options configure a worker.
type Options struct {
	Streams     *stream.Client // Find has succeeded
	Limits      Limits
	Pacer       lane.Pacer
	Updates     update.Pacer
	Sink        Sink
	Finder      Finder
	Deployment  string // distinguishes the posts of deployments that share a channel
	Decoder     event.Decoder
	MaxAge      time.Duration                       // older events expire, unless Delay allows their category more; 0: no bound
	Concurrency int                                 // concurrent posts to one destination
	SendTimeout time.Duration                       // maximum duration of Sink.Send
	Pace        time.Duration                       // minimum time between two messages to a destination; deliveries then keep their order; 0: none
	Delay       func(category string) time.Duration // how long a denied event may wait for a slot; nil: none may
	Replans     bool                                // events that wait for slots are planned anew after a change of their limits
	Fold        func(category string) time.Duration // how old the message may be into which an event of its key is folded; nil: none is
	Flap        time.Duration                       // how long a flapping key has not changed when it is steady; 0: no key is flapping
	ShowsFolds  bool                                // messages can be updated, so that they show what is folded into them; else digests count it
	Drops       func([]summary.Drop) (round int64)  // counts dropped events once their settlement is confirmed (summary.Counter.Add)
	Journal     outcome.Journal
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
	Folds     update.Folds
}

// Worker takes events from JetStream and settles them.
type Worker struct {
	streams  *stream.Client
	shutdown time.Duration
	health   *health.Health[*delivery]
	lanes    *lane.Lanes
	puller   *puller
	decider  *decider
	mover    *move.Mover
	settler  *outcome.Settler
	letters  *outcome.Letters
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
	o = o.complete()
	reader := &received.Reader{Decoder: o.Decoder, Streams: o.Streams, MaxAge: o.MaxAge, Delay: o.Delay, Fold: o.Fold, Flaps: o.Flap > 0}
	reporter := &outcome.Reporter{
		Reader: reader, Journal: o.Journal, Limits: o.Limits.Throttle, Tracer: o.Tracer, Channels: o.Sink, Logger: o.Logger,
	}
	refusals := outcome.NewRefusals(o.Delay, o.Metrics.Room, time.Now)
	queues, faults, inbox, pool := move.NewQueues(o.Streams, o.Sink.Destinations, o.Logger), health.New[*delivery](o.Logger), newInbox(), stage.NewPool(o.Concurrency)
	settler := outcome.NewSettler(outcome.Options{
		Streams: o.Streams, Reader: reader, Reporter: reporter, Stays: outcome.NewStays(o.Limits.Room, o.Streams.Names), Mutes: o.Limits.Mutes, Drops: o.Drops,
		ShowsFolds: o.ShowsFolds, Metrics: o.Metrics.Events, Letters: o.Metrics.Letters, Logger: o.Logger,
	})
	letters := outcome.NewLetters(settler)
	waits := stay.Waits{Streams: o.Streams, Room: o.Limits.Room, Decoder: o.Decoder}
	replans := move.NewReplanner(move.ReplannerOptions{Limits: o.Limits.Throttle, Settler: settler, Waits: waits, On: o.Replans, Logger: o.Logger})
	recounts := stay.NewRecounter(waits, o.Logger)
	o.Limits.Room = stay.WatchedRoom{Room: o.Limits.Room, Refused: recounts.Add}
	mover := move.NewMover(move.Options{
		Room: o.Limits.Room, Settler: settler, Refusals: refusals, Replans: replans, Queues: queues, Metrics: o.Metrics.Room, Logger: o.Logger,
	})
	bodies := newBodies(bodyOwners{streams: o.Streams, inbox: inbox, reader: reader, refusals: refusals, mover: mover, settler: settler, letters: letters})
	lanes := lane.New(lane.Options{
		Pacer: o.Pacer, Pace: o.Pace, Concurrency: o.Concurrency, Poll: pollTime, Held: o.Metrics.Deliveries.Held,
	})
	updater := update.NewUpdater(update.Options{
		Streams: o.Streams, Room: o.Limits.Room, Sink: o.Sink, Pacer: o.Updates, Folds: o.Limits.Folds, Flap: o.Flap, ShowsFolds: o.ShowsFolds, SendTimeout: o.SendTimeout,
		Concurrency: o.Concurrency, Settler: settler, Pool: pool, Metrics: o.Metrics.Room, Logger: o.Logger,
	})
	leases := newLeaseRenewer(settler, o.Metrics.Deliveries, o.Logger)
	return &Worker{
		streams: o.Streams, shutdown: o.Shutdown, health: faults, lanes: lanes, mover: mover, settler: settler, letters: letters, leases: leases, recounts: recounts,
		puller: &puller{
			streams: o.Streams, throttle: o.Limits.Throttle, settler: settler, lanes: lanes, queues: queues, bodies: bodies, health: faults,
			inbox: inbox, hand: new(received.Hand), logger: o.Logger,
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
			planner: move.NewPlanner(o.Limits.Throttle, mover, recounts, pool),
			folds:   update.NewFoldSettler(updater),
			deliverer: &deliverer{
				lanes: lanes, sink: o.Sink, sendTimeout: o.SendTimeout, settler: settler, mover: mover, pool: pool, leases: leases, health: faults,
				reporter: reporter, doubts: newDoubts(o), mutes: muteCheck{o.Limits.Mutes, o.Pacer}, updater: updater,
			},
		},
		watcher: watch.New(watch.Options{
			Streams: o.Streams, Positions: o.Limits.Positions, EachQueue: queues.EachToken, Serves: queues.Serves,
			Serve:    func(token string) { queues.Serve(received.Source{InRoom: true, Token: token}) },
			Channels: o.Sink.Destinations, Unacknowledged: faults.Unacknowledged, Metrics: o.Metrics.Streams, Logger: o.Logger,
		}),
	}
}

// Ready returns nil if NATS and the sink let the worker do its work.
func (w *Worker) Ready() error { return errors.Join(w.streams.Ready(), w.health.Ready()) }

// Failing returns why the latest post failed, why channels refuse messages, and why what was last to be stored was not: a dead letter, an event that
// waits, an update of a message. The worker retries all of these, and each success ends a failure of its kind.
func (w *Worker) Failing() error {
	return errors.Join(w.health.Failing(), w.settler.Failing(), w.mover.Failing(), w.decider.deliverer.updater.Failing())
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
	watching.Go(func() { w.decider.intake.replans.Watch(keeping) })
	w.settler.Stays.Start()
	w.letters.Start(working)
	w.mover.Start()
	w.decider.planner.Start(working)

	pulled := make(chan error, 1)
	go func() { pulled <- w.puller.pullAll(waiting) }()
	w.decider.receive(stage.Life{Waiting: waiting, Working: working})
	err := <-pulled
	stop()
	w.decider.pool.Close()
	w.decider.planner.Close()
	w.mover.Close()
	w.letters.Close()
	stopKeeping()
	watching.Wait()
	flushing, endFlushing := context.WithTimeout(context.WithoutCancel(working), settle.ConfirmTimeout)
	defer endFlushing()
	w.settler.Close(flushing)
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

// Sink delivers events: a [sink.Sink]. Its methods may be called concurrently.
type Sink interface {
	// Send tries once; a failure is a *sink.Error. The receipt identifies the message for the event that resolves this one.
	Send(ctx context.Context, d sink.Delivery) (receipt string, err error)
	update.Sink

	// Destinations returns the destinations that the settings name.
	Destinations() []string
}

// Metrics count what a worker does. One value may have all these methods.
type Metrics struct {
	Events     outcome.EventMetrics
	Deliveries DeliveryMetrics
	Room       outcome.RoomMetrics
	Streams    watch.Metrics
	Letters    deadletters.Metrics
}
