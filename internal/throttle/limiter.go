package throttle

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
)

// Limiter is what a worker asks: the deny cache, then Redis, and the failure policy while Redis is unavailable. Its methods for a
// batch stand in the order in which they run, from Decide to take.
type Limiter struct {
	o         LimiterOptions
	outage    *outage
	staleness staleness
	cache     *denyCache
	shadow    *denyCache // what is known to be full in the shadow
	local     *Memory    // decides while the policy acts, and mirrors this instance's admissions before
	usage     *usage
	full      *fullLimits
	records   records
	logOnce   logOnce
	refused   negativeCache
	unpaired  *unpaired
	finish    batcher[Lease, bool]
	extend    batcher[Lease, Lease]
	release   batcher[Lease, Lease]
	refund    batcher[Lease, bool]
	updates   batcher[updated, struct{}]
}

// Decide answers a batch: events that were planned to come back by their plans, events that resolve others by their pairs, all others by the
// limits. On an error, which is script.ErrUnavailable, script.ErrStale or the context's, nothing is known to be decided: give the events back and
// call [Limiter.Await]. Where only the pairs cannot be asked for, the events that resolve are Deferred, and the others keep their decisions.
func (l *Limiter) Decide(ctx context.Context, requests []Request) ([]Decision, error) {
	again := partOf(requests, func(i int) bool { return requests[i].mayBePlanned() })
	if len(again.requests) == 0 { // as a rule
		return l.decideAnew(ctx, requests)
	}
	found, err := l.findPlans(ctx, again.requests)
	if err != nil {
		return nil, err
	}
	answers := make([]Decision, len(requests))
	again.put(found, answers)
	return answerOthers(ctx, requests, answers, l.decideAnew)
}

