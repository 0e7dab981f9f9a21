package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/cli"
	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/layout"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/livelimits"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/selfreport"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

func runWorker(ctx context.Context) error {
	settings, warnings, err := cli.Settings(config.Options{CheckTemplate: setup.CheckTemplate})
	if err != nil {
		return err
	}
	return newWorker(settings, setup.SinkOptions{Console: os.Stdout}, newLogger(os.Stderr, settings, warnings)).run(ctx)
}

// newLogger returns a logger, which has logged the warnings about the settings.
func newLogger(out io.Writer, settings config.Config, warnings []string) *slog.Logger {
	logger := telemetry.NewLogger(out, settings.Log.Level, settings.Log.Format)
	for _, warning := range warnings {
		logger.Warn("settings", "detail", warning)
	}
	return logger
}

// worker is one instance. run starts its parts, and stops them in the reverse order.
type worker struct {
	settings config.Config
	sink     setup.SinkOptions
	logger   *slog.Logger
	life     *lifecycle
	report   selfreport.Reporter

	// started, if set, is called when the worker begins to take events. Such a worker belongs to the demonstration: it also takes events
	// over HTTP.
	started func(*servers, addresses)

	token    *oplog.Condition               // fails while Slack refuses the token
	streams  atomic.Pointer[stream.Client]  // once connecting has begun
	consumer atomic.Pointer[consume.Worker] // once everything that it uses has started
	parts    atomic.Pointer[parts]          // nil while the worker starts
}

// newWorker returns a worker that has not started. The options of its sink are the console's.
func newWorker(settings config.Config, console setup.SinkOptions, logger *slog.Logger) *worker {
	v, _, _ := buildInfo()
	// Digests take longest to stop. They, and then what watches Redis, may each have a call that Redis does not answer.
	stopTimeout := summary.StopPatience + 2*settings.Redis.Timeout + journal.StopPatience + telemetry.TracesStopPatience + time.Second
	w := &worker{settings: settings, sink: console, logger: logger, life: &lifecycle{timeout: stopTimeout}}
	w.sink.Version, w.sink.Logger = v, logger
	w.token = oplog.NewCondition(logger, "slack refuses the token", "slack accepts the token")
	w.report = selfreport.Reporter{
		Settings: settings, Version: v, Started: time.Now(), Counts: status.NewCounts(), Suppressed: status.NewSuppression(),
		Parts: func() (selfreport.Parts, bool) {
			if started := w.parts.Load(); started != nil {
				return started.Parts, true
			}
			return selfreport.Parts{}, false
		},
	}
	return w
}

// addresses are where a worker listens; "" where it does not.
type addresses struct{ admin, page, ingest string }

// gcPercent lets the heap, which is a few megabytes, grow threefold between collections. An event leaves little garbage, and frequent
// collections would cost more than they free. GOGC overrides it.
const gcPercent = 200

func collectSeldom() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// memoryLimit is the memory in bytes from which a worker collects more often: large bodies in hand take tens of megabytes, and the heap
// must not grow to three times as much. GOMEMLIMIT overrides it.
const memoryLimit = 90 << 20

func limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}

