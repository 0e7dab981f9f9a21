package throttle

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/expiring"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// The sources of decisions: who decided.
const (
	SourceRedis = "redis"
	SourceCache = "cache"
	SourceLocal = "local" // this instance alone, by the failure policy
)

// LevelNone is the level of events that no shadow limit denied.
const LevelNone = "none"

// maxLocalKeys bounds the keys that this instance counts for the time without Redis: some tens of megabytes.
const maxLocalKeys = 100_000

// Metrics receives the limiter's measurements. Its methods must be safe for concurrent use.
type Metrics interface {
	Decision(verdict, source string, n int)
	DecisionDuration(d time.Duration)
	PolicyActs()
	PolicyInactive()
	Refunded(n int)
	ShadowDecision(level, verdict string, n int)
}

// LimiterOptions configure a [Limiter].
type LimiterOptions struct {
	store.Settings
	Redis        *store.Redis
	Policy       Policy
	Grace        time.Duration // how long Redis may be unavailable before a policy other than hold acts
	DenyCacheTTL time.Duration // 0 turns the cache off
	RoomMax      int           // how many events of one first-level category may wait at once
	Instances    func() int    // number of live instances, which share the limits; nil means 1

	// Refresh adopts newer limits than this instance's, and fails if it cannot. nil: limits never change.
	Refresh func(ctx context.Context) error

	// Pauses receives the paused destinations and the remaining times, as of `asked`. nil: the pauses are dropped.
	Pauses func(asked time.Time, pauses map[string]time.Duration)

	SelfTests []store.SelfTest // of other packages with scripts that a worker needs

	Logger       *slog.Logger
	Metrics      Metrics
	UsageMetrics UsageMetrics
}

// NewLimiter makes a limiter that answers once [Limiter.Run] has reached Redis.
func NewLimiter(o LimiterOptions) *Limiter {
	if o.Instances == nil {
		o.Instances = func() int { return 1 }
	}
	rules := o.Redis.Rules()
	local := o.Settings
	local.Forward = o.Forward || o.Policy == Open
	memory := store.NewMemory(local, time.Now, o.Instances)
	memory.KeepKeys(maxLocalKeys)
	memory.AdoptRules(rules)

	l := &Limiter{o: &o, full: newFullLimits(o.Logger), unpaired: newUnpaired(o.DenyCacheTTL, time.Now)}
	logOnce := &logOnce{logger: o.Logger, tooLarge: make(map[string]bool)}
	l.denials = &denials{
		redis: o.Redis, cache: newDenyCache(o.DenyCacheTTL, time.Now), shadow: newDenyCache(o.DenyCacheTTL, time.Now),
		full: l.full, metrics: o.Metrics,
	}
	l.outage = newOutage(&o, l.denials, l.unpaired)
	l.staleness = newStaleness(&o, l.outage)
	l.Mutes = &Mutes{&o, l.staleness, new(pastMutes)}
	l.usage = newUsage(&o, l.outage, l.full)
	mirror := &mirror{memory: memory, denials: l.denials, metrics: o.Metrics}
	dropped := &dropped{o: &o, mirror: mirror}
	replay := &replay{o: &o, mirror: mirror, dropped: dropped, logOnce: logOnce}
	l.recovery = &recovery{o: &o, outage: l.outage, staleness: l.staleness, replay: replay, usage: l.usage, dropped: dropped}
	l.grants = newGrants(&o, l.outage, mirror, replay)
	l.answers = &answers{o: &o, denials: l.denials, usage: l.usage, grants: l.grants, logOnce: logOnce}
	l.asker = &asker{
		o: &o, outage: l.outage, recovery: l.recovery, staleness: l.staleness, answers: l.answers, logOnce: logOnce,
		refused: expiring.New[string, error](maxNoted, time.Now),
	}
	return l
}

// Adopt puts other limits in force for all later decisions.
func (l *Limiter) Adopt(adopted limits.Ruleset) {
	rules := store.Compile(adopted)
	l.Mutes.past.adopt(adopted, time.Now()) // first: no mute may be unknown meanwhile
	l.usage.adopt(rules)                    // first: a denial by a new rule counts as its own
	l.o.Redis.AdoptRules(rules)
	l.grants.mirror.memory.AdoptRules(rules)
	l.full.adopt(adopted.Tree)
	select {
	case l.usage.adopted <- struct{}{}:
	default: // the use is about to be read
	}
}

// Run connects to Redis, handles outages and updates the usage metrics, until the context ends.
func (l *Limiter) Run(ctx context.Context) {
	l.recovery.reach(ctx)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keeping.Go(func() { l.staleness.keepUp(ctx) })
	keeping.Go(func() { l.full.keepLogging(ctx) })
	_ = l.usage.refresh(ctx) // the next tick tries again
	l.recovery.run(ctx, time.Tick(usageEvery))
}

// unboundedRetention is how long deliveries are remembered if the stream keeps messages for ever.
const unboundedRetention = 7 * 24 * time.Hour

// Retention returns how long deliveries are remembered: longer than a message can be redelivered and still be sent. streamAge is the maximum
// age of a message in the stream, and maxAge of an event that is sent; 0 means no bound.
func Retention(streamAge, maxAge time.Duration) time.Duration {
	return max(cmp.Or(streamAge, unboundedRetention), maxAge) + time.Hour
}
