package throttle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/expiring"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// refusedFor is how long the limiter does not ask Redis again about events with refused logs or pairs.
const refusedFor = time.Second

// asker asks Redis about batches. It finds out which events of a batch Redis refuses, and looks for newer limits if Redis has them. Its
// methods are in call order.
type asker struct {
	o         *LimiterOptions
	outage    *outage
	recovery  *recovery
	staleness *staleness
	answers   *answers
	logOnce   *logOnce
	refused   *expiring.Map[string, error] // why, by the name of what Redis refused: see logsOf and pairsOf
}

// logsOf and pairsOf name what Redis may refuse: a category names its logs, and a line feed with a first level names its pairs.
func logsOf(request store.Request) string  { return request.Category }
func pairsOf(request store.Request) string { return "\n" + event.FirstLevel(request.Category) }

// byLimits asks about events that limits decide about.
func (a *asker) byLimits(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	return a.aside(ctx, requests, logsOf, a.askInTurn)
}

// byPairs asks about resolved events that have a pair. If the pair is open, the event gets it and is Admitted or Reclaimed. Otherwise the event is
// Unpaired.
func (a *asker) byPairs(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	return a.aside(ctx, requests, pairsOf, func(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
		return a.ask(ctx, requests, pairsOf, a.askOnceForPairs)
	})
}

// asking asks about several events in one call.
type asking func(ctx context.Context, nonce string, requests []store.Request) ([]store.Decision, error)

// aside defers the events with logs or pairs that Redis refused recently, and asks about the rest.
func (a *asker) aside(ctx context.Context, requests []store.Request, name func(store.Request) string, ask deciding) ([]store.Decision, error) {
	if a.refused.Len() == 0 {
		return ask(ctx, requests)
	}
	answers := make([]store.Decision, len(requests))
	for i, request := range requests {
		if err, refused := a.refused.Get(name(request)); refused {
			answers[i] = a.answers.deferred(requests[i:i+1], err)[0]
		}
	}
	return answerOthers(ctx, requests, answers, ask)
}

// askInTurn denies events that must wait for older events, and asks about the rest. Events that need not wait any more leave their queues.
// If the queues cannot be read, no event is held back. An event that is folded needs no slot, so it waits for no older event.
func (a *asker) askInTurn(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	stands := func(r store.Request) bool { return r.StandsInQueue() && a.o.Redis.Rules().Muted(r) == nil } // a muted event waits for no slot
	if a.o.Forward || !slices.ContainsFunc(requests, func(r store.Request) bool { return r.StandsInQueue() || r.HasWaited }) {
		return a.askByLimits(ctx, requests)
	}
	answers, err := a.foldStanding(ctx, requests, stands)
	if err != nil {
		return nil, err
	}
	standing := partOf(requests, func(i int) bool { return stands(requests[i]) && answers[i].Verdict == 0 })
	turns, err := a.o.Redis.Queues.Turns(ctx, standing.requests)
	if err != nil {
		return answerOthers(ctx, requests, answers, a.askByLimits)
	}
	standing.put(turns, answers)
	a.answers.count(SourceRedis, turns)
	if answers, err = answerOthers(ctx, requests, answers, a.askByLimits); err != nil {
		return nil, err
	}
	leaving := partOf(requests, func(i int) bool {
		d := &answers[i]
		return requests[i].HasWaited && d.Verdict != store.Deferred && d.Verdict != store.Denied
	})
	_ = a.o.Redis.Queues.Leave(ctx, leaving.requests) // if this fails, other events wait for these events for some time
	return answers, nil
}

// foldStanding answers the events of a batch that stand in a queue, if they are folded or wait for a message of their key. Without a cost,
// a decision takes no slots and leaves the event Unknown otherwise.
func (a *asker) foldStanding(ctx context.Context, requests []store.Request, stands func(store.Request) bool) ([]store.Decision, error) {
	answers := make([]store.Decision, len(requests))
	folding := partOf(requests, func(i int) bool { return stands(requests[i]) && requests[i].MayFold() })
	if len(folding.requests) == 0 {
		return answers, nil
	}
	for i := range folding.requests {
		folding.requests[i].Cost = 0
	}
	folded, err := a.askFresh(ctx, folding.requests)
	if err != nil {
		return nil, err
	}
	for i, position := range folding.positions {
		if folded[i].Verdict == store.Folded || folded[i].Awaits {
			answers[position] = folded[i]
		}
	}
	return answers, nil
}

// askByLimits asks Redis about a batch. A repetition of a posted event that still fires becomes a reminder if one is due.
func (a *asker) askByLimits(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	if !slices.ContainsFunc(requests, store.Request.MayRepeat) {
		return a.askFresh(ctx, requests)
	}
	repeating := partOf(requests, func(i int) bool { return requests[i].MayRepeat() })
	numbers, err := a.o.Redis.Pairs.Repeated(ctx, repeating.requests)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, script.ErrRefused): // the events are decided, although their pairs cannot be read
		a.logOnce.report(repeating.requests[0].Category, err)
		return a.askFresh(ctx, requests)
	case err != nil:
		a.outage.lost(err)
		return nil, unavailableBecause(err)
	}
	asked, answers := slices.Clone(requests), make([]store.Decision, len(requests))
	for i, position := range repeating.positions {
		switch number := numbers[i]; number {
		case store.Posted:
			answers[position] = store.Decision{Verdict: store.Done}
		case store.NotDue:
		default:
			asked[position] = requests[position].Reminder(number)
		}
	}
	a.answers.count(SourceRedis, answers)
	return answerOthers(ctx, asked, answers, a.askFresh)
}

