package consume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// fakeThrottle admits each event by default.
type fakeThrottle struct {
	calls     *callLog
	decideOne func(ctx context.Context, c throttle.Request) (throttle.Decision, error) // nil: admit
	full      func(category string) *throttle.Denial                                   // nil: nothing is full
	await     func(ctx context.Context) error                                          // nil: at once
	reserve   func(destination string, maxWait time.Duration) post                     // nil: now, or after the pause of the destination
	askPause  func()                                                                   // called by CheckPause; nil: nothing
	enter     func(stay throttle.Stay) bool                                            // nil: each may stay
	passed    func(at position) (int64, error)                                         // nil: nothing has vanished

	enterFails error

	delay   func(c throttle.Request, longest time.Duration) (throttle.DelayVerdict, time.Duration, error)
	planned func(c throttle.Request) (time.Duration, bool, error) // nil: nothing is

	recorded func(c throttle.Request) bool // nil: unknown

	mu         sync.Mutex
	candidates []throttle.Request
	finished   map[string]bool          // delivered events, by identity
	entered    map[string]throttle.Stay // present stays, by category and member
	mostInRoom int                      // stays at once
	unpaired   map[string]bool          // pairs that are known to be closed
	positions  []position               // arguments of Passed
	paused     map[string]time.Time
	pauses     map[string]time.Duration // the last argument of Pause
}

func (f *fakeThrottle) Full(category string) *throttle.Denial {
	if f.full == nil {
		return nil
	}
	return f.full(category)
}

func (f *fakeThrottle) Decide(ctx context.Context, candidates []throttle.Request) ([]throttle.Decision, error) {
	decisions := make([]throttle.Decision, len(candidates))
	for i, c := range candidates {
		if planned, err := f.plan(c); err != nil {
			return nil, err
		} else if planned.Verdict != 0 {
			decisions[i] = planned
			continue
		}
		f.mu.Lock()
		f.candidates = append(f.candidates, c)
		f.mu.Unlock()
		if f.decideOne == nil {
			decisions[i] = f.admit(c)
			continue
		}
		var err error
		if decisions[i], err = f.decideOne(ctx, c); err != nil {
			return nil, err
		}
	}
	return decisions, nil
}

func (f *fakeThrottle) Await(ctx context.Context) error {
	if f.await == nil {
		return ctx.Err()
	}
	return f.await(ctx)
}

func (f *fakeThrottle) Pause(_ context.Context, destination string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused[destination] = time.Now().Add(d)
	f.pauses[destination] = d
}

func (f *fakeThrottle) pause(destination string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, time.Until(f.paused[destination]))
}

// post is the answer to a reservation.
type post struct {
	wait    time.Duration
	tooLate bool // the wait exceeds maxWait
}

func (f *fakeThrottle) Reserve(_ context.Context, ask pacing.Ask) pacing.Reservation {
	next := post{wait: f.pause(ask.Channel)}
	next.tooLate = next.wait > ask.MaxWait
	if f.reserve != nil {
		next = f.reserve(ask.Channel, ask.MaxWait)
	}
	expected := next.wait
	if next.tooLate {
		expected = max(expected, ask.MaxWait+1)
	}
	return pacing.Reservation{OK: !next.tooLate, Wait: next.wait, Expected: expected}
}

func (f *fakeThrottle) Paused(destination string) time.Duration { return f.pause(destination) }

func (f *fakeThrottle) CheckPause(_ context.Context, destination string) time.Duration {
	if f.askPause != nil {
		f.askPause()
	}
	return f.pause(destination)
}

func (f *fakeThrottle) EnterRoom(_ context.Context, stays []throttle.Stay) ([]bool, error) {
	if f.enterFails != nil {
		return nil, f.enterFails
	}
	mayStay := make([]bool, len(stays))
	for i, stay := range stays {
		if mayStay[i] = f.enter == nil || f.enter(stay); mayStay[i] {
			f.mu.Lock()
			f.entered[stay.First+" "+stay.Member] = stay
			f.mostInRoom = max(f.mostInRoom, len(f.entered))
			f.mu.Unlock()
		}
	}
	return mayStay, nil
}

func (f *fakeThrottle) LeaveRoom(_ context.Context, stays []throttle.Stay) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, stay := range stays {
		name := stay.First + " " + stay.Member
		if f.entered[name].Weight <= stay.Weight { // otherwise a part of the weight stays
			delete(f.entered, name)
		}
	}
	return nil
}

