package consume

import (
	"context"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// planner stores denied events in the room until their slots open. It plans them one by one in the order of their decisions, so they come
// back in that order. Each event holds an element of the pool.
type planner struct {
	throttle Throttle
	clock    *stream.Clock
	refusals *refusals
	mover    *mover
	settler  *settler
	pool     *pool
	queue    chan plan
	ended    chan struct{}
}

// plan is a denied event that may wait for a slot.
type plan struct {
	candidate
	ask    store.Postponement // without the longest wait
	denial *store.Denial
}

// start begins to plan, until close. The context ends calls to the throttle.
func (p *planner) start(ctx context.Context) {
	go func() {
		defer close(p.ended)
		for next := range p.queue {
			p.plan(ctx, next)
		}
	}()
}

// close waits until everything handed over is planned.
func (p *planner) close() {
	close(p.queue)
	<-p.ended
}

// add queues an event. It never waits: the queue has a place for each element of the pool. It returns false if the event may not wait for a
// slot.
func (p *planner) add(c candidate, decision *store.Decision, denial *store.Denial) bool {
	category := c.event.Category
	if decision.Wait == 0 || !p.refusals.waits(category) || !c.waited() && !p.refusals.mayWait(category) {
		return false
	}
	p.queue <- plan{candidate: c, denial: denial, ask: store.Postponement{
		Request: c.request(), Wait: decision.Wait, Path: decision.Node.Path, Limit: decision.Limit,
	}}
	return true
}

// plan stores a denied event in the room until its slot opens. It drops the event if the slot opens too late or too many events wait.
func (p *planner) plan(ctx context.Context, next plan) {
	c, deadline := next.candidate, next.entry.Since.Add(p.refusals.longestWait(next.event.Category))
	next.ask.Longest = deadline.Sub(p.clock.Now())
	verdict, in, err := p.throttle.Delay(ctx, next.ask)
	if err == nil && verdict == store.ComesBack {
		failpoint.Reach(failpoint.AfterPlan)
		p.mover.comeBack(c, in, next.denial, p.pool)
		return
	}
	defer p.pool.release(1)
	switch {
	case err != nil:
		p.settler.nak(c.message, jitter(undecidedDelay))
	case verdict == store.AlreadyWaiting:
		p.settler.settle(settlement{message: c.message, outcome: Duplicate})
	default:
		switch {
		case verdict == store.TooMany:
			p.refusals.addCrowded(c.event.Category)
		case !c.waited(): // an event that ran out of time tells nothing about younger events
			p.refusals.addLate(c.event.Category)
		}
		p.settler.settle(p.refusals.dropped(c.message, next.denial))
	}
}