// run works until the context ends, and then until the deliveries under way are finished or returned to the stream.
func (w *worker) run(ctx context.Context) (err error) {
	collectSeldom()
	limitMemory()
	v, r, _ := buildInfo()
	w.logger.Info("notifier starts", "version", v, "revision", r, "shadow_mode", w.settings.Limits.Shadow)
	ctx, end := context.WithCancelCause(ctx) // with the cause unfit: the worker must not run on
	defer end(nil)
	defer func() {
		err = errors.Join(err, w.life.stop())
		if err == nil {
			w.logger.Info("notifier has stopped")
		}
	}()

	rules, err := limits.NewRuleset(w.settings.Limits.Plan(), nil, w.settings.Limits.ShadowLimits, nil)
	if err != nil {
		return err
	}
	livelimits.LogPointless(w.logger, rules.Tree)
	metrics := newMetrics(w.settings, rules.Tree)
	w.report.Ready, w.report.Failing = func() error { return w.ready(ctx) }, w.failing
	var at addresses
	admin := telemetry.AdminOptions{Addr: w.settings.HTTP.Addr, Registry: metrics.Registry(), Ready: w.report.Ready, Logger: w.logger}
	if at.admin, err = serveAdmin(ctx, w.life, admin); err != nil {
		return err
	}
	servers, err := w.connect(ctx, metrics)
	if err != nil {
		return err
	}
	streams, err := w.newStreams(servers)
	if err != nil {
		return err
	}
	guard := w.layoutGuard(servers)
	if _, err := guard.Join(ctx); err != nil {
		return ended(ctx, err)
	}
	if err := streams.Find(ctx); err != nil {
		return ended(ctx, err)
	}
	found := streams.Layout()
	w.life.background("writing the journal", servers.journal.Run)
	started := w.start(ctx, servers, keepLayout(guard, end), store.Settings{
		Tree: rules.Tree, Shadow: rules.Shadow, Lease: found.AckWait(), Retention: throttle.Retention(found.MaxAge(), setup.LongestLife(w.settings)),
		Forward: w.settings.Limits.Shadow, PairTTL: w.settings.PairTTL, Remind: w.settings.Remind, Flap: setup.Flap(w.settings),
	})
	consumer := consume.New(w.consumeOptions(servers, started))
	if at.page, err = servePage(ctx, w.life, w.settings, servers.connection, w.logger); err != nil {
		return err
	}
	if at.ingest, err = w.serveIngest(ctx, servers); err != nil {
		return err
	}
	_, err = guard.Join(ctx) // another layout may have taken over meanwhile
	if err := errors.Join(err, started.Live.AwaitReadable(ctx)); err != nil {
		return ended(ctx, err)
	}
	w.consumer.Store(consumer) // nothing can prevent its run any more, so the worker may be ready
	if w.started != nil {
		w.started(servers, at)
	}
	return ended(ctx, consumer.Run(ctx))
}

func (w *worker) layoutGuard(s *servers) layout.Guard {
	return layout.Guard{
		Conn: s.connection.Conn, Positions: store.NewRedis(s.runner, store.Settings{}).Positions, Deployment: w.settings.Redis.Prefix, Logger: w.logger,
	}
}

// keepLayout returns a task that ends the worker if workers of another layout run.
func keepLayout(guard layout.Guard, end context.CancelCauseFunc) func(ctx context.Context) {
	return func(ctx context.Context) {
		if err := guard.Keep(ctx); err != nil {
			end(unfit{err})
		}
	}
}

// newStreams makes the client of the streams and consumers, which knows from now on whether NATS is connected.
func (w *worker) newStreams(s *servers) (*stream.Client, error) {
	streams, err := stream.NewClient(stream.Options{
		Connection: s.connection, Names: setup.Names(w.settings), Provision: w.settings.NATS.Provision, AckWait: w.settings.NATS.AckWait,
		Longest: w.settings.SendTimeout(), Logger: w.logger,
	})
	if err == nil {
		w.streams.Store(streams)
	}
	return streams, err
}

func newMetrics(settings config.Config, tree *limits.Tree) *telemetry.Metrics {
	v, r, _ := buildInfo()
	return telemetry.NewMetrics(telemetry.MetricsOptions{
		MaxCategories: settings.MetricsMaxCategories,
		Categories:    settings.Categories(),
		Levels:        levels(tree, throttle.Policy(settings.Redis.Failure)),
		Policy:        settings.Redis.Failure,
		Version:       v, Revision: r,
	})
}