func (f *fakeThrottle) Records(context.Context) throttle.Recorded { return f.recorded }

// inRoom lists the present stays.
func (f *fakeThrottle) inRoom() []throttle.Stay {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.entered))
}

func (f *fakeThrottle) KnownUnpaired(pair string, _ time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unpaired[pair]
}

func (f *fakeThrottle) LearnUnpaired(pair string, _ time.Time) {
	f.calls.add("learns %s", strings.ReplaceAll(pair, "\n", "/"))
}

// position is the progress of a consumer.
type position struct {
	consumer             string
	sequence, deliveries uint64
}

func (f *fakeThrottle) Passed(_ context.Context, consumer string, sequence, deliveries uint64) (int64, error) {
	at := position{consumer, sequence, deliveries}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.positions = append(f.positions, at)
	if f.passed == nil {
		return 0, nil
	}
	return f.passed(at)
}

func (f *fakeThrottle) Delay(_ context.Context, p throttle.Postponement) (throttle.DelayVerdict, time.Duration, error) {
	return f.delay(p.Request, p.Longest)
}

// plan answers a request about an event that may have been planned to come back.
func (f *fakeThrottle) plan(c throttle.Request) (throttle.Decision, error) {
	if f.planned == nil || !c.Again || !c.MayWait {
		return throttle.Decision{}, nil
	}
	in, planned, err := f.planned(c)
	if err != nil || !planned {
		return throttle.Decision{}, err
	}
	return throttle.Decision{Verdict: throttle.Planned, Wait: in}, nil
}

func (f *fakeThrottle) asked() []throttle.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.candidates)
}

func (f *fakeThrottle) grant(c throttle.Request) *fakeGrant {
	return &fakeGrant{id: c.ID, calls: f.calls, finish: func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		newly := !f.finished[c.ID]
		f.finished[c.ID] = true
		return newly
	}}
}

// answers sets the decision of each request.
func (f *fakeThrottle) answers(decide func(throttle.Request) throttle.Decision) {
	f.decideOne = func(_ context.Context, c throttle.Request) (throttle.Decision, error) { return decide(c), nil }
}

// denied is a denial by a rule. The next slot opens after the wait; 0 means unknown.
func denied(wait time.Duration) throttle.Decision {
	return throttle.Decision{Verdict: throttle.Denied, Node: limits.Node{Level: "the rule"}, Wait: wait}
}

// fullFor reports a full limit for a category. "" means all categories.
func fullFor(level, category string) func(string) *throttle.Denial {
	return func(of string) *throttle.Denial {
		if category != "" && of != category {
			return nil
		}
		return &throttle.Denial{Level: level}
	}
}

// always returns one decision for all events.
func always(d throttle.Decision) func(throttle.Request) throttle.Decision {
	return func(throttle.Request) throttle.Decision { return d }
}

func (f *fakeThrottle) admit(c throttle.Request) throttle.Decision {
	return throttle.Decision{Verdict: throttle.Admitted, Grant: f.grant(c)}
}

// fakeGrant logs each call.
type fakeGrant struct {
	id     string
	calls  *callLog
	finish func() bool // result of Finish; nil: true
	extend func() bool // result of Extend; nil: true
	refund func()      // called by Refund
}

// note logs a call. "too late" marks an ended context, with which a real grant could not reach Redis.
func (g *fakeGrant) note(ctx context.Context, word string) {
	if ctx.Err() != nil {
		word += " too late"
	}
	g.calls.add("%s %s", word, g.calls.shown(g.id))
}

func (g *fakeGrant) Finish(ctx context.Context, receipt string) bool {
	if receipt != "" {
		g.calls.add("keep %s %s", receipt, g.calls.shown(g.id))
	}
	g.note(ctx, "finish")
	return g.finish == nil || g.finish()
}

func (g *fakeGrant) Updated(ctx context.Context, left int) { g.note(ctx, fmt.Sprint("left ", left)) }

func (g *fakeGrant) Release(ctx context.Context, inDoubt bool) {
	if inDoubt {
		g.note(ctx, "release in doubt")
		return
	}
	g.note(ctx, "release")
}

func (g *fakeGrant) Refund(ctx context.Context) {
	if g.refund != nil {
		g.refund()
	}
	g.note(ctx, "refund")
}

func (g *fakeGrant) Extend(ctx context.Context) bool {
	g.note(ctx, "extend")
	return g.extend == nil || g.extend()
}
