package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/tracing"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

func runWorker(ctx context.Context) error {
	settings, warnings, err := config.Load(config.Options{CheckTemplate: checkTemplate})
	if err != nil {
		return &usageError{err}
	}
	w := worker{settings: settings, logger: telemetry.NewLogger(os.Stderr, settings.Log.Level, settings.Log.Format), stdout: os.Stdout}
	for _, warning := range warnings {
		w.logger.Warn("settings", "detail", warning)
	}
	return w.run(ctx)
}

// worker is one instance, put together from the settings.
type worker struct {
	settings config.Config
	logger   *slog.Logger
	stdout   io.Writer // of the console sink
	colour   bool
	isDev    bool // takes events over HTTP too, and another port will do where one is taken that is not set

	// observe, if set, stands between the packages and the metrics.
	observe func(*telemetry.Metrics) consume.Metrics
	// started, if set, is told when the worker begins to take events.
	started func(limiter *throttle.Limiter, at addresses)

	begun      time.Time
	life       *lifecycle
	metrics    *telemetry.Metrics
	counts     *status.Counts
	suppressed *status.Suppression
	sink       openSink
	redis      redis.UniversalClient
	connection *consume.Connection
	journal    *journal.Recorder // nil: there is none
	tracer     *tracing.Tracer   // likewise
	instance   string            // a name that no other start of a worker has

	consumer  atomic.Pointer[consume.Worker]
	limiter   atomic.Pointer[throttle.Limiter]
	pacer     atomic.Pointer[pacing.Pacer]
	summaries atomic.Pointer[summary.Reporter]
	changes   atomic.Pointer[overrides.Snapshot] // the overrides in force; nil: not known yet
	mismatch  mismatch

	unreadable unreadable
}

// addresses are where a worker listens; "" where it does not.
type addresses struct{ admin, page, ingest string }

// stopTimeout bounds how long everything beside the consumer takes to stop. Summaries take longest.
func (w *worker) stopTimeout() time.Duration {
	return summary.StopPatience + w.settings.Redis.Timeout + journal.StopPatience + telemetry.TracesStopPatience + time.Second
}

// gcPercent lets the heap, which is a few megabytes, grow fivefold between collections. Events leave little behind, and collecting
// it after each few of them costs more than it frees. GOGC overrides it.
const gcPercent = 400

func collectSeldom() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// run works until the context ends, and then until the deliveries under way are finished or returned to the stream.
func (w *worker) run(ctx context.Context) (err error) {
	collectSeldom()
	w.instance, w.unreadable.ended = instanceName(), make(chan struct{})
	w.begun, w.counts, w.suppressed = time.Now(), status.NewCounts(), status.NewSuppression()
	v, r, _ := buildInfo()
	w.logger.Info("notifier starts", "version", v, "revision", r)
	w.life = &lifecycle{timeout: w.stopTimeout()}
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
	w.warnOfPointless(rules.Tree)
	w.metrics = newMetrics(w.settings, rules.Tree)
	w.startTraces(ctx)
	var at addresses
	if at.admin, err = w.serveAdmin(ctx); err != nil {
		return err
	}
	if err := w.connect(); err != nil {
		return err
	}
	if err := w.joinLayout(ctx); err != nil {
		return ended(ctx, err)
	}
	w.journal = w.newJournal()
	consumer, err := consume.New(w.consumeOptions())
	if err != nil {
		return err
	}
	w.consumer.Store(consumer)
	ackWait, streamAge, err := consumer.Prepare(ctx)
	if err != nil {
		return ended(ctx, err)
	}
	w.life.background("writing the journal", w.journal.Run)
	deliveries, pacer, err := w.startParts(ctx, throttle.Settings{
		Tree: rules.Tree, Shadow: rules.Shadow, Lease: ackWait, Retention: throttle.Retention(streamAge, longestLife(w.settings)),
		Forward: w.settings.Limits.Shadow, PairTTL: w.settings.PairTTL, Remind: w.settings.Remind,
	})
	if err != nil {
		return err
	}
	limiter := w.limiter.Load()
	if at.page, err = w.servePage(ctx); err != nil {
		return err
	}
	if at.ingest, err = w.serveIngest(ctx); err != nil {
		return err
	}
	if err := w.awaitReadable(ctx); err != nil {
		return ended(ctx, err)
	}
	if w.started != nil {
		w.started(limiter, at)
	}
	return ended(ctx, consumer.Run(ctx, limiter, pacer, countedSink{deliveries, w.counts}))
}

