package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// stopTimeout bounds the end of what is left once the worker itself has stopped: of summaries, which take longest.
func (w *worker) stopTimeout() time.Duration {
	return summary.StopPatience + w.settings.Redis.Timeout + time.Second
}

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
	settings     config.Config
	logger       *slog.Logger
	stdout       io.Writer // of the console sink
	colour       bool
	fallbackPort bool // another port will do where the one for metrics and probes is taken

	// observe, if set, stands between the packages and the metrics.
	observe func(*telemetry.Metrics) consume.Metrics
	// started, if set, is told when the worker begins to take events.
	started func(limiter *throttle.Limiter, adminAddr string)

	consumer  atomic.Pointer[consume.Worker]
	limiter   atomic.Pointer[throttle.Limiter]
	summaries atomic.Pointer[summary.Keeper]
}

// gcPercent lets the heap, which is a few megabytes, grow fivefold between collections: events pass through quickly, and
// collecting what they leave behind after each few of them costs more than it frees. GOGC overrides it.
const gcPercent = 400

// run works until the context ends, and then until what is in hand is finished or given back.
func (w *worker) run(ctx context.Context) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	v, r, _ := buildInfo()
	w.logger.Info("notifier starts", "version", v, "revision", r)
	life := &lifecycle{timeout: w.stopTimeout()}
	defer func() {
		err = errors.Join(err, life.stop())
		if err == nil {
			w.logger.Info("notifier has stopped")
		}
	}()

	rules, err := limits.NewRuleset(w.settings.Limits.Plan(), nil, w.settings.Limits.ShadowLimits, nil)
	if err != nil {
		return err
	}
	metrics := telemetry.NewMetrics(telemetry.MetricsOptions{
		MaxCategories: w.settings.MetricsMaxCategories,
		Categories:    w.settings.Categories(),
		Levels:        levels(rules.Tree, w.settings.Redis.Failure),
		Policy:        w.settings.Redis.Failure,
		Version:       v,
		Revision:      r,
	})
	adminAddr, err := w.serveAdmin(ctx, life, metrics)
	if err != nil {
		return err
	}
	destination, err := newSink(w.settings, w.stdout, w.colour, metrics.SlackRequest, w.logger)
	if err != nil {
		return err
	}
	life.add("the sink", func(context.Context) error { destination.close(); return nil })
	client, err := newRedisClient(w.settings.Redis, w.logger)
	if err != nil {
		return err
	}
	life.add("redis", func(context.Context) error { return client.Close() })
	connection, err := connectNATS(w.settings.NATS, w.logger)
	if err != nil {
		return err
	}
	life.add("nats", func(context.Context) error { connection.Conn.Close(); return nil })

	consumer, err := consume.New(w.consumeOptions(connection, w.observed(metrics)))
	if err != nil {
		return err
	}
	w.consumer.Store(consumer)
	ackWait, streamAge, err := consumer.Prepare(ctx)
	if err != nil {
		return ended(ctx, err)
	}
	instances, err := fleet.Join(connection.Conn, w.settings.Redis.Prefix, v, w.logger)
	if err != nil {
		return err
	}
	life.add("the micro service", func(context.Context) error { instances.Leave(); return nil })
	life.background("counting instances", instances.Watch)

	limits, err := w.newLimitsWatcher(connection.Conn)
	if err != nil {
		return err
	}
	runner := newRunner(client, w.settings.Redis)
	store := throttle.NewRedis(runner, throttle.Settings{
		Tree: rules.Tree, Shadow: rules.Shadow, Lease: ackWait, Retention: retention(streamAge, w.settings.Event.MaxAge),
		Forward: w.settings.Limits.Shadow, PairTTL: w.settings.PairTTL,
	})
	limiter, pacer := w.newLimiter(runner, store, instances.Alive, limits.Refresh, metrics)
	w.limiter.Store(limiter)
	life.background("watching redis", limiter.Run)
	life.background("watching the limits", limits.Run)
	awaitLimits(ctx, limits)
	life.background("looking at redis' settings", func(ctx context.Context) { w.warnOfEviction(ctx, limiter, client) })
	deliveries := &sink.Annotated{
		Sink: destination, Limits: limiter, Pacer: pacer, Mentions: w.settings.Slack.Mentions, MentionFor: w.settings.SummaryInterval,
	}
	summaries := w.newSummaries(summary.NewRedis(runner, store.Settings().Retention), limiter, pacer, deliveries, consumer.Busy, changesOf(limits), metrics)
	w.summaries.Store(summaries)
	life.background("telling of drops", summaries.Run)
	if w.started != nil {
		w.started(limiter, adminAddr)
	}
	return ended(ctx, consumer.Run(ctx, limiter, pacer, deliveries))
}

// ended drops the error that an orderly end leaves behind.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

// levels are the rules that can deny.
func levels(tree *limits.Tree, policy string) []string {
	var names []string
	for _, node := range tree.Levels() {
		names = append(names, node.Level)
	}
	if policy == config.FailureClosed {
		names = append(names, throttle.LevelClosed)
	}
	return append(names, throttle.LevelUnpaired, throttle.LevelRoom)
}

