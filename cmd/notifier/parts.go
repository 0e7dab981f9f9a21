package main

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/livelimits"
	"github.com/seed-4578ace9/notifier/internal/selfreport"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/trusted"
	"github.com/seed-4578ace9/notifier/lua"
)

// parts are what decides, paces, delivers and sums up.
type parts struct {
	selfreport.Parts
	folds      *store.Pairs
	deliveries *sink.Annotated
	summaries  *summary.Reporter
}

// start makes the parts and starts what they do in the background.
func (w *worker) start(ctx context.Context, s *servers, keepLayout func(ctx context.Context), settings store.Settings) *parts {
	w.life.background("counting instances", s.instances.Watch)

	p := new(parts)
	p.Parts, p.folds = w.newDecider(s, settings, s.instances.Alive)
	w.life.background("watching redis and the limits", keepLayout, p.Limiter.Run, p.Live.Run,
		func(ctx context.Context) { p.Pacer.Run(ctx, w.report.Channels) }, func(ctx context.Context) { w.warnOfEviction(ctx, s, p.Limiter) })
	p.Live.AwaitFirst(ctx, limits.Ruleset{Tree: settings.Tree, Shadow: settings.Shadow})
	p.deliveries = &sink.Annotated{
		Sink: s.outlet.Sink, Limits: p.Limiter.Usage(), Pacer: p.Pacer, Mention: s.outlet.Mention,
		Mentions: w.settings.Slack.Mentions, MentionFor: w.settings.SummaryInterval, Sent: w.report.Counts.Took,
	}
	p.summaries = summary.NewReporter(summary.Options{
		Store:     summary.NewRedis(s.runner, w.settings.SummaryInterval, settings.Retention),
		Instance:  s.instance,
		Interval:  w.settings.SummaryInterval,
		Logger:    w.logger,
		ChannelOf: func(category string) string { return s.outlet.Sink.Destination(sink.For(category)) },
		Busy:      w.busy,
		Wait:      p.Pacer.AwaitDigest,
		Pause:     p.Pacer.Pause,
		Send:      s.outlet.Digests.SendSummary,
		Find: func(ctx context.Context, channel, claim string, claimed time.Time) (posted, known bool, err error) {
			found, err := s.outlet.Digests.FindSummary(ctx, channel, claim, claimed)
			return found.Presence == sink.Present, found.Presence != sink.Unsearchable, err
		},
		LimitOf: p.Limiter.Usage().LimitOf,
		Opens:   p.Limiter.Usage().Opens,
		Changes: p.Live.Changes,
		Ended:   p.Limiter.Mutes.Ended,
		Now:     func() time.Time { return w.streams.Load().Now() },
		Observe: func(result string, d summary.Digest) { w.observeDigest(s, result, d) },
	})
	w.parts.Store(p)
	w.life.background("telling of drops", p.summaries.Run)
	return p
}

// newDecider makes the limiter and the live limits. They depend on one another.
func (w *worker) newDecider(s *servers, settings store.Settings, instances func() int) (made selfreport.Parts, folds *store.Pairs) {
	made.Pacer = s.pacer
	shared := store.NewRedis(s.runner, settings)
	made.Live = livelimits.New(livelimits.Options{
		Settings: w.settings, JetStream: setup.JetStream(s.connection), InForce: shared.Positions.InForce, Logger: w.logger,
		Adopt: func(rules limits.Ruleset) {
			made.Limiter.Adopt(rules)
			if consumer := w.consumer.Load(); consumer != nil {
				consumer.DropMuted()
			}
		},
		Forged: func(n int) { s.metrics.Losses.Forged(trusted.Limits, n) },
	})
	made.Limiter = throttle.NewLimiter(throttle.LimiterOptions{
		Settings:     settings,
		Redis:        shared,
		Policy:       throttle.Policy(w.settings.Redis.Failure),
		Grace:        w.settings.Redis.Grace,
		DenyCacheTTL: w.settings.Limits.DenyCacheTTL,
		RoomMax:      w.settings.Room.Max,
		Instances:    instances,
		Refresh:      made.Live.Refresh,
		Pauses:       made.Pacer.Learn,
		SelfTests:    setup.SelfTests(),
		Logger:       w.logger,
		Metrics:      s.metrics.Decisions,
		UsageMetrics: s.metrics.Decisions,
	})
	return made, shared.Pairs
}

