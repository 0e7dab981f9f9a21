package throttle

import (
	"context"
	"errors"
	"slices"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// askByLimits asks Redis about a batch. A repetition of a posted event that still fires becomes a reminder if one is due.
func (l *Limiter) askByLimits(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	if !slices.ContainsFunc(requests, store.Request.MayRepeat) {
		return l.askFresh(ctx, requests)
	}
	repeating := partOf(requests, func(i int) bool { return requests[i].MayRepeat() })
	numbers, err := l.o.Redis.Repeated(ctx, repeating.requests)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, script.ErrRefused): // the events are decided, although their pairs cannot be read
		l.logOnce.report(l.o.Logger, repeating.requests[0].Category, err)
		return l.askFresh(ctx, requests)
	case err != nil:
		l.outage.lost(err)
		return nil, unavailableBecause(err)
	}
	asked, answers, done := slices.Clone(requests), make([]store.Decision, len(requests)), 0
	for i, position := range repeating.positions {
		switch number := numbers[i]; number {
		case store.Posted:
			answers[position] = store.Decision{Verdict: store.Done}
			done++
		case store.NotDue:
		default:
			asked[position] = requests[position].Reminder(number)
		}
	}
	if done > 0 {
		l.o.Metrics.Decision(store.Done.String(), SourceRedis, done)
	}
	return answerOthers(ctx, asked, answers, l.askFresh)
}

func (l *Limiter) askFresh(ctx context.Context, requests []store.Request) ([]store.Decision, error) {
	return l.ask(ctx, requests, logsOf, l.askOnce)
}
