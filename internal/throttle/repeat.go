package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

// posted is what repeat.lua says of a firing event whose message was posted for this very stored message. Any greater number is how many
// messages the event has, and the event is due; notDue says nothing.
const (
	posted = -1
	notDue = 0
)

// mayRepeat tells whether the event may be a repetition of one that was posted and goes on. An event with a derived ID is never repeated.
func (r Request) mayRepeat() bool { return r.Pair != "" && !r.Resolves && !r.Derived && r.Cost > 0 }

// reminder is the request to post an event again that has so many messages. No event has its identity: a category holds no '~'.
func (r Request) reminder(messages int64) Request {
	category, id, _ := strings.Cut(r.ID, " ")
	r.remindsOf = r.eventKey()
	r.ID = fmt.Sprintf("%s~%d %s", category, messages, id)
	return r
}

// repeated looks for events among the messages of open pairs, and keeps what is known of those anew.
func (r *Redis) repeated(ctx context.Context, requests []Request) ([]int64, error) {
	books := newPairBooks(r.keys)
	var events []any
	for _, request := range requests {
		events = append(events, request.eventKey(), request.Message.version(), books.of(request), request.Pair)
	}
	s := r.settings
	arguments := []any{s.Lease.Microseconds(), s.Retention.Microseconds(), s.PairTTL.Microseconds(), s.Remind.Microseconds(), len(books.numbers)}
	keys := append([]string{r.keys.calls, r.keys.done, r.keys.message}, books.keys...)
	return r.runner.RunNumbers(ctx, "looking for repetitions", lua.Repeat, keys, append(arguments, events...), len(requests))
}

// askByLimits asks Redis about a batch. Firing events that were posted, go on and are due are asked for as reminders.
func (l *Limiter) askByLimits(ctx context.Context, requests []Request) ([]Decision, error) {
	if !slices.ContainsFunc(requests, Request.mayRepeat) {
		return l.askFresh(ctx, requests)
	}
	repeating := partOf(requests, func(i int) bool { return requests[i].mayRepeat() })
	numbers, err := l.o.Redis.repeated(ctx, repeating.requests)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, script.ErrRefused): // the events themselves go on, though their pairs cannot be read
		l.logOnce.report(l.o.Logger, repeating.requests[0].Category, err)
		return l.askFresh(ctx, requests)
	case err != nil:
		l.outage.lost(err)
		return nil, unavailableBecause(err)
	}
	asked, answers, done := slices.Clone(requests), make([]Decision, len(requests)), 0
	for i, position := range repeating.positions {
		switch number := numbers[i]; number {
		case posted:
			answers[position] = Decision{Verdict: Done}
			done++
		case notDue:
		default:
			asked[position] = requests[position].reminder(number)
		}
	}
	if done > 0 {
		l.o.Metrics.Decision(Done.String(), SourceRedis, done)
	}
	return answerOthers(ctx, asked, answers, l.askFresh)
}

func (l *Limiter) askFresh(ctx context.Context, requests []Request) ([]Decision, error) {
	return l.ask(ctx, requests, logsOf, l.askOnce)
}