// levels returns the names of all rules that can deny an event.
func levels(tree *limits.Tree, policy throttle.Policy) []string {
	var names []string
	for _, node := range tree.Levels() {
		names = append(names, node.Level)
	}
	if policy == throttle.Closed {
		names = append(names, limits.LevelClosed)
	}
	return append(names, limits.LevelUnpaired, limits.LevelMute, limits.LevelRoom, limits.LevelOperator)
}

// servers are what the worker is connected to, and what records its work.
type servers struct {
	instance   string // a name that no other start of a worker has
	metrics    *telemetry.Metrics
	tracer     *tracing.Tracer   // nil: no traces are sent
	journal    *journal.Recorder // nil: there is no journal
	outlet     sink.Outlet
	redis      redis.UniversalClient
	connection *stream.Connection
	instances  *fleet.Fleet
	runner     *script.Runner
	pacer      *pacing.Pacer
}

// connect returns the connections. They are established in the background.
func (w *worker) connect(ctx context.Context, metrics *telemetry.Metrics) (*servers, error) {
	s := &servers{instance: instanceName(), metrics: metrics}
	s.tracer = w.startTraces(ctx, s)
	w.sink.Observe = func(ctx context.Context, r sink.Request) { observeRequest(ctx, metrics, r) }
	var err error
	setup.LogRedis(w.logger)
	if s.redis, err = setup.Redis(w.settings.Redis); err != nil {
		return nil, err
	}
	s.redis.AddHook(selfreport.Calls{Counts: w.report.Counts})
	s.runner = setup.Runner(s.redis, w.settings.Redis)
	w.life.add("redis", func(context.Context) error { return s.redis.Close() })
	s.pacer = pacing.New(pacing.Options{
		Runner: s.runner, Instance: s.instance, Budgets: setup.Budgets(w.settings), Available: w.redisAvailable, Logger: w.logger,
		Metrics: metrics.Waiting,
	})
	w.sink.Pacer, w.sink.IDs = s.pacer, pacing.NewChannels(s.runner, w.redisAvailable)
	w.sink.Readings = pacing.NewReadings(s.runner, w.redisAvailable)
	var done func()
	if s.outlet, done, err = setup.Sink(w.settings, w.sink); err != nil {
		return nil, err
	}
	w.life.add("the sink", func(context.Context) error { done(); return nil })
	if s.outlet.CheckToken != nil {
		w.life.background("checking the token", func(ctx context.Context) { setup.AwaitToken(ctx, s.outlet.CheckToken, w.token) })
	}
	if s.connection, err = setup.NATS(ctx, w.settings.NATS, "", w.logger); err != nil {
		return nil, err
	}
	w.life.add("nats", func(context.Context) error { s.connection.Conn.Close(); return nil })
	s.journal = w.newJournal(s)
	w.report.Journal, w.report.Channels = s.journal, s.outlet.Sink.Destinations() // before anybody can ask for a report
	if s.instances, err = fleet.Join(s.connection.Conn, w.fleetOptions(s)); err != nil {
		return nil, err
	}
	w.life.add("the micro service", func(context.Context) error { s.instances.Leave(); return nil })
	return s, nil
}

// redisAvailable reports whether the limiter has started and considers Redis available.
func (w *worker) redisAvailable() bool {
	started := w.parts.Load()
	return started != nil && started.Limiter.Available()
}

// observeRequest counts a request of the sink, and adds it to the span of its event.
func observeRequest(ctx context.Context, metrics *telemetry.Metrics, r sink.Request) {
	metrics.Posts.SinkRequest(string(r.Class), r.Took)
	made := tracing.Request{Sink: r.Sink, Method: r.Method, Status: r.Status, Code: r.Code, Began: r.Began, Took: r.Took}
	if r.Class != sink.OK {
		made.Class = string(r.Class)
	}
	tracing.Post(ctx, made)
}

