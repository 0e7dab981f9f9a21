package throttle

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Limiter decides for a worker: it looks in the deny cache, then calls Redis, and applies the failure policy while Redis is unavailable. The
// methods for a batch are in call order, from Decide to take.
type Limiter struct {
	o         LimiterOptions
	outage    *outage
	staleness staleness
	cache     *denyCache
	shadow    *denyCache    // deny cache of the shadow limits
	local     *store.Memory // decides while the policy acts; before that, it mirrors this instance's admissions
	usage     *usage
	full      *fullLimits
	records   store.Records
	logOnce   logOnce
	refused   negativeCache
	unpaired  *unpaired
	finish    batcher[store.Lease, bool]
	extend    batcher[store.Lease, store.Lease]
	release   batcher[store.Lease, store.Lease]
	refund    batcher[store.Lease, bool]
	updates   batcher[store.Updated, struct{}]
}

// Decide answers a batch. Plans decide about planned events, pairs about resolved events, and limits about the rest. An error is
// script.ErrUnavailable, script.ErrStale or the context's error. After an error, treat nothing as decided: give the events back and call
// [Limiter.Await]. If only the pairs cannot be read, the resolved events are Deferred, and the rest keep their decisions.
func (l *Limiter) Decide(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	again := partOf(requests, func(i int) bool { return requests[i].MayBePlanned() })
	if len(again.requests) == 0 { // as a rule
		return l.decideAnew(ctx, requests)
	}
	found, err := l.findPlans(ctx, again.requests)
	if err != nil {
		return nil, err
	}
	answers := make([]store.Decision, len(requests))
	again.put(found, answers)
	return answerOthers(ctx, requests, answers, l.decideAnew)
}