// decideAnew decides about events without a plan.
func (l *Limiter) decideAnew(ctx context.Context, requests []Request) ([]Decision, error) {
	resolving := partOf(requests, func(i int) bool { return requests[i].asksForPair() })
	if len(resolving.requests) == 0 { // as a rule: nothing is copied
		return l.decideByLimits(ctx, requests)
	}
	decisions := make([]Decision, len(requests))
	limited := partOf(requests, func(i int) bool { return !requests[i].asksForPair() })
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

// decideByLimits has Redis decide, or the failure policy.
func (l *Limiter) decideByLimits(ctx context.Context, requests []Request) ([]Decision, error) {
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

// decideByPairs decides about resolved events, each of which has a pair. An event whose pair is open gets it, and is Admitted or
// Reclaimed; any other is Unpaired. An error is as of Decide. While a failure policy acts all are Deferred: which pairs are open,
// only Redis knows.
func (l *Limiter) decideByPairs(ctx context.Context, requests []Request) ([]Decision, error) {
	switch state, cause := l.outage.current(); state {
	case answering:
		return l.aside(ctx, requests, pairsOf, func(ctx context.Context, requests []Request) ([]Decision, error) {
			return l.ask(ctx, requests, pairsOf, l.askOnceForPairs)
		})
	case acting:
		return l.deferred(len(requests), unavailableBecause(cause)), nil
	default:
		return nil, unavailableBecause(cause)
	}
}

// act decides by the failure policy.
func (l *Limiter) act(requests []Request) []Decision {
	if l.o.Policy == Closed && !l.o.Forward {
		decisions := make([]Decision, len(requests))
		for i := range decisions {
			decisions[i] = Decision{Verdict: Denied, Node: limits.Node{Level: LevelClosed}}
		}
		l.o.Metrics.Decision(Denied.String(), SourceLocal, len(requests))
		return decisions
	}
	asked, decisions := time.Now(), l.local.decideBatch("", requests).Decisions
	for i := range decisions {
		if d := &decisions[i]; l.o.Policy == Open && d.Verdict.isDenial() {
			*d = Decision{Verdict: Admitted, Lease: d.Lease}
		}
	}
	l.take(SourceLocal, asked, decisions, requests)
	var admitted []*granted
	for i := range decisions {
		if grant, isGrant := decisions[i].Grant.(*grant); isGrant && decisions[i].Verdict == Admitted {
			admitted = append(admitted, &grant.granted)
		}
	}
	l.outage.rememberAll(admitted)
	return decisions
}

// askInTurn denies events that have to wait for older ones, and asks about the rest. Events that need not wait any more leave their queues.
// Queues that cannot be read hold no event back.
func (l *Limiter) askInTurn(ctx context.Context, requests []Request) ([]Decision, error) {
	if l.o.Forward || !slices.ContainsFunc(requests, Request.standsInQueue) {
		return l.askByLimits(ctx, requests)
	}
	standing := partOf(requests, func(i int) bool { return requests[i].standsInQueue() })
	turns, err := l.o.Redis.turns(ctx, standing.requests)
	if err != nil {
		return l.askByLimits(ctx, requests)
	}
	answers := make([]Decision, len(requests))
	if denied := standing.denyEarly(turns, answers); denied > 0 {
		l.o.Metrics.Decision(Denied.String(), SourceRedis, denied)
	}
	if answers, err = answerOthers(ctx, requests, answers, l.askByLimits); err != nil {
		return nil, err
	}
	leaving := partOf(requests, func(i int) bool {
		return requests[i].HasWaited && answers[i].Verdict != Deferred && answers[i].Verdict != Denied
	})
	_ = l.o.Redis.leave(ctx, leaving.requests) // else others wait for them for a while
	return answers, nil
}

// ask asks Redis about a batch, and asks again if the limits here turn out not to be those in force. What Redis refuses may be the
// fault of some events alone: name tells which events share that.
func (l *Limiter) ask(ctx context.Context, requests []Request, name func(Request) string, once asking) ([]Decision, error) {
	asked, nonce := time.Now(), newNonce()
	answers, err := once(ctx, nonce, requests)
	l.o.Metrics.DecisionDuration(time.Since(asked))
	if errors.Is(err, script.ErrStale) && ctx.Err() == nil && !l.staleness.lags() { // while it lags, keepUp looks for newer limits
		err = l.staleness.catchUp(ctx, err, func() (err error) {
			nonce = newNonce()
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

// askOnce makes one call. Events that open pairs are announced before anybody delivers them: what resolves them then waits for the
// outcome.
func (l *Limiter) askOnce(ctx context.Context, nonce string, requests []Request) ([]Decision, error) {
	asked := time.Now()
	result, err := l.o.Redis.decideBatch(ctx, nonce, requests)
	if err != nil {
		return nil, err
	}
	err = l.o.Redis.announce(ctx, result.Decisions)
	if errors.Is(err, script.ErrRefused) { // the events themselves go on, though their pairs cannot be kept
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
func (l *Limiter) askOnceForPairs(ctx context.Context, nonce string, requests []Request) ([]Decision, error) {
	resolutions, err := l.o.Redis.resolveBatch(ctx, nonce, requests)
	if err != nil {
		return nil, err
	}
	for i := range resolutions {
		if d := &resolutions[i]; d.Lease.resolving {
			d.Grant = &grant{limiter: l, granted: granted{admission: admission{lease: d.Lease}}}
		}
	}
	l.count(SourceRedis, resolutions)
	return resolutions, nil
}

// take gives the decisions of a store their grants, and lets the caches and the local store take note of them.
func (l *Limiter) take(source string, asked time.Time, decisions []Decision, requests []Request) {
	var admitted []Request
	rules := l.o.Redis.rules()
	for i := range decisions {
		d, request := &decisions[i], requests[i] // a Decision is large
		switch d.Verdict {
		case Admitted:
			admitted = append(admitted, request)
		case Denied:
			l.full.denied(d, asked)
		case ExceedsCapacity:
			l.logOnce.exceedsCapacity(l.o.Logger, request, *d)
		}
		if source == SourceRedis && d.Verdict.isDenial() { // a share of a limit is full sooner than the limit
			d.Used = rules.tree.takenBefore(d, request.Cost)
			l.cache.learn(asked, rules.tree.route(request.Category), *d, request.Cost)
		}
		l.learnFromShadow(asked, source, rules, request, d.Shadow)
		l.usage.touch(request.Category)
	}
	var at time.Time // of the admissions that the local store knows of
	switch {
	case source == SourceLocal:
		at = asked
	case l.o.Policy == Local && len(admitted) > 0:
		at = l.local.Mirror(admitted)
	}
	for i := range decisions {
		if d := &decisions[i]; d.Lease.ID != "" {
			d.Grant = &grant{limiter: l, granted: granted{
				admission: admission{lease: d.Lease, at: at}, local: source == SourceLocal,
				mirrored: source == SourceRedis && d.Verdict == Admitted && !at.IsZero(),
			}}
		}
	}
	l.count(source, decisions)
}

// count counts decisions by their verdicts.
func (l *Limiter) count(source string, decisions []Decision) {
	var counts [Deferred + 1]int
	for i := range decisions {
		counts[decisions[i].Verdict]++
	}
	for verdict, n := range counts {
		if n > 0 {
			l.o.Metrics.Decision(Verdict(verdict).String(), source, n)
		}
	}
}

// learnFromShadow counts what the shadow says of an event.
func (l *Limiter) learnFromShadow(asked time.Time, source string, rules *ruleset, request Request, d ShadowDecision) {
	if d.Verdict == 0 {
		return
	}
	l.o.Metrics.ShadowDecision(cmp.Or(d.Node.Level, LevelNone), d.Verdict.String(), 1)
	if d.Verdict.isDenial() && source == SourceRedis && rules.shadow != nil {
		denied := Decision{Verdict: d.Verdict, Node: d.Node, Limit: d.Limit, Wait: d.Wait}
		l.shadow.learn(asked, rules.shadow.route(request.Category), denied, request.Cost)
	}
}

// deferred returns decisions about n events that cannot be decided about now.
func (l *Limiter) deferred(n int, err error) []Decision {
	decisions := make([]Decision, n)
	for i := range decisions {
		decisions[i] = Decision{Verdict: Deferred, Err: err}
	}
	l.o.Metrics.Decision(Deferred.String(), SourceLocal, n)
	return decisions
}

// Full returns the denial that an event of the category is known to get, without asking Redis; nil: none is known. A shadow has to be
// known to deny the event too: else nobody would ask the shadow.
func (l *Limiter) Full(category string) *Denial {
	if l.o.Forward || !l.staleness.current.Load() {
		return nil
	}
	if l.o.Policy == Open && !l.outage.isAnswering() {
		return nil
	}
	rules := l.o.Redis.rules()
	denial := l.cache.find(rules.tree.route(category))
	if denial == nil {
		return nil
	}
	if rules.shadow != nil {
		shadowed := l.shadow.find(rules.shadow.route(category))
		if shadowed == nil {
			return nil
		}
		l.o.Metrics.ShadowDecision(shadowed.Level, Denied.String(), 1)
	}
	l.o.Metrics.Decision(Denied.String(), SourceCache, 1)
	l.full.deniedAgain(denial.Path)
	return denial
}

// Position is that of the limits by which this instance decides.
func (l *Limiter) Position() limits.Position { return l.o.Redis.rules().Position }

// Await returns once Decide may work: nil, or the context's error. It waits while newer limits are in force than here.
func (l *Limiter) Await(ctx context.Context) error { return l.outage.await(ctx, l.staleness.lags) }

// Ready is nil while events can be decided, by Redis or by the failure policy. Limits that are behind for a moment do not
// count.
func (l *Limiter) Ready() error {
	if err := l.outage.ready(); err != nil {
		return err
	}
	return l.staleness.ready()
}

// Available tells whether Redis answers, as far as is known.
func (l *Limiter) Available() bool { return l.outage.isAnswering() }