// unboundedRetention is how long deliveries are remembered where neither the stream nor the settings bound how late a
// message can be delivered again.
const unboundedRetention = 7 * 24 * time.Hour

// retention is how long deliveries are remembered: longer than a message can be delivered again and still be sent.
func retention(streamAge, maxAge time.Duration) time.Duration {
	longest := max(streamAge, maxAge)
	if longest == 0 {
		longest = unboundedRetention
	}
	return longest + time.Hour
}

func (w *worker) observed(metrics *telemetry.Metrics) consume.Metrics {
	if w.observe == nil {
		return metrics
	}
	return w.observe(metrics)
}

func (w *worker) consumeOptions(connection *consume.Connection, metrics consume.Metrics) consume.Options {
	options := consume.Options{
		Connection:  connection,
		Names:       names(w.settings),
		Provision:   w.settings.NATS.Provision,
		AckWait:     w.settings.NATS.AckWait,
		Decoder:     event.Decoder{Prefix: w.settings.NATS.Subject, MaxBytes: w.settings.Event.MaxBytes},
		MaxAge:      w.settings.Event.MaxAge,
		Concurrency: w.settings.Concurrency,
		SendTimeout: sendTimeout(w.settings),
		Pace:        paceOf(w.settings).Interval,
		Shutdown:    w.settings.ShutdownTimeout,
		Logger:      w.logger,
		Metrics:     metrics,
	}
	if w.settings.Delay.MostPatient() > 0 {
		options.Delay = w.settings.Delay.For
	}
	if w.settings.SummaryInterval > 0 {
		options.Drops = func(drops []summary.Drop) { w.summaries.Load().Counter().Add(drops) }
	}
	return options
}

// newLimiter makes what decides, and what paces: each tells the other what it knows of Redis.
func (w *worker) newLimiter(
	runner *script.Runner, store *throttle.Redis, instances func() int, refresh func(context.Context) error, metrics *telemetry.Metrics,
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
		Metrics:      metrics,
	})
	return limiter, pacer
}

func newRunner(client redis.UniversalClient, settings config.Redis) *script.Runner {
	return script.NewRunner(script.Options{
		Client: client, Prefix: settings.Prefix, Timeout: settings.Timeout, Scripting: script.Scripting(settings.Scripting),
	})
}

func newStore(client redis.UniversalClient, settings config.Redis, s throttle.Settings) *throttle.Redis {
	return throttle.NewRedis(newRunner(client, settings), s)
}

// selfTests are those of the scripts that a worker needs besides the store's.
func selfTests() []throttle.SelfTest { return []throttle.SelfTest{pacing.SelfTest, summary.SelfTest} }

// serveAdmin starts the server for metrics and probes, if one is wanted, and returns its address.
func (w *worker) serveAdmin(ctx context.Context, life *lifecycle, metrics *telemetry.Metrics) (string, error) {
	if w.settings.HTTP.Addr == "" {
		return "", nil
	}
	admin := telemetry.NewAdmin(telemetry.AdminOptions{
		Addr:         w.settings.HTTP.Addr,
		FallbackPort: w.fallbackPort,
		Gatherer:     metrics.Registry(),
		Live:         func() error { return nil },
		Ready:        func() error { return w.ready(ctx) },
		Logger:       w.logger,
	})
	if err := admin.Listen(ctx); err != nil {
		return "", err
	}
	served := make(chan error, 1)
	go func() { served <- admin.Serve() }()
	life.add("the admin server", func(stopping context.Context) error {
		return errors.Join(admin.Shutdown(stopping), <-served)
	})
	return admin.Addr(), nil
}

// ready tells what keeps the worker from its work.
func (w *worker) ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("the worker is stopping")
	}
	consumer, limiter := w.consumer.Load(), w.limiter.Load()
	if consumer == nil || limiter == nil {
		var err error
		if consumer != nil {
			err = consumer.Ready()
		}
		return errors.Join(errors.New("the worker is starting"), err)
	}
	return errors.Join(consumer.Ready(), limiter.Ready())
}

// warnOfEviction says, once Redis is there, if it may throw away logs: every log that is lost lets a whole limit through
// once more.
func (w *worker) warnOfEviction(ctx context.Context, limiter *throttle.Limiter, client redis.UniversalClient) {
	if limiter.Await(ctx) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, w.settings.Redis.Timeout)
	defer cancel()
	if policy, known := evictionPolicy(ctx, client); known && policy != noEviction {
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
		Replicas: settings.NATS.Replicas,
	}
}

// connectNATS starts to connect.
func connectNATS(settings config.NATS, logger *slog.Logger) (*consume.Connection, error) {
	options := consume.ConnectOptions{
		URL: settings.URL.Reveal(), CredsFile: settings.CredsFile, User: settings.User,
		Password: settings.Password.Reveal(), Token: settings.Token.Reveal(), Inbox: settings.Inbox, Logger: logger,
	}
	if settings.TLS.IsSet() {
		tls, err := settings.TLS.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("reading the TLS files for nats: %w", err)
		}
		options.TLS = tls
	}
	return consume.Connect(options)
}
