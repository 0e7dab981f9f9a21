package throttle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Limiter decides for a worker: it looks in the deny cache, then asks Redis, and applies the failure policy while Redis is unavailable.
type Limiter struct {
	o         *LimiterOptions
	outage    *outage
	recovery  *recovery
	staleness *staleness
	denials   *denials
	full      *fullLimits
	usage     *Usage
	unpaired  *unpaired
	grants    *grants
	answers   *answers
	asker     *asker

	Mutes *Mutes // which events operators have muted
}

// Decide answers a batch. Plans decide about planned events, pairs about resolved events, and limits about the rest. An error is
// script.ErrUnavailable, script.ErrStale or the context's error. After an error, treat nothing as decided: give the events back and call
// [Limiter.Await]. If only the pairs cannot be read, the resolved events are Deferred, and the rest keep their decisions.
func (l *Limiter) Decide(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	again := partOf(requests, func(i int) bool { return requests[i].MayBePlanned() })
	if len(again.requests) == 0 { // as a rule
		return l.decideAnew(ctx, requests)
	}
	found, err := l.askUnlessOut(ctx, again.requests, l.findPlans, l.answers.deferred) // decided without their plans, events could end twice
	if err != nil {
		return nil, err
	}
	answers := make([]store.Decision, len(requests))
	again.put(found, answers)
	return answerOthers(ctx, requests, answers, l.decideAnew)
}

// deciding decides about a batch. It returns the errors of Decide.
type deciding func(ctx context.Context, requests []store.Request) ([]store.Decision, error)

// askUnlessOut asks Redis while it answers. While a failure policy acts, it calls act with the reason.
func (l *Limiter) askUnlessOut(
	ctx context.Context, requests []store.Request, ask deciding, act func(requests []store.Request, why error) []store.Decision,
) ([]store.Decision, error) {
	switch state, cause := l.outage.current(); state {
	case answering:
		return ask(ctx, requests)
	case acting:
		return act(requests, unavailableBecause(cause)), nil
	default:
		return nil, unavailableBecause(cause)
	}
}

// findPlans answers Planned for events that were planned to come back, and leaves the remaining answers empty. If Redis refuses the look-up, all
// events are Deferred.
func (l *Limiter) findPlans(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	planned, err := l.o.Redis.Queues.Plans(ctx, requests)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, script.ErrRefused):
		return l.answers.deferred(requests, err), nil
	case err != nil:
		l.outage.lost(err)
		return nil, unavailableBecause(err)
	}
	return planned, nil
}

// decideAnew decides about events without a plan.
func (l *Limiter) decideAnew(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	if !slices.ContainsFunc(requests, store.Request.AsksForPair) { // as a rule: nothing is copied
		return l.decideByLimits(ctx, requests)
	}
	decisions := make([]store.Decision, len(requests))
	limited := partOf(requests, func(i int) bool { return !requests[i].AsksForPair() })
	if len(limited.requests) > 0 {
		decided, err := l.decideByLimits(ctx, limited.requests)
		if err != nil {
			return nil, err
		}
		limited.put(decided, decisions)
	}
	return answerOthers(ctx, requests, decisions, func(ctx context.Context, resolving []store.Request) ([]store.Decision, error) {
		decided, err := l.askUnlessOut(ctx, resolving, l.asker.byPairs, l.answers.deferred) // only Redis knows which pairs are open
		if err != nil && len(limited.requests) > 0 {
			return l.answers.deferred(resolving, err), nil
		}
		return decided, err
	})
}

// decideByLimits lets Redis or the failure policy decide.
func (l *Limiter) decideByLimits(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	l.unpaired.see(requests)
	return l.askUnlessOut(ctx, requests, l.asker.byLimits, l.act)
}