// fleetOptions are what this worker announces, and how it reports about itself.
func (w *worker) fleetOptions(s *servers) fleet.Options {
	comparison := &selfreport.Comparison{
		Conn: s.connection.Conn, Deployment: w.settings.Redis.Prefix, Gauge: s.metrics.SettingsMismatch, Logger: w.logger,
	}
	return fleet.Options{
		Deployment: w.settings.Redis.Prefix,
		Version:    w.report.Version,
		Settings:   w.settings.Shared.Hash(),
		Layout:     lua.Layout,
		Report:     func(instance string, most int64) ([]byte, error) { return w.report.Report(instance).Encode(most) },
		Compared:   comparison.Compare,
		Logger:     w.logger,
	}
}

// workerMetrics are the metrics in which a consumer counts.
type workerMetrics struct {
	*telemetry.Events
	*telemetry.Waiting
	*telemetry.Losses
}

// consumeOptions are how the worker takes events.
func (w *worker) consumeOptions(s *servers, p *parts) consume.Options {
	metrics := workerMetrics{s.metrics.Events, s.metrics.Waiting, s.metrics.Losses}
	outcomes := selfreport.Outcomes{EventMetrics: metrics, DeliveryMetrics: metrics, RoomMetrics: metrics, Counts: w.report.Counts}
	options := consume.Options{
		Streams: w.streams.Load(),
		Limits: consume.Limits{
			Known: p.Limiter, Mutes: p.Limiter.Mutes, Throttle: p.Limiter, Room: p.Limiter.Room(), Positions: p.Limiter, Folds: p.folds,
		},
		Pacer:       p.Pacer,
		Updates:     p.Pacer,
		Sink:        p.deliveries,
		Finder:      s.outlet.Finder,
		Deployment:  setup.PostNames(w.settings),
		Decoder:     setup.Decoder(w.settings),
		MaxAge:      w.settings.Event.MaxAge,
		Concurrency: w.settings.Concurrency,
		SendTimeout: w.settings.SendTimeout(),
		Flap:        setup.Flap(w.settings).Window,
		ShowsFolds:  w.settings.Slack.Token.IsSet(),
		Pace:        setup.Budgets(w.settings).Channel.Interval,
		Journal:     s.journal,
		Shutdown:    w.settings.ShutdownTimeout,
		Tracer:      s.tracer,
		Logger:      w.logger,
		Metrics:     consume.Metrics{Events: outcomes, Deliveries: outcomes, Room: outcomes, Streams: metrics, Letters: metrics},
	}
	if len(w.settings.Fold.Entries()) > 0 {
		options.Fold = w.settings.FoldOf
	}
	if w.settings.Delay.MostPatient() > 0 {
		options.Delay, options.Replans = w.settings.Delay.For, true
	}
	options.Drops = func(drops []summary.Drop) (round int64) {
		w.report.Suppressed.Add(drops)
		return p.summaries.Counter().Add(drops)
	}
	return options
}

// observeDigest counts a finished digest, and records a posted one in the journal.
func (w *worker) observeDigest(s *servers, result string, d summary.Digest) {
	s.metrics.Posts.Summary(result)
	if result != summary.Sent {
		return
	}
	w.report.Counts.Digest(d.Channel)
	var rounds journal.Rounds
	for _, of := range d.Rounds {
		rounds = rounds.With(of.Instance, of.First, of.Last)
	}
	s.journal.Record("", journal.Digest, "", 1, func(int, journal.Detail) journal.Entry {
		entry := journal.Entry{
			Channel: d.Channel, Count: int(d.Dropped), Stored: d.First, LastStored: d.Last, Decided: w.streams.Load().Now(), Rounds: rounds,
		}
		if d.Mute != nil {
			entry.Mute = d.Mute.ID()
		}
		return entry
	})
}

// warnOfEviction waits for Redis, and warns if Redis may evict logs. An evicted log admits a whole limit once more.
func (w *worker) warnOfEviction(ctx context.Context, s *servers, limiter *throttle.Limiter) {
	if limiter.Await(ctx) != nil {
		return
	}
	info, _ := setup.RedisInfo(ctx, s.redis, w.settings.Redis) // the user may not be allowed to ask
	if policy := setup.EvictionPolicy(info); policy != "" && policy != setup.NoEviction {
		w.logger.Warn("Redis may evict limit state", "maxmemory_policy", policy, "expected", setup.NoEviction)
	}
}
