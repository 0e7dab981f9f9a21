package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Delayer plans when a denied event returns: a part of [throttle.Limiter]. Its methods may be called concurrently.
type Delayer interface {
	Rules
	Delay(ctx context.Context, p store.Postponement) (store.DelayVerdict, time.Duration, error)
}

// planner stores denied events in the room until their slots open. It plans them one by one in the order of their decisions, so they come
// back in that order. Each event holds an element of the pool.
type planner struct {
	throttle Delayer
	clock    *stream.Clock
	refusals *refusals
	mover    *mover
	settler  *settler
	recounts *stay.Recounter
	pool     *pool
	queue    *queue[plan] // has a place for each element of the pool
}

// plan is a denied event that may wait for a slot.
type plan struct {
	candidate
	ask    store.Postponement // without the longest wait
	denial *store.Denial      // nil: it has expired, or an operator drops it
	rules  *store.Rules       // by which it was denied, or older ones; nil: the event is to leave its queues and its pair, and to end
}

func newPlanner(throttle Delayer, mover *mover, recounts *stay.Recounter, pool *pool) *planner {
	return &planner{
		throttle: throttle, clock: &mover.streams.Clock, refusals: mover.refusals, mover: mover, settler: mover.settler, recounts: recounts, pool: pool,
		queue: newQueue[plan](cap(pool.elements)),
	}
}

// start begins to plan. The context ends calls to the throttle.
func (p *planner) start(ctx context.Context) {
	p.queue.start(1, func(next plan) { p.plan(ctx, next) })
}

// close waits until all events are planned. No event is added afterwards.
func (p *planner) close() { p.queue.close() }

// add queues an event. It returns false if the event may not wait for a slot. It never waits for a place in the queue.
func (p *planner) add(c candidate, decision *store.Decision, denial *store.Denial, rules *store.Rules) bool {
	category := c.event.Category
	if decision.Wait == 0 || !p.refusals.waits(category) || !c.waited() && !p.refusals.mayWait(category) {
		return false
	}
	p.queue.items <- plan{candidate: c, denial: denial, rules: rules, ask: store.Postponement{
		Request: c.request(), Wait: decision.Wait, Node: decision.Node, Limit: decision.Limit,
		Weight: stay.Weight(room.Kept(c.Header, c.Data)),
	}}
	return true
}

// forget queues an event that ends without a plan after it has waited for a slot: it leaves its queues before it ends, and its resolved
// event no longer waits for it. Without a denial, the event has expired or an operator drops it. For others it returns false.
func (p *planner) forget(c candidate, denial *store.Denial) bool {
	if !c.waited() || denial != nil && denial.Level == store.LevelClosed { // Redis is unavailable
		return false
	}
	ask := store.Postponement{Request: c.request()}
	ask.Cost = c.event.Cost // it names the event in its queues
	p.queue.items <- plan{candidate: c, denial: denial, ask: ask}
	return true
}

// plan stores a denied event in the room until its slot opens. It drops the event if the slot opens too late or too many events wait.
func (p *planner) plan(ctx context.Context, next plan) {
	c, deadline := next.candidate, next.entry.Since.Add(p.refusals.delay(next.event.Category))
	if next.rules != nil {
		next.ask.Longest = deadline.Sub(p.clock.Now())
	}
	verdict, in, err := p.throttle.Delay(ctx, next.ask)
	if err != nil {
		p.mover.hold(c, p.unplanned(c), p.pool.hold(1))
		return
	}
	if verdict == store.ComesBack || verdict == store.TooMany {
		p.recounts.Add(event.FirstLevel(c.event.Category))
	}
	if verdict == store.ComesBack {
		failpoint.Reach(failpoint.AfterPlan)
		p.mover.hold(c, goal{reason: room.Slot, in: in, denial: next.denial, limits: next.rules.Plan(c.event.Category)}, p.pool.hold(1))
		return
	}
	defer p.pool.release(1)
	switch verdict {
	case store.AlreadyWaiting:
		p.settler.settle(settlement{message: c.message, outcome: journal.Duplicate})
		return
	case store.TooMany:
		p.refusals.addCrowded(c.event.Category)
	default:
		if !c.waited() && next.ask.Node.Key == "" { // neither an event that ran out of time nor a full key says anything about other events
			p.refusals.addLate(c.event.Category)
		}
	}
	if next.denial == nil {
		p.settler.settle(withoutRecord(c.message))
		return
	}
	dropped := p.refusals.dropped(c.message, next.denial)
	if verdict == store.TooLate && next.rules != nil {
		dropped.refused = journal.TooLate
	}
	p.settler.settle(dropped)
}

// unplanned returns the goal of an event that cannot be planned, because Redis is unavailable or refuses a key. A nak would leave the event in
// doubt: its next delivery does not show that this one has posted nothing. An event that has waited keeps its places in the queues.
func (p *planner) unplanned(c candidate) goal {
	to := goal{reason: room.Redis, in: jitter(10 * undecidedDelay)}
	if c.waited() {
		to.reason, to.limits = room.Slot, c.entry.Limits
	}
	return to
}