// act decides by the failure policy.
func (l *Limiter) act(requests []store.Request, _ error) []store.Decision {
	if l.o.Policy == Closed && !l.o.Forward {
		decisions := make([]store.Decision, len(requests))
		for i := range decisions {
			decisions[i] = store.Decision{Verdict: store.Denied, Node: limits.Node{Level: limits.LevelClosed}}
			if denial := l.Rules().Muted(requests[i]); denial != nil { // the report about the mute counts the event
				decisions[i].MutedBy(denial)
			}
		}
		l.o.Metrics.Decision(store.Denied.String(), SourceLocal, len(requests))
		l.recovery.dropped.note(requests, decisions)
		return decisions
	}
	asked, decisions := time.Now(), l.grants.mirror.memory.DecideOnce("", requests).Decisions
	for i := range decisions {
		if d := &decisions[i]; l.o.Policy == Open && d.Verdict.IsDenial() && d.Muted == nil {
			*d = store.Decision{Verdict: store.Admitted, Lease: d.Lease.Counted()}
		}
	}
	l.recovery.dropped.note(requests, decisions)
	l.answers.take(SourceLocal, asked, decisions, requests)
	return decisions
}

// Full returns the cached denial of an event of the category and the key, without asking Redis. It returns nil if there is none. Without a
// key, it knows the limits of paths alone.
func (l *Limiter) Full(category, key string) *store.Denial {
	if l.o.Forward || !l.staleness.current.Load() || l.o.Policy == Open && !l.outage.isAnswering() {
		return nil
	}
	return l.denials.find(category, key)
}

// Rules returns this instance's limits.
func (l *Limiter) Rules() *store.Rules { return l.o.Redis.Rules() }

// Await blocks until Decide may work. It returns nil or the context's error. It also waits while this instance lacks the limits in force.
func (l *Limiter) Await(ctx context.Context) error { return l.outage.await(ctx, l.staleness.lags) }

// Ready returns nil while Redis or the failure policy can decide about events. Limits that are outdated for a moment do not matter.
func (l *Limiter) Ready() error {
	if err := l.outage.ready(); err != nil {
		return err
	}
	return l.staleness.ready()
}

// Available reports whether this instance considers Redis available.
func (l *Limiter) Available() bool { return l.outage.isAnswering() }

// Usage answers how full the limits are.
func (l *Limiter) Usage() *Usage { return l.usage }

// Delay plans when a denied event comes back, if it does. While Redis is unavailable it plans nothing, and the event must be decided again.
func (l *Limiter) Delay(ctx context.Context, p store.Postponement) (store.DelayVerdict, time.Duration, error) {
	if err := l.outage.mustAnswer(); err != nil {
		return 0, 0, err
	}
	return l.o.Redis.Queues.Delay(ctx, p, l.o.RoomMax)
}

// Room returns the room, which bounds the events that wait.
func (l *Limiter) Room() *Room {
	return &Room{l.o.Redis.Queues, l.outage, l.o.RoomMax}
}

// Passed returns how many messages, at least, have left a stream undelivered since an instance last reported the consumer's position. A
// recreated consumer needs another name.
func (l *Limiter) Passed(ctx context.Context, consumer string, sequence, deliveries uint64) (vanished int64, err error) {
	if err := l.outage.mustAnswer(); err != nil {
		return 0, err
	}
	return l.o.Redis.Queues.Passed(ctx, consumer, sequence, deliveries)
}

// Room bounds the events that wait in the room. Its methods may be called concurrently. While Redis is unavailable they return an error of
// the class script.ErrUnavailable.
type Room struct {
	*store.Queues
	outage *outage
	most   int // events of one first level
}

// EnterRoom is [store.Queues.EnterRoom].
func (r *Room) EnterRoom(ctx context.Context, stays []store.Stay) (mayStay []bool, err error) {
	if err := r.outage.mustAnswer(); err != nil {
		return nil, err
	}
	return r.Queues.EnterRoom(ctx, stays, r.most)
}

// LeaveRoom ends stays, to make room for other events.
func (r *Room) LeaveRoom(ctx context.Context, stays []store.Stay) error {
	left := slices.Clone(stays)
	for i := range left {
		left[i].For = 0
	}
	_, err := r.EnterRoom(ctx, left)
	return err
}