func (a *asker) askFresh(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	return a.ask(ctx, requests, logsOf, a.askOnce)
}

// ask asks Redis about a batch. If newer limits are in force, it adopts them and asks again. If Redis refuses the batch, ask retries it in
// groups: events of equal name share the keys that Redis may have refused.
func (a *asker) ask(ctx context.Context, requests []store.Request, name func(store.Request) string, once asking) ([]store.Decision, error) {
	asked, nonce := time.Now(), store.NewNonce()
	answers, err := once(ctx, nonce, requests)
	a.o.Metrics.DecisionDuration(time.Since(asked))
	if errors.Is(err, script.ErrStale) && ctx.Err() == nil && !a.staleness.lags() { // while it lags, keepUp looks for newer limits
		err = a.staleness.catchUp(ctx, err, func() (err error) {
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
		return a.askEach(ctx, requests, name, once, err)
	case errors.Is(err, script.ErrStale):
		return nil, err
	}
	return nil, a.recovery.noReply(nonce, requests, err)
}

// askOnce makes one call. It announces events that open pairs before anyone delivers them, so that the resolved events wait for the outcome.
func (a *asker) askOnce(ctx context.Context, nonce string, requests []store.Request) ([]store.Decision, error) {
	asked := time.Now()
	result, err := a.o.Redis.DecideOnce(ctx, nonce, requests)
	if err != nil {
		return nil, err
	}
	a.staleness.note(asked)
	err = a.o.Redis.Pairs.Announce(ctx, result.Decisions)
	if errors.Is(err, script.ErrRefused) { // the events are delivered, although their pairs cannot be stored
		a.logOnce.report(requests[0].Category, err)
	} else if err != nil {
		return nil, err
	}
	if a.o.Pauses != nil {
		a.o.Pauses(asked, result.Pauses)
	}
	a.answers.take(SourceRedis, asked, result.Decisions, requests)
	return result.Decisions, nil
}

// askOnceForPairs makes one call about resolved events.
func (a *asker) askOnceForPairs(ctx context.Context, nonce string, requests []store.Request) ([]store.Decision, error) {
	resolutions, err := a.o.Redis.Pairs.ResolveOnce(ctx, nonce, requests)
	if err != nil {
		return nil, err
	}
	a.answers.grants.give(SourceRedis, time.Now(), resolutions, requests)
	a.answers.count(SourceRedis, resolutions)
	return resolutions, nil
}

// askEach finds out which events of a refused batch can be evaluated: one log of the wrong type must not stop unrelated events. It makes one
// call for all events of equal name, since they share what Redis may have refused.
func (a *asker) askEach(ctx context.Context, requests []store.Request, name func(store.Request) string, ask asking, cause error) ([]store.Decision, error) {
	if err := a.o.works(ctx); err != nil {
		a.outage.lost(cause)
		return nil, unavailableBecause(cause)
	}
	groups, order := make(map[string]*part), []string(nil)
	for i, request := range requests {
		group, known := groups[name(request)]
		if !known {
			group = new(part)
			groups[name(request)], order = group, append(order, name(request))
		}
		group.add(request, i)
	}
	answers := make([]store.Decision, len(requests))
	for _, shared := range order {
		group, nonce := groups[shared], store.NewNonce()
		answered, err := ask(ctx, nonce, group.requests)
		switch {
		case err == nil:
		case errors.Is(err, script.ErrRefused):
			a.refused.Put(shared, err, time.Now().Add(refusedFor))
			a.logOnce.report(group.requests[0].Category, err)
			answered = a.answers.deferred(group.requests, err)
		default:
			a.disclaim(ctx, answers)
			if errors.Is(err, script.ErrStale) {
				return nil, err
			}
			return nil, a.recovery.noReply(nonce, group.requests, err)
		}
		group.put(answered, answers)
	}
	return answers, nil
}

// disclaim ends the leases of answers that the caller does not get. If that fails, the leases lapse and leave their events in doubt.
func (a *asker) disclaim(ctx context.Context, answers []store.Decision) {
	for _, answer := range answers {
		if answer.Grant != nil {
			answer.Grant.Release(ctx, answer.Lease.Request.Attempted)
		}
	}
}

// part holds some requests of a batch, and their positions in it.
type part struct {
	requests  []store.Request
	positions []int
}

// partOf returns the wanted requests.
func partOf(requests []store.Request, wanted func(position int) bool) (some part) {
	for i := range requests {
		if wanted(i) {
			some.add(requests[i], i)
		}
	}
	return some
}

func (p *part) add(request store.Request, position int) {
	p.requests, p.positions = append(p.requests, request), append(p.positions, position)
}

// put copies the decisions about the part to their positions.
func (p *part) put(decided, decisions []store.Decision) {
	for i, position := range p.positions {
		decisions[position] = decided[i]
	}
}

// answerOthers asks about the requests that have no answer yet.
func answerOthers(ctx context.Context, requests []store.Request, answers []store.Decision, ask deciding) ([]store.Decision, error) {
	others := partOf(requests, func(i int) bool { return answers[i].Verdict == 0 })
	if len(others.requests) == 0 {
		return answers, nil
	}
	asked, err := ask(ctx, others.requests)
	if err != nil {
		return nil, err
	}
	others.put(asked, answers)
	return answers, nil
}
