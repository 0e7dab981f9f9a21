package main

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// throttleOf is a gate as the consumer sees it.
type throttleOf struct{ gate *throttle.Gate }

func (t throttleOf) Full(category string) (string, bool) {
	node, full := t.gate.Full(category)
	return node.Level, full
}

func (t throttleOf) Await(ctx context.Context) error { return t.gate.Await(ctx) }

func (t throttleOf) Pause(ctx context.Context, destination string, d time.Duration) {
	t.gate.Pause(ctx, destination, d)
}

func (t throttleOf) AwaitMoment(ctx context.Context, destination string, horizon time.Duration) (time.Duration, bool) {
	return t.gate.AwaitMoment(ctx, destination, horizon)
}

// Decide asks the limits, except about what resolves another event: that goes by what it resolves. If only the second
// question fails, its events are undecidable now, and the others keep their answers.
func (t throttleOf) Decide(ctx context.Context, candidates []consume.Candidate) ([]consume.Decision, error) {
	var limited, resolving []int
	for i, c := range candidates {
		if c.Event.Resolves() && !c.LookUp {
			resolving = append(resolving, i)
		} else {
			limited = append(limited, i)
		}
	}
	decisions := make([]consume.Decision, len(candidates))
	if err := decideSome(ctx, candidates, limited, decisions, t.gate.Decide); err != nil {
		return nil, err
	}
	if err := decideSome(ctx, candidates, resolving, decisions, t.gate.Resolve); err != nil && len(limited) == 0 {
		return nil, err
	}
	return decisions, nil
}

// decideSome asks about the candidates at some places, and puts the decisions there.
func decideSome(
	ctx context.Context, candidates []consume.Candidate, places []int, decisions []consume.Decision,
	ask func(context.Context, []throttle.Request) ([]throttle.Answer, error),
) error {
	if len(places) == 0 {
		return nil
	}
	requests := make([]throttle.Request, len(places))
	for i, place := range places {
		requests[i] = requestFor(candidates[place])
	}
	answers, err := ask(ctx, requests)
	if err != nil {
		return err
	}
	for i, place := range places {
		decisions[place] = decisionOf(answers[i])
	}
	return nil
}

func requestFor(c consume.Candidate) throttle.Request {
	request := throttle.Request{
		ID:       c.Event.ID,
		Derived:  c.Event.Derived,
		Message:  throttle.Message{Stream: c.Stream, Sequence: c.Sequence, Stored: c.Stored},
		Category: c.Event.Category,
		Cost:     c.Event.Cost,
		Pair:     c.Event.Pair(),
	}
	if c.LookUp {
		request.Cost = 0
	}
	return request
}

func decisionOf(answer throttle.Answer) consume.Decision {
	decision := consume.Decision{
		Verdict: verdicts[answer.Verdict], Level: answer.Node.Level, Wait: answer.Wait, Opened: answer.Opened,
		Denial: denial{answer.Node, answer.Limit},
	}
	if answer.Grant != nil {
		decision.Grant = answer.Grant
	}
	return decision
}

// denial is which limit denied an event.
type denial struct {
	node  throttle.Node
	limit throttle.Limit
}

func (t throttleOf) Delay(
	ctx context.Context, c consume.Candidate, d consume.Decision, longest time.Duration,
) (consume.DelayVerdict, time.Duration, error) {
	by, _ := d.Denial.(denial)
	verdict, in, err := t.gate.Delay(ctx, throttle.Postponement{
		Request: requestFor(c), Wait: d.Wait, Longest: longest, Place: by.node.Path, Limit: by.limit,
		HasWaited: c.Waited, Firing: c.Event.Status == event.StatusFiring,
	})
	return delays[verdict], in, err
}

func (t throttleOf) Planned(ctx context.Context, c consume.Candidate) (time.Duration, bool, error) {
	return t.gate.Planned(ctx, requestFor(c))
}

// delays maps what the gate says of delays to what the consumer does.
var delays = map[throttle.DelayVerdict]consume.DelayVerdict{
	throttle.ComesBack:      consume.ComeBack,
	throttle.TooMany:        consume.Refuse,
	throttle.TooLate:        consume.DropIt,
	throttle.AlreadyWaiting: consume.Waiting,
}

// verdicts maps what the gate says to what the consumer has to do.
var verdicts = map[throttle.Verdict]consume.Verdict{
	0:                  consume.Undecidable,
	throttle.Admitted:  consume.Admit,
	throttle.Repeated:  consume.Admit,
	throttle.Denied:    consume.Deny,
	throttle.NeverFits: consume.Deny,
	throttle.Leased:    consume.Wait,
	throttle.Done:      consume.Done,
	throttle.Duplicate: consume.Repeat,
	throttle.Unknown:   consume.Unknown,
	throttle.Unpaired:  consume.Unpaired,
}
