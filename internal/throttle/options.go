package throttle

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// The sources of decisions: who decided.
const (
	SourceRedis = "redis"
	SourceCache = "cache"
	SourceLocal = "local" // this instance alone, by the failure policy
)

// LevelNone stands for the level of what no limit of the shadow denied.
const LevelNone = "none"

// Levels of drops that no limit makes.
const (
	LevelClosed   = "closed"   // the closed failure policy denied the event
	LevelUnpaired = "unpaired" // a resolved event: nobody was told of what it resolves
	LevelRoom     = "room"     // the event would have to wait, and too many of its first-level category wait already
)

// Metrics is told what the limiter does. Its methods may be called by many goroutines at once.
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

// LimiterOptions say how a worker's questions are answered.
type LimiterOptions struct {
	Settings
	Redis        *Redis
	Policy       Policy
	Grace        time.Duration // how long Redis may be unavailable before a policy other than hold acts
	DenyCacheTTL time.Duration // 0 turns the cache off
	RoomMax      int           // events of one first-level category that wait at once
	Instances    func() int    // how many instances are alive, for their shares; nil is one

	// Refresh adopts limits that are newer than those in force here, or fails. nil: limits never change.
	Refresh func(ctx context.Context) error

	// Pauses is told which destinations were paused, and for how long, when Redis was asked. nil: nobody is told.
	Pauses func(asked time.Time, pauses map[string]time.Duration)

	SelfTests []SelfTest // of other packages whose scripts a worker needs

	Logger  *slog.Logger
	Metrics Metrics
}

// NewLimiter makes a limiter that answers once [Limiter.Run] has reached Redis.
func NewLimiter(o LimiterOptions) *Limiter {
	rules := o.Redis.rules()
	local := o.Settings
	local.Forward = o.Forward || o.Policy == Open
	l := &Limiter{
		o:        o,
		cache:    newDenyCache(o.DenyCacheTTL, time.Now),
		shadow:   newDenyCache(o.DenyCacheTTL, time.Now),
		local:    newMemory(local, rules, time.Now, o.Instances),
		unpaired: newUnpaired(o.DenyCacheTTL, time.Now),
	}
	l.o.Instances = l.local.share // one if nobody counts them
	l.outage = newOutage(&l.o, &l.logOnce, l.forget, l.returned)
	l.staleness = staleness{LimiterOptions: &l.o, outage: l.outage}
	l.usage = newUsage(rules, o.Metrics)
	l.full = newFullLimits(o.Logger)
	l.finish.call, l.refund.call, l.updates.call = o.Redis.Finish, o.Redis.Refund, o.Redis.updated
	extend := func(d time.Duration) func(context.Context, []Lease) ([]Lease, error) {
		return func(ctx context.Context, leases []Lease) ([]Lease, error) { return o.Redis.Extend(ctx, leases, d) }
	}
	l.extend.call, l.release.call = extend(o.Lease), extend(0)
	return l
}

// Adopt puts other limits in force, at once and for every decision that follows.
func (l *Limiter) Adopt(adopted limits.Ruleset) {
	rules := compile(adopted)
	l.usage.adopt(rules) // first: a denial by a new rule counts as its own
	l.o.Redis.adopt(rules)
	l.local.adopt(rules)
	l.full.adopt(adopted.Tree)
}

// Run reaches Redis, watches over an outage and keeps the usage metrics, until the context ends.
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
