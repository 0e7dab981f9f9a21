package throttle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// refusedFor is how long the limiter does not ask Redis again about events with refused logs or pairs.
const refusedFor = time.Second

// negativeCache remembers what Redis refused. A category names its logs, and a line feed with a first level names its pairs.
type negativeCache struct {
	mu    sync.Mutex
	since map[string]refusal
}

type refusal struct {
	at  time.Time
	err error
}

func (c *negativeCache) note(name string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since == nil || len(c.since) >= maxNoted {
		c.since = make(map[string]refusal)
	}
	c.since[name] = refusal{time.Now(), err}
}

// find returns why Redis refused a name within refusedFor. It returns nil if Redis did not.
func (c *negativeCache) find(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.since[name]
	if time.Since(known.at) >= refusedFor {
		delete(c.since, name)
		return nil
	}
	return known.err
}

// empty reports whether nothing was refused. It saves a look-up for each event.
func (c *negativeCache) empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.since) == 0
}

func logsOf(request store.Request) string  { return request.Category }
func pairsOf(request store.Request) string { return "\n" + event.FirstLevel(request.Category) }

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

// asking asks about several events in one call.
type asking func(ctx context.Context, nonce string, requests []store.Request) ([]store.Decision, error)

// aside defers the events with logs or pairs that Redis refused recently, and asks about the rest.
func (l *Limiter) aside(
	ctx context.Context, requests []store.Request, name func(store.Request) string, ask func(context.Context, []store.Request) ([]store.Decision, error),
) ([]store.Decision, error) {
	if l.refused.empty() {
		return ask(ctx, requests)
	}
	answers := make([]store.Decision, len(requests))
	for i, request := range requests {
		if err := l.refused.find(name(request)); err != nil {
			answers[i] = l.deferred(1, err)[0]
		}
	}
	return answerOthers(ctx, requests, answers, ask)
}

// answerOthers asks about the requests that have no answer yet.
func answerOthers(
	ctx context.Context, requests []store.Request, answers []store.Decision, ask func(context.Context, []store.Request) ([]store.Decision, error),
) ([]store.Decision, error) {
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

// askEach finds out which events of a refused batch can be evaluated: one log of the wrong type must not stop unrelated events. It makes one
// call for all events of equal name, since they share what Redis may have refused.
func (l *Limiter) askEach(ctx context.Context, requests []store.Request, name func(store.Request) string, ask asking, cause error) ([]store.Decision, error) {
	if err := l.outage.works(ctx); err != nil {
		l.outage.lost(cause)
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
			l.refused.note(shared, err)
			l.logOnce.report(l.o.Logger, group.requests[0].Category, err)
			answered = l.deferred(len(group.requests), err)
		default:
			l.disclaim(ctx, answers)
			if errors.Is(err, script.ErrStale) {
				return nil, err
			}
			return nil, l.outage.noReply(nonce, group.requests, err)
		}
		group.put(answered, answers)
	}
	return answers, nil
}

// disclaim ends the leases of answers that the caller does not get. If that fails, the leases lapse and leave their events in doubt.
func (l *Limiter) disclaim(ctx context.Context, answers []store.Decision) {
	for _, answer := range answers {
		if answer.Grant != nil {
			answer.Grant.Release(ctx, false)
		}
	}
}
