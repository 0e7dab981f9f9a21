package throttle

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
)

// Limiter is what a worker asks: the deny cache, then Redis, and the failure policy while Redis is unavailable. What it does for
// each batch follows in the order in which it happens, from Decide to take.
type Limiter struct {
	o         LimiterOptions
	rules     atomic.Pointer[ruleset]
	outage    *outage
	staleness staleness
	cache     *denyCache
	shadow    *denyCache // what is known to be full in the shadow
	local     *Memory    // decides while the policy acts, and mirrors this instance's admissions before
	usage     *usage
	records   records
	logOnce   logOnce
	refused   negativeCache
	unpaired  *unpaired
	finish    batcher[Lease, bool]
	extend    batcher[Lease, Lease]
	release   batcher[Lease, Lease]
	refund    batcher[Lease, bool]
}

// Decide answers a batch: events that resolve others by their pairs, all others by the limits. On an error, which is
// script.ErrUnavailable, script.ErrStale or the context's, nothing is known to be decided: give the events back and call
// [Limiter.Await]. Where only the pairs cannot be asked for, the events that resolve are Deferred, and the others keep their decisions.
func (l *Limiter) Decide(ctx context.Context, requests []Request) ([]Decision, error) {
	limited, resolving := divide(requests)
	if len(resolving.requests) == 0 {
		return l.decideByLimits(ctx, requests)
	}
	decisions := make([]Decision, len(requests))
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

// decideByLimits has Redis decide, or the failure policy. Events of which Redis refused something a moment ago are set aside.
func (l *Limiter) decideByLimits(ctx context.Context, requests []Request) ([]Decision, error) {
	state, cause := l.outage.current()
	l.unpaired.see(requests)
	switch state {
	case answering:
		return l.aside(ctx, requests, logsOf, l.askInTurn)
	case acting:
		return l.act(ctx, requests), nil
	case unavailable:
	}
	return nil, unavailableBecause(cause)
}

// askInTurn denies events that may wait, where others wait that were stored before them, and asks about the others. Those who
// need not wait any more leave their queues. That the queues cannot be read is no reason to hold events back.
func (l *Limiter) askInTurn(ctx context.Context, requests []Request) ([]Decision, error) {
	if l.o.Forward || !slices.ContainsFunc(requests, Request.standsInQueue) {
		return l.ask(ctx, requests)
	}
	standing := partOf(requests, Request.standsInQueue)
	turns, err := l.o.Redis.turns(ctx, standing.requests)
	if err != nil {
		return l.ask(ctx, requests)
	}
	answers := make([]Decision, len(requests))
	if denied := standing.denyEarly(turns, answers); denied > 0 {
		l.o.Metrics.Decision(Denied.String(), string(SourceRedis), denied)
	}
	var inTurn part
	for i, request := range requests {
		if answers[i].Verdict == 0 {
			inTurn.add(request, i)
		}
	}
	if len(inTurn.requests) == 0 {
		return answers, nil
	}
	asked, err := l.ask(ctx, inTurn.requests)
	if err != nil {
		return nil, err
	}
	inTurn.put(asked, answers)
	var leaving []Request
	for i, request := range inTurn.requests {
		if request.HasWaited && asked[i].Verdict != Deferred && asked[i].Verdict != Denied {
			leaving = append(leaving, request)
		}
	}
	_ = l.o.Redis.leave(ctx, leaving) // else others wait for them for a while
	return answers, nil
}

// ask asks Redis about a batch, again if the limits here turn out not to be those in force.
func (l *Limiter) ask(ctx context.Context, requests []Request) ([]Decision, error) {
	asked, nonce := time.Now(), newNonce()
	answers, err := l.askOnce(ctx, nonce, requests)
	l.o.Metrics.DecisionDuration(time.Since(asked))
	if errors.Is(err, script.ErrStale) && ctx.Err() == nil {
		answers, nonce, err = l.askNewer(ctx, requests, err)
	}
	if err != nil {
		return l.notAnswered(ctx, nonce, requests, logsOf, l.askOnce, err)
	}
	return answers, nil
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
	if errors.Is(err, script.ErrRefused) { // that the pairs cannot be kept is no reason to hold the events themselves back
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

// take gives the decisions of a store their grants, and lets the caches and the local store take note of them.
func (l *Limiter) take(source Source, asked time.Time, decisions []Decision, requests []Request) {
	var (
		admitted []Request
		counts   [Deferred + 1]int
		rules    = l.rules.Load()
	)
	for i := range decisions {
		d := &decisions[i] // large: not copied
		counts[d.Verdict]++
		switch d.Verdict {
		case Admitted:
			admitted = append(admitted, requests[i])
		case Denied:
			if source == SourceRedis { // a share of a limit is full sooner than the limit
				l.cache.learn(asked, rules.tree.route(requests[i].Category), *d, requests[i].Cost)
			}
			l.usage.denied(*d, asked)
		case ExceedsCapacity:
			if source == SourceRedis {
				l.cache.learn(asked, rules.tree.route(requests[i].Category), *d, requests[i].Cost)
			}
			l.logOnce.exceedsCapacity(l.o.Logger, requests[i], *d)
		case Reclaimed, Leased, Done, Duplicate, Unknown, Unpaired, Deferred:
		}
		l.learnFromShadow(asked, source, rules, requests[i], d.Shadow)
		l.usage.touch(requests[i].Category)
	}
	var at time.Time
	if source == SourceRedis && l.o.Policy == Local && len(admitted) > 0 {
		at = l.local.Mirror(admitted)
	}
	for i := range decisions {
		if d := &decisions[i]; d.Lease.ID != "" {
			d.Grant = &grant{limiter: l, granted: granted{lease: d.Lease, admitted: at, mirrored: d.Verdict == Admitted && !at.IsZero()}}
		}
	}
	l.count(source, counts[:])
}

// count counts decisions by their verdicts.
func (l *Limiter) count(source Source, counts []int) {
	for verdict, n := range counts {
		if n > 0 {
			l.o.Metrics.Decision(Verdict(verdict).String(), string(source), n)
		}
	}
}

// learnFromShadow counts what the shadow says of an event.
func (l *Limiter) learnFromShadow(asked time.Time, source Source, rules *ruleset, request Request, d ShadowDecision) {
	switch d.Verdict {
	case 0:
	case Admitted:
		l.o.Metrics.ShadowDecision(LevelNone, d.Verdict.String(), 1)
	default:
		l.o.Metrics.ShadowDecision(d.Node.Level, d.Verdict.String(), 1)
		if source == SourceRedis && rules.shadow != nil {
			denied := Decision{Verdict: d.Verdict, Node: d.Node, Limit: d.Limit, Wait: d.Wait}
			l.shadow.learn(asked, rules.shadow.route(request.Category), denied, request.Cost)
		}
	}
}

// askNewer asks again with the limits that are in force elsewhere. If they cannot be learned, nothing is decided here.
func (l *Limiter) askNewer(ctx context.Context, requests []Request, stale error) (answers []Decision, nonce string, err error) {
	if l.staleness.lags() {
		return nil, "", stale // keepUp looks for them
	}
	err = l.staleness.catchUp(ctx, stale, func() (err error) {
		nonce = newNonce()
		answers, err = l.askOnce(ctx, nonce, requests)
		return err
	})
	return answers, nonce, err
}

// notAnswered is what becomes of a batch about which a call failed: what Redis refused may be the fault of some events alone.
func (l *Limiter) notAnswered(ctx context.Context, nonce string, requests []Request, name func(Request) string, ask asking, err error) ([]Decision, error) {
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, script.ErrRefused):
		return l.askEach(ctx, requests, name, ask, err)
	case errors.Is(err, script.ErrStale):
		return nil, err
	}
	return nil, l.outage.noReply(nonce, requests, err)
}

// decideByPairs decides about resolved events, each of which has a pair. An event whose pair is open gets it, and is Admitted or
// Reclaimed; any other is Unpaired. An error is as of Decide. While a failure policy acts all are Deferred: which pairs are open,
// Redis alone knows.
func (l *Limiter) decideByPairs(ctx context.Context, requests []Request) ([]Decision, error) {
	switch state, cause := l.outage.current(); state {
	case answering:
		return l.aside(ctx, requests, pairsOf, l.askForPairs)
	case unavailable:
		return nil, unavailableBecause(cause)
	default:
		return l.deferred(len(requests), unavailableBecause(cause)), nil
	}
}

func (l *Limiter) askForPairs(ctx context.Context, requests []Request) ([]Decision, error) {
	asked, nonce := time.Now(), newNonce()
	answers, err := l.askOnceForPairs(ctx, nonce, requests)
	l.o.Metrics.DecisionDuration(time.Since(asked))
	if err != nil {
		return l.notAnswered(ctx, nonce, requests, pairsOf, l.askOnceForPairs, err)
	}
	return answers, nil
}

func (l *Limiter) askOnceForPairs(ctx context.Context, nonce string, requests []Request) ([]Decision, error) {
	resolutions, err := l.o.Redis.resolveBatch(ctx, nonce, requests)
	if err != nil {
		return nil, err
	}
	var counts [Deferred + 1]int
	for i := range resolutions {
		d := &resolutions[i]
		counts[d.Verdict]++
		if d.Lease.resolving {
			d.Grant = &grant{limiter: l, granted: granted{lease: d.Lease}}
		}
	}
	l.count(SourceRedis, counts[:])
	return resolutions, nil
}

// deferred are the decisions about so many events that cannot be decided about now.
func (l *Limiter) deferred(n int, err error) []Decision {
	decisions := make([]Decision, n)
	for i := range decisions {
		decisions[i] = Decision{Verdict: Deferred, Err: err}
	}
	l.o.Metrics.Decision(Deferred.String(), string(SourceLocal), n)
	return decisions
}

// Full tells whether an event of the category is known to be denied, and by which level, without asking Redis. Where there
// is a shadow, that has to be known to deny it too: else it would not be asked.
func (l *Limiter) Full(category string) (level string, full bool) {
	if l.o.Forward || !l.staleness.current.Load() {
		return "", false
	}
	if l.o.Policy == Open && !l.outage.isAnswering() {
		return "", false
	}
	rules := l.rules.Load()
	node, full := l.cache.find(rules.tree.route(category))
	if full && rules.shadow != nil {
		var shadowed limits.Node
		if shadowed, full = l.shadow.find(rules.shadow.route(category)); full {
			l.o.Metrics.ShadowDecision(shadowed.Level, Denied.String(), 1)
		}
	}
	if full {
		l.o.Metrics.Decision(Denied.String(), string(SourceCache), 1)
	}
	return node.Level, full
}

// Await returns when Decide may work: nil, or the context's error. It does not while newer limits are in force than here.
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

// NextSlot tells which level was full last and when its next slot opens: the global one if it is full, else the one
// that opens first. The wait is 0 if no limit is known to be full.
func (l *Limiter) NextSlot() (level string, wait time.Duration) { return l.usage.nextSlot(time.Now()) }