// decideAnew decides about events without a plan.
func (l *Limiter) decideAnew(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	resolving := partOf(requests, func(i int) bool { return requests[i].AsksForPair() })
	if len(resolving.requests) == 0 { // as a rule: nothing is copied
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
	decided, err := l.decideByPairs(ctx, resolving.requests)
	if err != nil && len(limited.requests) == 0 {
		return nil, err
	}
	if err != nil {
		decided = l.deferred(len(resolving.requests), err)
	}
	resolving.put(decided, decisions)
	return decisions, nil
}

// decideByLimits lets Redis or the failure policy decide.
func (l *Limiter) decideByLimits(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	l.unpaired.see(requests)
	switch state, cause := l.outage.current(); state {
	case answering:
		return l.aside(ctx, requests, logsOf, l.askInTurn)
	case acting:
		return l.act(requests), nil
	default:
		return nil, unavailableBecause(cause)
	}
}

// decideByPairs decides about resolved events that have a pair. If the pair is open, the event gets it and is Admitted or Reclaimed.
// Otherwise the event is Unpaired. While a failure policy acts, all events are Deferred, because only Redis knows which pairs are open. It
// returns the errors of Decide.
func (l *Limiter) decideByPairs(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	switch state, cause := l.outage.current(); state {
	case answering:
		return l.aside(ctx, requests, pairsOf, func(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
			return l.ask(ctx, requests, pairsOf, l.askOnceForPairs)
		})
	case acting:
		return l.deferred(len(requests), unavailableBecause(cause)), nil
	default:
		return nil, unavailableBecause(cause)
	}
}

// act decides by the failure policy.
func (l *Limiter) act(requests []store.Request) []store.Decision {
	if l.o.Policy == Closed && !l.o.Forward {
		decisions := make([]store.Decision, len(requests))
		for i := range decisions {
			decisions[i] = store.Decision{Verdict: store.Denied, Node: limits.Node{Level: store.LevelClosed}}
		}
		l.o.Metrics.Decision(store.Denied.String(), SourceLocal, len(requests))
		return decisions
	}
	asked, decisions := time.Now(), l.local.DecideOnce("", requests).Decisions
	for i := range decisions {
		if d := &decisions[i]; l.o.Policy == Open && d.Verdict.IsDenial() {
			*d = store.Decision{Verdict: store.Admitted, Lease: d.Lease}
		}
	}
	l.take(SourceLocal, asked, decisions, requests)
	var admitted []*granted
	for i := range decisions {
		if grant, isGrant := decisions[i].Grant.(*grant); isGrant && decisions[i].Verdict == store.Admitted {
			admitted = append(admitted, &grant.granted)
		}
	}
	l.outage.rememberAll(admitted)
	return decisions
}

// askInTurn denies events that must wait for older events, and asks about the rest. Events that need not wait any more leave their queues.
// If the queues cannot be read, no event is held back.
func (l *Limiter) askInTurn(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	if l.o.Forward || !slices.ContainsFunc(requests, store.Request.StandsInQueue) {
		return l.askByLimits(ctx, requests)
	}
	standing := partOf(requests, func(i int) bool { return requests[i].StandsInQueue() })
	turns, err := l.o.Redis.Turns(ctx, standing.requests)
	if err != nil {
		return l.askByLimits(ctx, requests)
	}
	answers := make([]store.Decision, len(requests))
	if denied := standing.denyEarly(turns, answers); denied > 0 {
		l.o.Metrics.Decision(store.Denied.String(), SourceRedis, denied)
	}
	if answers, err = answerOthers(ctx, requests, answers, l.askByLimits); err != nil {
		return nil, err
	}
	leaving := partOf(requests, func(i int) bool {
		return requests[i].HasWaited && answers[i].Verdict != store.Deferred && answers[i].Verdict != store.Denied
	})
	_ = l.o.Redis.Leave(ctx, leaving.requests) // if this fails, other events wait for these for a while
	return answers, nil
}

// ask asks Redis about a batch. If newer limits are in force, it adopts them and asks again. If Redis refuses the batch, ask retries it in
// groups: events of equal name share the keys that Redis may have refused.
func (l *Limiter) ask(ctx context.Context, requests []store.Request, name func(store.Request) string, once asking) ([]store.Decision, error) {
	asked, nonce := time.Now(), store.NewNonce()
	answers, err := once(ctx, nonce, requests)
	l.o.Metrics.DecisionDuration(time.Since(asked))
	if errors.Is(err, script.ErrStale) && ctx.Err() == nil && !l.staleness.lags() { // while it lags, keepUp looks for newer limits
		err = l.staleness.catchUp(ctx, err, func() (err error) {
			nonce = store.NewNonce()
			answers, err = once(ctx, nonce, requests)
			return err
		})
	}
	switch {
	case err == nil:
		return answers, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, script.ErrRefused):
		return l.askEach(ctx, requests, name, once, err)
	case errors.Is(err, script.ErrStale):
		return nil, err
	}
	return nil, l.outage.noReply(nonce, requests, err)
}

// askOnce makes one call. It announces events that open pairs before anyone delivers them, so that the resolved events wait for the outcome.
func (l *Limiter) askOnce(ctx context.Context, nonce string, requests []store.Request) ([]store.Decision, error) {
	asked := time.Now()
	result, err := l.o.Redis.DecideOnce(ctx, nonce, requests)
	if err != nil {
		return nil, err
	}
	err = l.o.Redis.Announce(ctx, result.Decisions)
	if errors.Is(err, script.ErrRefused) { // the events are delivered, although their pairs cannot be stored
		l.logOnce.report(l.o.Logger, requests[0].Category, err)
	} else if err != nil {
		return nil, err
	}
	if l.o.Pauses != nil {
		l.o.Pauses(asked, result.Pauses)
	}
	l.take(SourceRedis, asked, result.Decisions, requests)
	return result.Decisions, nil
}

// askOnceForPairs makes one call about resolved events.
func (l *Limiter) askOnceForPairs(ctx context.Context, nonce string, requests []store.Request) ([]store.Decision, error) {
	resolutions, err := l.o.Redis.ResolveOnce(ctx, nonce, requests)
	if err != nil {
		return nil, err
	}
	for i := range resolutions {
		if d := &resolutions[i]; d.Lease.Resolving {
			d.Grant = &grant{limiter: l, granted: granted{Admission: store.Admission{Lease: d.Lease}}}
		}
	}
	l.count(SourceRedis, resolutions)
	return resolutions, nil
}

