package consume

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// fakeThrottle admits each event by default.
type fakeThrottle struct {
	calls     *callLog
	decideOne func(ctx context.Context, c store.Request) (store.Decision, error) // nil: admit
	await     func(ctx context.Context) error                                    // nil: at once
	delay     func(c store.Request, longest time.Duration) (store.DelayVerdict, time.Duration, error)
	planned   func(c store.Request) (time.Duration, bool, error) // nil: nothing is

	mu         sync.Mutex
	candidates []store.Request
	finished   map[string]bool // delivered events, by identity
	released   map[string]bool // events whose grant was released, by identity: whether in doubt
}

func (f *fakeThrottle) Decide(ctx context.Context, candidates []store.Request) ([]store.Decision, error) {
	decisions := make([]store.Decision, len(candidates))
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

// Rules returns limits that never change.
func (f *fakeThrottle) Rules() *store.Rules { return unlimited }

var unlimited = func() *store.Rules {
	tree, _ := limits.NewTree(limits.Plan{}) // a plan without rules is valid
	return store.Compile(limits.Ruleset{Tree: tree, Position: limits.Position{Generation: 1, Revision: 2}})
}()

func (f *fakeThrottle) Await(ctx context.Context) error {
	if f.await == nil {
		return ctx.Err()
	}
	return f.await(ctx)
}

func (f *fakeThrottle) Delay(_ context.Context, p store.Postponement) (store.DelayVerdict, time.Duration, error) {
	if f.delay == nil {
		return store.TooLate, 0, nil
	}
	return f.delay(p.Request, p.Longest)
}

// plan answers a request about an event that may have been planned to come back.
func (f *fakeThrottle) plan(c store.Request) (store.Decision, error) {
	if f.planned == nil || !c.Again || !c.MayWait {
		return store.Decision{}, nil
	}
	in, planned, err := f.planned(c)
	if err != nil || !planned {
		return store.Decision{}, err
	}
	return store.Decision{Verdict: store.Planned, Wait: in}, nil
}

func (f *fakeThrottle) asked() []store.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.candidates)
}

func (f *fakeThrottle) grant(c store.Request) *fakeGrant {
	finish := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		newly := !f.finished[c.ID]
		f.finished[c.ID] = true
		return newly
	}
	release := func(inDoubt bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.released[c.ID] = f.released[c.ID] || inDoubt
	}
	return &fakeGrant{id: c.ID, calls: f.calls, finish: finish, release: release}
}

// answers sets the decision of each request.
func (f *fakeThrottle) answers(decide func(store.Request) store.Decision) {
	f.decideOne = func(_ context.Context, c store.Request) (store.Decision, error) { return decide(c), nil }
}

// denied is a denial by a rule. The next slot opens after the wait; 0 means unknown.
func denied(wait time.Duration) store.Decision {
	return store.Decision{Verdict: store.Denied, Node: limits.Node{Level: "the rule"}, Limit: limits.Limit{Count: 10, Window: time.Hour}, Wait: wait}
}

// fullFor reports a full limit for a category. "" means all categories.
func fullFor(level, category string) func(string) *store.Denial {
	return func(of string) *store.Denial {
		if category != "" && of != category {
			return nil
		}
		return &store.Denial{Level: level}
	}
}

// always returns one decision for all events.
func always(d store.Decision) func(store.Request) store.Decision {
	return func(store.Request) store.Decision { return d }
}

func (f *fakeThrottle) admit(c store.Request) store.Decision {
	f.mu.Lock()
	inDoubt, released := f.released[c.ID]
	f.mu.Unlock()
	if released && c.Cost == 0 { // a look-up takes no lease
		return store.Decision{Verdict: store.Unknown}
	}
	if released {
		return store.Decision{Verdict: store.Reclaimed, Grant: f.grant(c), InDoubt: inDoubt}
	}
	return store.Decision{Verdict: store.Admitted, Grant: f.grant(c)}
}

// fakeGrant logs each call.
type fakeGrant struct {
	id      string
	calls   *callLog
	finish  func() bool                   // result of Finish; nil: true
	extend  func() bool                   // result of Extend; nil: true
	begin   func() (held bool, err error) // called by SetWaiting at the end of a wait; nil: held
	waits   atomic.Bool                   // set by SetWaiting
	waited  atomic.Bool                   // it has been set to true
	refund  func()                        // called by Refund
	owed    chan struct{}                 // result of Finish and Refund
	release func(inDoubt bool)            // called by Release
}

// note logs a call. "too late" marks an ended context, with which a real grant could not reach Redis.
func (g *fakeGrant) note(ctx context.Context, word string) {
	if ctx.Err() != nil {
		word += " too late"
	}
	g.calls.add("%s %s", word, g.calls.shown(g.id))
}

func (g *fakeGrant) Finish(ctx context.Context, receipt string) (newly bool, owed <-chan struct{}) {
	if receipt != "" {
		g.calls.add("keep %s %s", receipt, g.calls.shown(g.id))
	}
	g.note(ctx, "finish")
	return g.finish == nil || g.finish(), g.owed
}

func (g *fakeGrant) KeepPair() { g.calls.add("keep the pair of %s", g.calls.shown(g.id)) }

func (g *fakeGrant) Release(ctx context.Context, inDoubt bool) {
	if g.release != nil {
		g.release(inDoubt)
	}
	if inDoubt {
		g.note(ctx, "release in doubt")
		return
	}
	g.note(ctx, "release")
}

func (g *fakeGrant) Refund(ctx context.Context) (owed <-chan struct{}) {
	if g.refund != nil {
		g.refund()
	}
	g.note(ctx, "refund")
	return g.owed
}

func (g *fakeGrant) Extend(ctx context.Context) bool {
	g.note(ctx, "extend")
	return g.extend == nil || g.extend()
}

// SetWaiting is not logged: most tests do not decide how long a delivery waits.
func (g *fakeGrant) SetWaiting(_ context.Context, waits bool) (held bool, err error) {
	g.waits.Store(waits)
	g.waited.CompareAndSwap(false, waits)
	if waits || g.begin == nil {
		return true, nil
	}
	return g.begin()
}
