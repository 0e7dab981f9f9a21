package throttle

import (
	"context"
	"log/slog"
	"sync"
	"time"

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

// Metrics receives the limiter's measurements. Its methods must be safe for concurrent use.
type Metrics interface {
	Decision(verdict, source string, n int)
	DecisionDuration(d time.Duration)
	Degraded(on bool)
	Refunded(n int)
	ShadowDecision(level, verdict string, n int)
	Levels(inForce, shadow []string) // the rules that can deny have changed
	LimitUsed(level string, used int64)
	LimitSize(level string, size int64)
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

	Logger  *slog.Logger
	Metrics Metrics
}

// NewLimiter makes a limiter that answers once [Limiter.Run] has reached Redis.
func NewLimiter(o LimiterOptions) *Limiter {
	rules := o.Redis.Rules()
	local := o.Settings
	local.Forward = o.Forward || o.Policy == Open
	l := &Limiter{
		o:        o,
		cache:    newDenyCache(o.DenyCacheTTL, time.Now),
		shadow:   newDenyCache(o.DenyCacheTTL, time.Now),
		local:    store.NewMemory(local, time.Now, o.Instances),
		unpaired: newUnpaired(o.DenyCacheTTL, time.Now),
	}
	l.local.AdoptRules(rules)
	if l.o.Instances == nil {
		l.o.Instances = func() int { return 1 }
	}
	l.outage = newOutage(&l.o, &l.logOnce, l.forget, l.returned)
	l.staleness = staleness{LimiterOptions: &l.o, outage: l.outage}
	l.usage = newUsage(rules, o.Metrics)
	l.full = newFullLimits(o.Logger)
	l.finish.call, l.refund.call, l.updates.call = o.Redis.Finish, o.Redis.Refund, o.Redis.RecordUpdates
	extend := func(d time.Duration) func(context.Context, []store.Lease) ([]store.Lease, error) {
		return func(ctx context.Context, leases []store.Lease) ([]store.Lease, error) {
			return o.Redis.Extend(ctx, leases, d)
		}
	}
	l.extend.call, l.release.call = extend(o.Lease), extend(0)
	return l
}

// Adopt puts other limits in force for all later decisions.
func (l *Limiter) Adopt(adopted limits.Ruleset) {
	rules := store.Compile(adopted)
	l.usage.adopt(rules) // first: a denial by a new rule counts as its own
	l.o.Redis.AdoptRules(rules)
	l.local.AdoptRules(rules)
	l.full.adopt(adopted.Tree)
}

// Run connects to Redis, handles outages and updates the usage metrics, until the context ends.
func (l *Limiter) Run(ctx context.Context) {
	l.outage.reach(ctx, l.staleness.compare)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keeping.Go(func() { l.staleness.keepUp(ctx) })
	keeping.Go(func() { repeat(ctx, fullLimitsEvery, l.full.tell) })
	refresh := func(ctx context.Context) error { return l.usage.refresh(ctx, l.o.Redis) }
	_ = refresh(ctx) // the next tick tries again
	l.outage.run(ctx, usageEvery, refresh)
}

// repeat calls do at each tick until the context ends.
func repeat(ctx context.Context, every time.Duration, do func(now time.Time)) {
	ticks := time.Tick(every)
	for {
		select {
		case now := <-ticks:
			do(now)
		case <-ctx.Done():
			return
		}
	}
}

// forget drops what was learned from Redis, which may lose its data.
func (l *Limiter) forget() {
	l.forgetFull()
	l.unpaired.forget()
}

func (l *Limiter) forgetFull() {
	l.cache.forget()
	l.shadow.forget()
}
