package move

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
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
	outcome.Rules
	Delay(ctx context.Context, p store.Postponement) (store.DelayVerdict, time.Duration, error)
}

// Planner stores denied events in the room until their slots open. It plans them one by one in the order of their decisions, so they come
// back in that order. Each event holds an element of the pool.
type Planner struct {
	throttle Delayer
	clock    *stream.Clock
	refusals *outcome.Refusals
	mover    *Mover
	settler  *outcome.Settler
	recounts *stay.Recounter
	pool     *stage.Pool
	queue    *stage.Queue[plan] // has a place for each element of the pool
}

// plan is a denied event that may wait for a slot.
type plan struct {
	candidate received.Candidate
	ask       store.Postponement // without the longest wait
	denial    *store.Denial      // nil: the event is to leave its queues and its pair, and to end
	rules     *store.Rules       // by which it was denied, or older ones
	end       outcome.Settlement // without a denial
}

// NewPlanner returns a planner that does not run yet. It has recounts look at the first levels whose events wait.
func NewPlanner(throttle Delayer, mover *Mover, recounts *stay.Recounter, pool *stage.Pool) *Planner {
	return &Planner{
		throttle: throttle, clock: &mover.streams.Clock, refusals: mover.refusals, mover: mover, settler: mover.settler, recounts: recounts, pool: pool,
		queue: stage.NewQueue[plan](pool.Size()),
	}
}

// Start begins to plan. The context ends calls to the throttle.
func (p *Planner) Start(ctx context.Context) {
	p.queue.Start(1, func(next plan) { p.plan(ctx, next) })
}

// Close waits until all events are planned. No event is added afterwards.
func (p *Planner) Close() { p.queue.Close() }

// Add queues an event. It returns false if the event may not wait for a slot. It never waits for a place in the queue.
func (p *Planner) Add(c received.Candidate, decision *store.Decision, denial *store.Denial, rules *store.Rules) bool {
	category := c.Event.Category
	if decision.Wait == 0 || !p.refusals.Waits(category) || !c.Waited() && !p.refusals.MayWait(category) {
		return false
	}
	p.queue.Add(plan{candidate: c, denial: denial, rules: rules, ask: store.Postponement{
		Request: c.Request(), Wait: decision.Wait, Node: decision.Node, Limit: decision.Limit,
		Weight: stay.Weight(room.Kept(c.Header, c.Data)),
	}})
	return true
}

// Forget queues an event that ends without a plan after it has waited for a slot: it leaves its queues before it ends, and its resolved
// event no longer waits for it. For others it returns false.
func (p *Planner) Forget(c received.Candidate, end outcome.Settlement) bool {
	if !c.Waited() || end.Denial != nil && end.Denial.Level == store.LevelClosed { // Redis is unavailable
		return false
	}
	ask := store.Postponement{Request: c.Request()}
	ask.Cost = c.Event.Cost // it names the event in its queues
	p.queue.Add(plan{candidate: c, ask: ask, end: end})
	return true
}

// plan stores a denied event in the room until its slot opens. It drops the event if the slot opens too late or too many events wait.
func (p *Planner) plan(ctx context.Context, next plan) {
	c := next.candidate
	deadline := c.Entry.Since.Add(p.refusals.Delay(c.Event.Category))
	if next.denial != nil {
		next.ask.Longest = deadline.Sub(p.clock.Now())
	}
	verdict, in, err := p.throttle.Delay(ctx, next.ask)
	if err != nil {
		p.mover.Hold(c, p.unplanned(c), p.pool.Hold(1))
		return
	}
	if verdict == store.ComesBack || verdict == store.TooMany {
		p.recounts.Add(event.FirstLevel(c.Event.Category))
	}
	if verdict == store.ComesBack {
		failpoint.Reach(failpoint.AfterPlan)
		p.mover.Hold(c, Goal{Reason: room.Slot, In: in, denial: next.denial, limits: next.rules.Plan(c.Event.Category)}, p.pool.Hold(1))
		return
	}
	defer p.pool.Release(1)
	if next.denial == nil {
		p.settler.Settle(next.end)
		return
	}
	switch verdict {
	case store.AlreadyWaiting:
		p.settler.Settle(outcome.Settlement{Message: c.Message, Outcome: journal.Duplicate})
		return
	case store.TooMany:
		p.refusals.AddCrowded(c.Event.Category)
	default:
		if !c.Waited() && next.ask.Node.Key == "" { // neither an event that ran out of time nor a full key says anything about other events
			p.refusals.AddLate(c.Event.Category)
		}
	}
	dropped := p.refusals.Dropped(c.Message, next.denial)
	if verdict == store.TooLate {
		dropped.Refused = journal.TooLate
	}
	p.settler.Settle(dropped)
}

// unplanned returns the goal of an event that cannot be planned, because Redis is unavailable or refuses a key. A nak would leave the event in
// doubt: its next delivery does not show that this one has posted nothing. An event that has waited keeps its places in the queues.
func (p *Planner) unplanned(c received.Candidate) Goal {
	to := Goal{Reason: room.Redis, In: stage.Jitter(10 * stage.UndecidedDelay)}
	if c.Waited() {
		to.Reason, to.limits = room.Slot, c.Entry.Limits
	}
	return to
}
