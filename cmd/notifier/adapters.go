package main

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// throttleOf is a gate as the consumer sees it.
type throttleOf struct {
	gate    *throttle.Gate
	mayWait func(category string) bool // whether denied events wait for a slot; nil: none do
}

func (t throttleOf) Full(category string) (string, bool) {
	node, full := t.gate.Full(category)
	return node.Level, full
}

func (t throttleOf) Await(ctx context.Context) error { return t.gate.Await(ctx) }

func (t throttleOf) Pause(ctx context.Context, destination string, d time.Duration) {
	t.gate.Pause(ctx, destination, d)
}

func (t throttleOf) Resting(destination string) time.Duration { return t.gate.Resting(destination) }

func (t throttleOf) Rest(ctx context.Context, destination string) time.Duration {
	return t.gate.Rest(ctx, destination)
}

func (t throttleOf) Reserve(ctx context.Context, destination string, horizon time.Duration) (time.Duration, bool) {
	moment := t.gate.Reserve(ctx, destination, horizon)
	return moment.Wait, moment.Reserved
}

func (t throttleOf) Recorded(ctx context.Context) func(consume.Candidate) bool {
	recorded := t.gate.Records(ctx)
	if recorded == nil {
		return nil
	}
	return func(c consume.Candidate) bool { return recorded(requestFor(c)) }
}

func (t throttleOf) KnownUnpaired(pair string, stored time.Time) bool {
	return t.gate.KnownUnpaired(pair, stored)
}

func (t throttleOf) LearnUnpaired(pair string, asked time.Time) { t.gate.LearnUnpaired(pair, asked) }

func (t throttleOf) EnterRoom(ctx context.Context, stays []consume.Stay) ([]bool, error) {
	entering := make([]throttle.Stay, len(stays))
	for i, stay := range stays {
		entering[i] = throttle.Stay(stay)
	}
	return t.gate.EnterRoom(ctx, entering)
}

func (t throttleOf) LeaveRoom(ctx context.Context, stays []consume.Stay) error {
	leaving := make([]throttle.Stay, len(stays))
	for i, stay := range stays {
		leaving[i] = throttle.Stay(stay)
		leaving[i].For = 0
	}
	_, err := t.gate.EnterRoom(ctx, leaving)
	return err
}

func (t throttleOf) Passed(ctx context.Context, at consume.Position) (int64, error) {
	return t.gate.Passed(ctx, at.Consumer, at.Stream, at.Deliveries)
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
	if err := t.decideSome(ctx, candidates, limited, decisions, t.gate.Decide); err != nil {
		return nil, err
	}
	if err := t.decideSome(ctx, candidates, resolving, decisions, t.gate.Resolve); err != nil && len(limited) == 0 {
		return nil, err
	}
	return decisions, nil
}

// decideSome asks about the candidates at some places, and puts the decisions there.
func (t throttleOf) decideSome(
	ctx context.Context, candidates []consume.Candidate, places []int, decisions []consume.Decision,
	ask func(context.Context, []throttle.Request) ([]throttle.Answer, error),
) error {
	if len(places) == 0 {
		return nil
	}
	requests := make([]throttle.Request, len(places))
	for i, place := range places {
		requests[i] = requestFor(candidates[place])
		requests[i].MayWait = t.mayWait != nil && t.mayWait(requests[i].Category)
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
		ID:       c.Event.Identity(),
		Derived:  c.Event.Derived,
		Message:  throttle.Message{Stream: c.Stream, Sequence: c.Sequence, Stored: c.Stored},
		Category: c.Event.Category,
		Cost:     c.Event.Cost,
		Pair:     c.Event.Pair(),

		HasWaited: c.Waited,
	}
	if c.LookUp {
		request.Cost = 0
	}
	return request
}

func decisionOf(answer throttle.Answer) consume.Decision {
	decision := consume.Decision{
		Verdict: verdicts[answer.Verdict], Level: answer.Node.Level, Wait: answer.Wait, Opened: answer.Opened,
		Denial: denial{answer.Node, answer.Limit}, InDoubt: answer.InDoubt,
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
		Firing: c.Event.Status == event.StatusFiring,
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
