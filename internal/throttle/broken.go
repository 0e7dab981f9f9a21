package throttle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// brokenFor is how long events are not asked about whose logs or pairs Redis refused.
const brokenFor = time.Second

// broken remembers what Redis refused, by the category whose logs it is or, behind a line feed, the first level whose pairs.
type broken struct {
	mu    sync.Mutex
	since map[string]refusal
}

type refusal struct {
	at  time.Time
	err error
}

func (b *broken) note(name string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since == nil || len(b.since) >= maxNoted {
		b.since = make(map[string]refusal)
	}
	b.since[name] = refusal{time.Now(), err}
}

// find returns why Redis refused something a moment ago, nil if it did not.
func (b *broken) find(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, found := b.since[name]
	if !found {
		return nil
	}
	if time.Since(known.at) >= brokenFor {
		delete(b.since, name)
		return nil
	}
	return known.err
}

// empty tells that nothing was refused, without a look at each event.
func (b *broken) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.since) == 0
}

func logsOf(request Request) string  { return request.Category }
func pairsOf(request Request) string { return "\n" + event.FirstLevel(request.Category) }

// asking is a question about some events at once.
type asking func(ctx context.Context, nonce string, requests []Request) ([]Answer, error)

// aside answers for the events of which Redis refused something a moment ago, and asks about the others.
func (g *Gate) aside(ctx context.Context, requests []Request, name func(Request) string, ask func(context.Context, []Request) ([]Answer, error)) ([]Answer, error) {
	if g.broken.empty() {
		return ask(ctx, requests)
	}
	var others []Request
	answers, places := make([]Answer, len(requests)), make([]int, 0, len(requests))
	for i, request := range requests {
		if err := g.broken.find(name(request)); err != nil {
			answers[i].Err = err
			continue
		}
		others, places = append(others, request), append(places, i)
	}
	if len(others) == 0 {
		return answers, nil
	}
	asked, err := ask(ctx, others)
	if err != nil {
		return nil, err
	}
	for i, place := range places {
		answers[place] = asked[i]
	}
	return answers, nil
}

// askEach finds out which events of a refused batch can be judged: one log of the wrong type must not stop the others. Events
// that share what Redis may have refused are asked about at once.
func (g *Gate) askEach(ctx context.Context, requests []Request, name func(Request) string, ask asking, cause error) ([]Answer, error) {
	if err := g.works(ctx); err != nil {
		g.lost(cause)
		return nil, unavailable(cause)
	}
	groups, order := make(map[string][]int), []string(nil)
	for i, request := range requests {
		if _, known := groups[name(request)]; !known {
			order = append(order, name(request))
		}
		groups[name(request)] = append(groups[name(request)], i)
	}
	answers := make([]Answer, len(requests))
	for _, shared := range order {
		group := make([]Request, len(groups[shared]))
		for i, place := range groups[shared] {
			group[i] = requests[place]
		}
		nonce := newNonce()
		answered, err := ask(ctx, nonce, group)
		switch {
		case err == nil:
		case errors.Is(err, ErrRefused):
			g.broken.note(shared, err)
			g.refused.report(g.o.Logger, group[0].Category, err)
			answered = undecidable(len(group), err)
		default:
			g.disclaim(ctx, answers)
			if errors.Is(err, ErrStale) {
				return nil, err
			}
			g.leaveUnanswered(nonce, group)
			g.lost(err)
			return nil, unavailable(err)
		}
		for i, place := range groups[shared] {
			answers[place] = answered[i]
		}
	}
	return answers, nil
}

// disclaim ends the leases of answers that nobody gets. If that fails they lapse, and leave their events in doubt.
func (g *Gate) disclaim(ctx context.Context, answers []Answer) {
	for _, answer := range answers {
		if answer.Grant != nil {
			answer.Grant.Release(ctx, false)
		}
	}
}

func undecidable(n int, err error) []Answer {
	answers := make([]Answer, n)
	for i := range answers {
		answers[i].Err = err
	}
	return answers
}