func newMetrics(settings config.Config, tree *limits.Tree) *telemetry.Metrics {
	v, r, _ := buildInfo()
	return telemetry.NewMetrics(telemetry.MetricsOptions{
		MaxCategories: settings.MetricsMaxCategories,
		Categories:    settings.Categories(),
		Levels:        levels(tree, throttle.Policy(settings.Redis.Failure)),
		Policy:        settings.Redis.Failure,
		Version:       v,
		Revision:      r,
	})
}

// connect makes the sink and what connects to the servers.
func (w *worker) connect() (err error) {
	if w.sink, err = newSink(w.settings, w.stdout, w.colour, w.observeRequest, w.logger); err != nil {
		return err
	}
	w.life.add("the sink", func(context.Context) error { w.sink.close(); return nil })
	if w.redis, err = newRedisClient(w.settings.Redis, w.logger); err != nil {
		return err
	}
	w.redis.AddHook(callTimes{w.counts})
	w.life.add("redis", func(context.Context) error { return w.redis.Close() })
	if w.connection, err = connectNATS(w.settings.NATS, "", w.logger); err != nil {
		return err
	}
	w.life.add("nats", func(context.Context) error { w.connection.Conn.Close(); return nil })
	return nil
}

// startParts starts everything that decides, paces and sums up, and returns the sink for deliveries and the pacer.
func (w *worker) startParts(ctx context.Context, s throttle.Settings) (*sink.Annotated, *pacing.Pacer, error) {
	instances, err := fleet.Join(w.connection.Conn, w.fleetOptions(ctx))
	if err != nil {
		return nil, nil, err
	}
	w.life.add("the micro service", func(context.Context) error { instances.Leave(); return nil })
	w.life.background("counting instances", instances.Watch)

	runner := newRunner(w.redis, w.settings.Redis)
	store := throttle.NewRedis(runner, s)
	live := w.newLimitsWatcher(store)
	limiter, pacer := w.newLimiter(runner, store, instances.Alive, live.Refresh)
	w.limiter.Store(limiter)
	w.pacer.Store(pacer)
	w.life.background("watching redis", limiter.Run)
	w.life.background("watching the limits", live.Run)
	w.awaitLimits(ctx, live, limits.Ruleset{Tree: s.Tree, Shadow: s.Shadow})
	w.life.background("looking at redis' settings", w.warnOfEviction)
	deliveries := &sink.Annotated{
		Sink: w.sink, Limits: limiter, Pacer: pacer, Mentions: w.settings.Slack.Mentions, MentionFor: w.settings.SummaryInterval,
	}
	summaries := summary.NewReporter(summary.Options{
		Store:     summary.NewRedis(runner, w.settings.SummaryInterval, s.Retention),
		Instance:  w.instance,
		Interval:  w.settings.SummaryInterval,
		Logger:    w.logger,
		ChannelOf: deliveries.SummaryDestination,
		Busy:      w.consumer.Load().Busy,
		Wait:      pacer.Wait,
		Pause:     pacer.Pause,
		Send:      countedSink{deliveries, w.counts}.SendSummary,
		LimitOf:   limiter.LimitOf,
		Opens:     limiter.Opens,
		Changes:   w.limitChanges(live),
		Observe:   w.observeDigest,
	})
	w.summaries.Store(summaries)
	w.life.background("telling of drops", summaries.Run)
	return deliveries, pacer, nil
}

// observeRequest counts a request to Slack, and tells the span of its event of it.
func (w *worker) observeRequest(ctx context.Context, r sink.Request) {
	w.metrics.SlackRequest(string(r.Class), r.Took)
	made := tracing.Request{Method: r.Method, Status: r.Status, Code: r.Code, Began: r.Began, Took: r.Took}
	if r.Class != sink.OK {
		made.Class = string(r.Class)
	}
	tracing.Post(ctx, made)
}

// startTraces starts sending spans, if that is wanted. Settings that cannot be used leave the events without spans.
func (w *worker) startTraces(ctx context.Context) {
	v, _, _ := buildInfo()
	traces, err := telemetry.NewTraces(ctx, telemetry.TracesOptions{
		Version: v, Instance: w.instance, Lost: w.metrics.SpansLost, Logger: w.logger,
	})
	switch {
	case err != nil:
		w.logger.Warn("no traces are sent", "error", err)
	case traces != nil:
		w.life.add("traces", func(stopping context.Context) error { traces.Stop(stopping); return nil })
		w.tracer = tracing.New(traces, w.settings.NATS.Consumer)
	}
}