// startTraces starts sending spans, if the environment asks for it. With unusable settings, events have no spans.
func (w *worker) startTraces(ctx context.Context, s *servers) *tracing.Tracer {
	traces, err := telemetry.NewTraces(ctx, telemetry.TracesOptions{
		Version: w.report.Version, Instance: s.instance, Lost: s.metrics.Losses.SpansLost, Logger: w.logger,
	})
	switch {
	case err != nil:
		w.logger.Warn("no traces are sent", "error", err)
	case traces != nil:
		w.life.add("traces", func(stopping context.Context) error { traces.Stop(stopping); return nil })
		return tracing.New(traces, w.settings.NATS.Consumer)
	}
	return nil
}

// newJournal returns the recorder of event outcomes. It returns nil if the settings disable the journal.
func (w *worker) newJournal(s *servers) *journal.Recorder {
	names := setup.JournalNames(w.settings)
	if names.Age == 0 {
		return nil
	}
	js := setup.JetStream(s.connection)
	options := journal.Options{Publisher: js, Names: names, Instance: s.instance, Logger: w.logger, Metrics: s.metrics.Losses}
	if w.settings.NATS.Provision {
		options.Provision = func(ctx context.Context) error { return names.Provision(ctx, js) }
	}
	return journal.NewRecorder(options)
}

// instanceName returns a name that no other start of a worker has, without white space.
func instanceName() string {
	host, _ := os.Hostname() // the random part alone is unique too
	return strings.Join(strings.Fields(host), "_") + "-" + strings.ToLower(rand.Text()[:8])
}

// unfit is why a worker that was started must not run on.
type unfit struct{ error }

// ended returns the reason why the worker must not run on, or else the error, unless it is only the end of the context.
func ended(ctx context.Context, err error) error {
	if reason, ends := errors.AsType[unfit](context.Cause(ctx)); ends {
		return reason.error
	}
	if ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, ctx.Err())) {
		return nil
	}
	return err
}

// ready returns an error that explains why the worker is not ready.
func (w *worker) ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("the worker is stopping")
	}
	var err error
	if started := w.parts.Load(); started != nil {
		err = started.Live.Ready()
		if limiter := started.Limiter.Ready(); err == nil || !errors.Is(limiter, script.ErrStale) { // unreadable limits are outdated ones too
			err = errors.Join(limiter, err)
		}
	}
	if consumer := w.consumer.Load(); consumer != nil {
		return errors.Join(consumer.Ready(), err, w.token.Err())
	}
	if streams := w.streams.Load(); streams != nil {
		err = errors.Join(err, streams.Ready())
	}
	return errors.Join(err, errors.New("the worker is starting"))
}

// failing returns what the worker retries. Before the consumer runs, it returns nil.
func (w *worker) failing() error {
	consumer, started := w.consumer.Load(), w.parts.Load()
	if consumer == nil || started == nil {
		return nil
	}
	return errors.Join(consumer.Failing(), started.Live.Failing())
}

// busy reports whether events wait for a channel. Before the consumer runs, no event waits.
func (w *worker) busy(channel string) bool {
	consumer := w.consumer.Load()
	return consumer != nil && consumer.Busy(channel)
}

// serveAdmin serves metrics and probes until the lifecycle stops, and returns the address; "" if the settings have none.
func serveAdmin(ctx context.Context, life *lifecycle, o telemetry.AdminOptions) (string, error) {
	if o.Addr == "" {
		return "", nil
	}
	admin, err := telemetry.ListenAdmin(ctx, o)
	if err != nil {
		return "", err
	}
	life.serve("the admin server", admin)
	return admin.Addr(), nil
}

func (w *worker) serveIngest(ctx context.Context, s *servers) (string, error) {
	if w.started == nil || w.settings.Ingest.Addr == "" {
		return "", nil
	}
	if err := cli.CheckIngest(w.settings.Ingest); err != nil {
		return "", err
	}
	server, err := listenIngest(ctx, w.settings, s.connection, s.metrics.Registry(), w.logger)
	if err != nil {
		return "", err
	}
	accept(w.life, server)
	return server.URL(), nil
}
