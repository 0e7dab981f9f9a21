package throttle

import (
	"context"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

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
