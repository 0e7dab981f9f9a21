package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

const (
	ackWait  = 6 * time.Second
	workers  = 3
	window   = 10 * time.Second
	interval = 15 * time.Second // of digests
	prefix   = "simulated"
)

var names = stream.Names{
	Stream: "EVENTS", Subject: "notify", Consumer: "notifier", MaxBytes: 64 << 20, MaxAge: time.Hour,
	RoomStream: "ROOM", LongestWait: time.Hour,
	DeadLetterStream: "DEAD", DeadLetterSubject: "notify-dlq",
	DeadLetters: stream.DeadLetterBounds{PerSubject: 100, Bytes: 64 << 20, Age: time.Hour},
}

// budget is the pace of a channel.
var budget = pacing.Pace{Interval: 500 * time.Millisecond, Burst: 2}

// world has the servers and the workers of one seed.
type world struct {
	t         *testing.T
	server    *server.Server
	redis     *redis.Client // without faults
	address   string
	source    script.Options
	clock     *testkit.Clock
	slack     *slack
	ledger    *ledger
	js        jetstream.JetStream
	random    *random
	refreshes *random // of reloading the limits
	logger    *slog.Logger
	workers   []*worker
	policy    throttle.Policy
	kills     int
	began     time.Time
	outages   [][2]time.Time // in which Redis answers late, twice or never, and soon after

	stallsLong     bool // a connection stalls for at least the ack wait
	killsInOutages int

	mu    sync.Mutex
	rules limits.Ruleset
}

// worker is one worker with its own connections.
type worker struct {
	world   *world
	name    string
	wire    *wire
	script  *scripted
	limiter *throttle.Limiter
	isGone  atomic.Bool
	cancel  context.CancelFunc
	parts   sync.WaitGroup
	redis   *redis.Client
	conn    *stream.Connection
}

func newRedis(address string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: address, DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		MaxRetries: -1, PoolSize: 100,
	})
}

func newWorld(t *testing.T, seed uint64, address, folder string) *world {
	logger := slog.New(slog.DiscardHandler)
	if *verbose {
		logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	w := &world{
		t: t, address: address, redis: newRedis(address), random: newRandom(seed, 1), refreshes: newRandom(seed, 3), logger: logger,
		rules: ruleset(t, 1), began: time.Now(),
		// The first seeds, which `make test` simulates, get the policies that keep the limits.
		policy: []throttle.Policy{throttle.Open, throttle.Hold, throttle.Closed, throttle.Local}[seed%4],
	}
	testkit.NoError(t, w.redis.FlushAll(t.Context()).Err())
	w.source, w.clock = scripttest.WithClock(t, script.Options{Client: w.redis, Prefix: prefix})
	w.slack, w.ledger = newSlack(newRandom(seed, 2)), newLedger()
	var err error
	w.server, err = server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: folder, NoSigs: true, NoLog: true})
	testkit.NoError(t, err)
	w.server.Start()
	testkit.Require(t, w.server.ReadyForConnections(10*time.Second), "the NATS server is not ready")
	conn, err := nats.Connect("", nats.InProcessServer(w.server))
	testkit.NoError(t, err)
	t.Cleanup(conn.Close)
	w.js = testkit.Must(jetstream.New(conn))(t)
	for i := range workers {
		w.workers = append(w.workers, w.start(fmt.Sprintf("worker-%d", i+1)))
	}
	return w
}

// now sets the clock of the scripts to the simulated time.
func (w *world) now() { w.clock.Set(time.Now()) }

func (w *world) inForce() limits.Ruleset {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rules
}

// start starts a worker.
func (w *world) start(name string) *worker {
	ctx, cancel := context.WithCancel(context.Background())
	k := &worker{world: w, name: name, cancel: cancel}
	k.wire = &wire{server: w.server, gone: k.isGone.Load}
	k.script = &scripted{gone: k.isGone.Load, clock: w.now, seen: w.look, random: w.random}
	k.redis = newRedis(w.address)
	k.redis.AddHook(k.script)
	k.conn = testkit.Must(stream.Connect(w.t.Context(), stream.ConnectOptions{URL: "nats://127.0.0.1:4222", Dialer: k.wire, Logger: w.logger}))(w.t)
	streams := testkit.Must(stream.NewClient(stream.Options{Connection: k.conn, Names: names, Provision: true, AckWait: ackWait, Logger: w.logger}))(w.t)
	k.parts.Go(func() {
		if streams.Find(ctx) == nil {
			k.run(ctx, streams)
		}
	})
	return k
}