// observeDigest counts a digest that ended, and notes a posted one in the journal.
func (w *worker) observeDigest(result string, d summary.Digest) {
	w.metrics.Summary(result)
	if result != summary.Sent {
		return
	}
	var rounds journal.Rounds
	for _, of := range d.Rounds {
		rounds = rounds.With(of.Instance, of.First, of.Last)
	}
	w.journal.Record("", journal.Told, "", 1, func(int, bool) journal.Entry {
		return journal.Entry{
			Channel: d.Channel, Count: int(d.Dropped), Stored: d.First, LastStored: d.Last, Decided: w.consumer.Load().Now(), Rounds: rounds,
		}
	})
}

// ended drops the error that an orderly end leaves behind.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

// levels are the names of all rules that can deny an event.
func levels(tree *limits.Tree, policy throttle.Policy) []string {
	var names []string
	for _, node := range tree.Levels() {
		names = append(names, node.Level)
	}
	if policy == throttle.Closed {
		names = append(names, throttle.LevelClosed)
	}
	return append(names, throttle.LevelUnpaired, throttle.LevelRoom)
}

func (w *worker) consumeOptions() consume.Options {
	options := consume.Options{
		Connection:  w.connection,
		Names:       names(w.settings),
		Provision:   w.settings.NATS.Provision,
		AckWait:     w.settings.NATS.AckWait,
		Decoder:     event.Decoder{Prefix: w.settings.NATS.Subject, MaxBytes: w.settings.Event.MaxBytes},
		MaxAge:      w.settings.Event.MaxAge,
		Concurrency: w.settings.Concurrency,
		SendTimeout: w.settings.SendTimeout(),
		Pace:        paceOf(w.settings).Interval,
		Journal:     w.journal,
		Revision:    func() string { return revisionOf(w.limiter.Load().Position()) },
		Shutdown:    w.settings.ShutdownTimeout,
		Tracer:      w.tracer,
		Logger:      w.logger,
		Metrics:     w.metrics,
	}
	if w.observe != nil {
		options.Metrics = w.observe(w.metrics)
	}
	options.Metrics = countedOutcomes{options.Metrics, w.counts}
	if w.settings.Delay.MostPatient() > 0 {
		options.Delay = w.settings.Delay.For
	}
	options.Drops = func(drops []summary.Drop) (round int64) {
		w.suppressed.Add(drops)
		return w.summaries.Load().Counter().Add(drops)
	}
	return options
}

// newJournal makes the recorder of what becomes of events; nil: no journal is wanted.
func (w *worker) newJournal() *journal.Recorder {
	names := journalNames(w.settings)
	if names.Age == 0 {
		return nil
	}
	js := jetStream(w.connection)
	options := journal.Options{
		Publisher: js, Names: names, Instance: w.instance, Logger: w.logger, Metrics: w.metrics,
	}
	if w.settings.NATS.Provision {
		options.Provision = func(ctx context.Context) error { return names.Provision(ctx, js) }
	}
	return journal.NewRecorder(options)
}

// instanceName is a name that no other start of a worker has, without white space.
func instanceName() string {
	host, _ := os.Hostname() // without one the rest is a name as well
	const unique = 8
	return strings.Join(strings.Fields(host), "_") + "-" + strings.ToLower(rand.Text()[:unique])
}

// revisionOf is a position of the limits as entries of the journal have it.
func revisionOf(in limits.Position) string {
	if in == (limits.Position{}) {
		return ""
	}
	return strconv.FormatInt(in.Generation, 10) + ":" + strconv.FormatUint(in.Revision, 10)
}

