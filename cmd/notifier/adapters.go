package main

import (
	"context"
	"errors"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
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

func (t throttleOf) Paused(destination string) time.Duration { return t.gate.Paused(destination) }

func (t throttleOf) Decide(ctx context.Context, candidates []consume.Candidate) ([]consume.Decision, error) {
	requests := make([]throttle.Request, len(candidates))
	for i, c := range candidates {
		requests[i] = throttle.Request{
			ID:       c.Event.ID,
			Derived:  c.Event.Derived,
			Message:  throttle.Message{Stream: c.Stream, Sequence: c.Sequence, Stored: c.Stored},
			Category: c.Event.Category,
			Cost:     c.Event.Cost,
		}
		if c.LookUp {
			requests[i].Cost = 0
		}
	}
	answers, err := t.gate.Decide(ctx, requests)
	if err != nil {
		return nil, err
	}
	decisions := make([]consume.Decision, len(answers))
	for i, answer := range answers {
		decisions[i] = consume.Decision{Verdict: verdicts[answer.Verdict], Level: answer.Node.Level, Wait: answer.Wait}
		if answer.Grant != nil {
			decisions[i].Grant = answer.Grant
		}
	}
	return decisions, nil
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
}

// Send is one attempt, its failure in the consumer's words.
func (s sinkOf) Send(ctx context.Context, e event.Event) *consume.Failure {
	err := s.Sink.Send(ctx, e)
	if err == nil {
		return nil
	}
	var failure *sink.Error
	if !errors.As(err, &failure) {
		return &consume.Failure{Class: consume.Uncertain, Err: err}
	}
	return &consume.Failure{Class: classes[failure.Class], Code: failure.Code, RetryAfter: failure.RetryAfter, Err: failure}
}

// classes maps the sink's classes to what the consumer does about them.
var classes = map[sink.Class]consume.FailureClass{
	sink.Transient:     consume.Transient,
	sink.Unknown:       consume.Uncertain,
	sink.RateLimited:   consume.RateLimited,
	sink.Rejected:      consume.Rejected,
	sink.Misconfigured: consume.Misconfigured,
}