// run runs the parts of a worker until the context ends.
func (k *worker) run(ctx context.Context, streams *stream.Client) {
	w, metrics := k.world, telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 10})
	options := w.source
	options.Client, options.Timeout = k.redis, time.Second
	runner := script.NewRunner(options)
	rules := w.inForce()
	settings := store.Settings{Tree: rules.Tree, Lease: ackWait, Retention: time.Hour, PairTTL: time.Hour}
	shared := store.NewRedis(runner, settings)
	var limiter *throttle.Limiter
	pacer := pacing.New(pacing.Options{
		Runner: runner, Instance: k.name + "-" + time.Now().String(), Logger: w.logger,
		Budgets:   pacing.Budgets{Channel: budget, Workspace: pacing.Window{Count: 25, Length: 5 * time.Second}},
		Available: func() bool { return limiter.Available() },
	})
	limiter = throttle.NewLimiter(throttle.LimiterOptions{
		Settings: settings, Redis: shared, Policy: w.policy, Grace: time.Second, DenyCacheTTL: time.Second, RoomMax: 1000,
		Refresh: func(context.Context) error {
			if w.refreshes.chance(30) {
				return errLost
			}
			limiter.Adopt(w.inForce())
			return nil
		},
		Pauses: pacer.Learn, SelfTests: setup.SelfTests(), Logger: w.logger, Metrics: metrics.Decisions, UsageMetrics: metrics.Decisions,
	})
	limiter.Adopt(rules)
	outlet := client{w.slack, k.isGone.Load}
	var worker atomic.Pointer[consume.Worker]
	digests := summary.NewReporter(summary.Options{
		Store: summary.NewRedis(runner, interval, time.Hour), Instance: k.name + "-" + time.Now().Format("150405.000"), Interval: interval, Logger: w.logger,
		ChannelOf: func(category string) string { return "#" + event.FirstLevel(category) },
		Busy:      func(channel string) bool { return worker.Load() != nil && worker.Load().Busy(channel) },
		Wait:      pacer.AwaitDigest,
		Pause:     pacer.Pause, Send: outlet.sendDigest,
		Find: func(ctx context.Context, _, claim string, _ time.Time) (posted, known bool, err error) {
			return outlet.findDigest(ctx, claim)
		},
		LimitOf: limiter.Usage().LimitOf, Opens: limiter.Usage().Opens,
		Changes: func(context.Context) summary.LimitChanges { return summary.LimitChanges{} },
		Observe: func(string, summary.Digest) {},
	})
	counted := counted{metrics.Events, metrics.Waiting, metrics.Losses, w.ledger, k.isGone.Load}
	made := consume.New(consume.Options{
		Streams: streams, Limits: consume.Limits{Known: limiter, Mutes: limiter.Mutes, Throttle: limiter, Room: limiter.Room(), Positions: limiter}, Pacer: pacer, Updates: pacer,
		Sink: outlet, Finder: outlet, Deployment: prefix, Decoder: event.Decoder{Prefix: "notify", MaxBytes: 1 << 20}, Concurrency: 4,
		SendTimeout: 2 * time.Second, Pace: 500 * time.Millisecond, Shutdown: 5 * time.Second, Logger: w.logger,
		Delay: func(category string) time.Duration {
			if event.FirstLevel(category) == "later" {
				return time.Minute
			}
			return 0
		},
		Drops:   func(drops []summary.Drop) int64 { return digests.Counter().Add(drops) },
		Journal: (*journal.Recorder)(nil),
		Metrics: consume.Metrics{Events: counted, Deliveries: counted, Room: counted, Streams: counted, Letters: counted},
	})
	worker.Store(made)
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	for _, run := range []func(context.Context){limiter.Run, func(ctx context.Context) { pacer.Run(ctx, nil) }, digests.Run} {
		parts.Go(func() { run(background) })
	}
	k.limiter = limiter
	_ = made.Run(ctx)
	end()
	parts.Wait()
}

// stop ends a worker in good order.
func (k *worker) stop() {
	k.cancel()
	k.parts.Wait()
	k.conn.Conn.Close()
	_ = k.redis.Close()
}

// kill cuts a worker off from everything, and starts another one. What the worker does in its memory meanwhile reaches nobody.
func (w *world) kill(i int) {
	k := w.workers[i]
	k.isGone.Store(true)
	w.kills++
	if w.isOutage(time.Now()) {
		w.killsInOutages++
	}
	k.wire.cut()
	w.workers[i] = w.start(k.name)
	k.stop()
}
