package consume

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// fakeThrottle admits everything unless it is told otherwise.
type fakeThrottle struct {
	journal   *diary
	decideOne func(ctx context.Context, c throttle.Request) (throttle.Decision, error) // nil: admit
	full      func(category string) *throttle.Denial                                   // nil: nothing is full
	await     func(ctx context.Context) error                                          // nil: at once
	reserve   func(destination string, maxWait time.Duration) post                     // nil: now, or when the destination has rested
	askPause  func()                                                                   // called when it is asked whether a destination is paused; nil: nothing
	enter     func(stay throttle.Stay) bool                                            // nil: all may stay
	passed    func(at position) (int64, error)                                         // nil: nothing has vanished

	enterFails error

	delay   func(c throttle.Request, longest time.Duration) (throttle.DelayVerdict, time.Duration, error)
	planned func(c throttle.Request) (time.Duration, bool, error) // nil: nothing is

	recorded func(c throttle.Request) bool // nil: that is not known

	mu         sync.Mutex
	candidates []throttle.Request
	finished   map[string]bool          // events that were delivered, by identity
	entered    map[string]throttle.Stay // stays that were entered and not left, by category and member
	mostInRoom int                      // stays at once
	unpaired   map[string]bool          // pairs that are known not to be open
	positions  []position               // that were told
	paused     map[string]time.Time
	pauses     map[string]time.Duration // what Pause was told last
}

func (f *fakeThrottle) Full(category string) *throttle.Denial {
	if f.full == nil {
		return nil
	}
	return f.full(category)
}

func (f *fakeThrottle) Decide(ctx context.Context, candidates []throttle.Request) ([]throttle.Decision, error) {
	f.mu.Lock()
	f.candidates = append(f.candidates, candidates...)
	f.mu.Unlock()
	decisions := make([]throttle.Decision, len(candidates))
	for i, c := range candidates {
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

// post is when a destination takes its next message.
type post struct {
	wait    time.Duration
	tooLate bool // beyond the maxWait
}

func (f *fakeThrottle) Reserve(_ context.Context, destination string, maxWait time.Duration) pacing.Reservation {
	next := post{wait: f.pause(destination)}
	next.tooLate = next.wait > maxWait
	if f.reserve != nil {
		next = f.reserve(destination, maxWait)
	}
	return pacing.Reservation{Wait: next.wait, OK: !next.tooLate}
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
		if f.entered[name].Weight <= stay.Weight { // else some of its weight is left
			delete(f.entered, name)
		}
	}
	return nil
}

func (f *fakeThrottle) Records(context.Context) throttle.Recorded {
	if f.recorded == nil {
		return nil
	}
	return f.recorded
}

// inRoom lists the stays that were entered and not left.
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
	f.journal.add("learns %s", strings.ReplaceAll(pair, "\n", "/"))
}

// position is how far a consumer has come, as Passed is told it.
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

func (f *fakeThrottle) Planned(_ context.Context, c throttle.Request) (time.Duration, bool, error) {
	if f.planned == nil {
		return 0, false, nil
	}
	return f.planned(c)
}

func (f *fakeThrottle) asked() []throttle.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.candidates)
}

func (f *fakeThrottle) grant(c throttle.Request) *fakeGrant {
	return &fakeGrant{id: c.ID, journal: f.journal, finish: func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		newly := !f.finished[c.ID]
		f.finished[c.ID] = true
		return newly
	}}
}

// answers has the throttle answer each request by a function of it alone.
func (f *fakeThrottle) answers(decide func(throttle.Request) throttle.Decision) {
	f.decideOne = func(_ context.Context, c throttle.Request) (throttle.Decision, error) { return decide(c), nil }
}

// denied is about an event that a rule denies, whose next slot opens after a time; 0: that is not known.
func denied(wait time.Duration) throttle.Decision {
	return throttle.Decision{Verdict: throttle.Denied, Node: limits.Node{Level: "the rule"}, Wait: wait}
}

// fullFor knows that a rule denies the events of a category, "" for all.
func fullFor(level, category string) func(string) *throttle.Denial {
	return func(of string) *throttle.Denial {
		if category != "" && of != category {
			return nil
		}
		return &throttle.Denial{Level: level}
	}
}

// always gives every event one decision.
func always(d throttle.Decision) func(throttle.Request) throttle.Decision {
	return func(throttle.Request) throttle.Decision { return d }
}

func (f *fakeThrottle) admit(c throttle.Request) throttle.Decision {
	return throttle.Decision{Verdict: throttle.Admitted, Grant: f.grant(c)}
}

// fakeGrant notes what becomes of it.
type fakeGrant struct {
	id      string
	journal *diary
	finish  func() bool // tells whether it was not delivered before; nil: it was not
	extend  func() bool // nil: it is renewed
	refund  func()      // called before the refund is noted
}

// note writes the word, and that the context had ended already, since a real grant could tell nobody then.
func (g *fakeGrant) note(ctx context.Context, word string) {
	if ctx.Err() != nil {
		word += " too late"
	}
	g.journal.add("%s %s", word, g.journal.shown(g.id))
}

func (g *fakeGrant) Finish(ctx context.Context, receipt string) bool {
	if receipt != "" {
		g.journal.add("keep %s %s", receipt, g.journal.shown(g.id))
	}
	g.note(ctx, "finish")
	return g.finish == nil || g.finish()
}

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