// take adds grants to the decisions of a store, and updates the caches and the local store.
func (l *Limiter) take(source string, asked time.Time, decisions []store.Decision, requests []store.Request) {
	var admitted []store.Request
	rules := l.o.Redis.Rules()
	for i := range decisions {
		d, request := &decisions[i], requests[i] // a Decision is large
		switch d.Verdict {
		case store.Admitted:
			admitted = append(admitted, request)
		case store.Denied:
			l.full.denied(d, asked)
		case store.ExceedsCapacity:
			l.logOnce.exceedsCapacity(l.o.Logger, request, *d)
		}
		if source == SourceRedis && d.Verdict.IsDenial() { // a share of a limit is full sooner than the limit
			d.Used = rules.InForce.TakenBefore(d, request.Cost)
			l.cache.learn(asked, rules.InForce.Route(request.Category), *d, request.Cost)
		}
		l.learnFromShadow(asked, source, rules, request, d.Shadow)
		l.usage.touch(request.Category)
	}
	var at time.Time // of the admissions that the local store has recorded
	switch {
	case source == SourceLocal:
		at = asked
	case l.o.Policy == Local && len(admitted) > 0:
		at = l.local.Mirror(admitted)
	}
	for i := range decisions {
		if d := &decisions[i]; d.Lease.ID != "" {
			d.Grant = &grant{limiter: l, granted: granted{
				Admission: store.Admission{Lease: d.Lease, At: at}, local: source == SourceLocal,
				mirrored: source == SourceRedis && d.Verdict == store.Admitted && !at.IsZero(),
			}}
		}
	}
	l.count(source, decisions)
}

// count counts decisions by their verdicts.
func (l *Limiter) count(source string, decisions []store.Decision) {
	var counts [store.Deferred + 1]int
	for i := range decisions {
		counts[decisions[i].Verdict]++
	}
	for verdict, n := range counts {
		if n > 0 {
			l.o.Metrics.Decision(store.Verdict(verdict).String(), source, n)
		}
	}
}

// learnFromShadow counts the shadow decision about an event, and caches its denial.
func (l *Limiter) learnFromShadow(asked time.Time, source string, rules *store.Rules, request store.Request, d store.ShadowDecision) {
	if d.Verdict == 0 {
		return
	}
	l.o.Metrics.ShadowDecision(cmp.Or(d.Node.Level, LevelNone), d.Verdict.String(), 1)
	if d.Verdict.IsDenial() && source == SourceRedis && rules.InShadow != nil {
		denied := store.Decision{Verdict: d.Verdict, Node: d.Node, Limit: d.Limit, Wait: d.Wait}
		l.shadow.learn(asked, rules.InShadow.Route(request.Category), denied, request.Cost)
	}
}

// deferred returns decisions for n events that cannot be decided now.
func (l *Limiter) deferred(n int, err error) []store.Decision {
	decisions := make([]store.Decision, n)
	for i := range decisions {
		decisions[i] = store.Decision{Verdict: store.Deferred, Err: err}
	}
	l.o.Metrics.Decision(store.Deferred.String(), SourceLocal, n)
	return decisions
}

// Full returns the cached denial of an event of the category, without asking Redis. It returns nil if there is none. Shadow limits must deny
// the event too: otherwise they would miss the event.
func (l *Limiter) Full(category string) *store.Denial {
	if l.o.Forward || !l.staleness.current.Load() {
		return nil
	}
	if l.o.Policy == Open && !l.outage.isAnswering() {
		return nil
	}
	rules := l.o.Redis.Rules()
	denial := l.cache.find(rules.InForce.Route(category))
	if denial == nil {
		return nil
	}
	if rules.InShadow != nil {
		shadowed := l.shadow.find(rules.InShadow.Route(category))
		if shadowed == nil {
			return nil
		}
		l.o.Metrics.ShadowDecision(shadowed.Level, store.Denied.String(), 1)
	}
	l.o.Metrics.Decision(store.Denied.String(), SourceCache, 1)
	l.full.deniedAgain(denial.Path)
	return denial
}

// Position returns the position of this instance's limits.
func (l *Limiter) Position() limits.Position { return l.o.Redis.Rules().Position }

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