// newLimiter makes the limiter and the pacer. Each uses what the other knows of Redis.
func (w *worker) newLimiter(
	runner *script.Runner, store *throttle.Redis, instances func() int, refresh func(context.Context) error,
) (*throttle.Limiter, *pacing.Pacer) {
	var limiter *throttle.Limiter
	pacer := pacing.New(pacing.Options{
		Runner: runner, Pace: paceOf(w.settings), Available: func() bool { return limiter.Available() }, Logger: w.logger,
	})
	limiter = throttle.NewLimiter(throttle.LimiterOptions{
		Settings:     store.Settings(),
		Redis:        store,
		Policy:       throttle.Policy(w.settings.Redis.Failure),
		Grace:        w.settings.Redis.Grace,
		DenyCacheTTL: w.settings.Limits.DenyCacheTTL,
		RoomMax:      w.settings.Room.Max,
		Instances:    instances,
		Refresh:      refresh,
		Pauses:       pacer.Learn,
		SelfTests:    selfTests(),
		Logger:       w.logger,
		Metrics:      countedOutage{w.metrics, w.counts},
	})
	return limiter, pacer
}

func (w *worker) serveAdmin(ctx context.Context) (string, error) {
	return serveAdmin(ctx, w.life, telemetry.AdminOptions{
		Addr:          w.settings.HTTP.Addr,
		AnotherWillDo: w.isDev && !w.settings.HTTP.AddrSet,
		Gatherer:      w.metrics.Registry(),
		Ready:         func() error { return w.ready(ctx) },
		Logger:        w.logger,
	})
}

// serveAdmin serves metrics and probes until the lifecycle stops, and returns the address; "" if none is wanted.
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

// servePage serves the page, if this worker is to, and returns the address.
func (w *worker) servePage(ctx context.Context) (string, error) {
	return pageServer{
		settings: w.settings, anotherWillDo: w.isDev && !w.settings.Page.AddrSet, connection: w.connection,
		forged: func(n int) { w.metrics.Forged(trusted.Journal, n) }, logger: w.logger, life: w.life,
	}.serve(ctx)
}

// serveIngest takes events over HTTP, if this worker is to, and returns the address.
func (w *worker) serveIngest(ctx context.Context) (string, error) {
	if !w.isDev || w.settings.Ingest.Addr == "" {
		return "", nil
	}
	if err := checkIngest(w.settings.Ingest); err != nil {
		return "", &usageError{err}
	}
	counts := telemetry.NewIngest(w.metrics.Registry(), ingest.Answered())
	server, err := serveIngest(ctx, w.settings, !w.settings.Ingest.AddrSet, w.connection, counts, w.logger, w.life)
	if err != nil {
		return "", err
	}
	return server.URL(), nil
}

// ready tells what keeps the worker from its work.
func (w *worker) ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("the worker is stopping")
	}
	consumer, limiter := w.consumer.Load(), w.limiter.Load()
	if consumer != nil && limiter != nil {
		return errors.Join(consumer.Ready(), limiter.Ready(), w.unreadable.now())
	}
	err := errors.New("the worker is starting")
	if consumer != nil {
		err = errors.Join(err, consumer.Ready())
	}
	return err
}

// warnOfEviction waits for Redis, and warns if Redis may evict logs. Each lost log admits a whole limit once more.
func (w *worker) warnOfEviction(ctx context.Context) {
	if w.limiter.Load().Await(ctx) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, w.settings.Redis.Timeout)
	defer cancel()
	if policy := evictionPolicy(ctx, w.redis); policy != "" && policy != noEviction {
		w.logger.Warn("redis may evict what the limits are counted from", "maxmemory_policy", policy, "expected", noEviction)
	}
}

// names are the places in JetStream.
func names(settings config.Config) consume.Names {
	return consume.Names{
		Stream:            settings.NATS.Stream,
		Subject:           settings.NATS.Subject,
		Consumer:          settings.NATS.Consumer,
		MaxBytes:          settings.Stream.MaxBytes,
		MaxAge:            settings.Stream.MaxAge,
		RoomStream:        settings.Room.Stream,
		LongestDelay:      settings.Delay.MostPatient(),
		DeadLetterStream:  settings.DLQ.Stream,
		DeadLetterSubject: settings.DLQ.Subject,
		DeadLetters: consume.DeadLetterBounds{
			PerSubject: settings.DLQ.MaxPerSubject, Bytes: settings.DLQ.MaxBytes, Age: settings.DLQ.MaxAge,
		},
		Journal:  journalNames(settings),
		Replicas: settings.NATS.Replicas,
	}
}

// journalNames are the place of the journal in JetStream.
func journalNames(settings config.Config) journal.Names {
	return journal.Names{
		Stream: settings.Journal.Stream, Subject: settings.NATS.Subject, Age: settings.Journal.Age, MaxBytes: settings.Journal.MaxBytes,
		Replicas: settings.NATS.Replicas,
	}
}
