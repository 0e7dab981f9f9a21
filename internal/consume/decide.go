package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Throttle decides which events are delivered: a part of [throttle.Limiter]. Its methods may be called concurrently.
type Throttle interface {
	// Decide returns a decision for each request. After an error, nothing is known to be decided. Await returns when a retry is worthwhile.
	Decide(ctx context.Context, requests []store.Request) ([]store.Decision, error)
	Await(ctx context.Context) error

	Delayer
}

// decider decides candidates in batches, and passes each event on. Only receive and sortUnpaired use it.
type decider struct {
	incoming  chan *message
	intake    *intake
	throttle  Throttle
	pool      *pool
	refusals  *refusals
	pairs     *pairs
	folds     *foldSettler
	planner   *planner
	mover     *mover
	settler   *settler
	reporter  *reporter
	deliverer *deliverer
}

// notDecided handles a failed decision: it sends a nak for each candidate. If the worker has ended, it sends none and returns false.
func (d *decider) notDecided(l life, candidates []candidate) bool {
	d.pool.release(len(candidates))
	if l.waiting.Err() != nil {
		return false
	}
	for _, c := range candidates {
		d.settler.nak(c.message, jitter(undecidedDelay))
	}
	return true
}

// awaitOther makes an event wait while another worker delivers it. An event that waits for another event of its key waits in the room.
func (d *decider) awaitOther(l life, c candidate, decision *store.Decision) {
	if decision.Changed > 0 {
		d.pool.run(func() { defer d.pool.release(1); d.folds.updater.reportAgain(l, c, decision.Changed) })
		return
	}
	if c.event.Resolves() || decision.Awaits {
		to := d.pairs.goalOf(c)
		to.in, to.fires = min(decision.Wait, to.in), !c.event.Resolves()
		d.mover.hold(c, to, d.pool.hold(1))
		return
	}
	d.settler.nak(c.message, decision.Wait+jitter(50*time.Millisecond))
	d.pool.release(1)
}

// sortUnpaired handles resolved events without an open pair: each of them waits in the room, is dropped, or is decided once more.
func (d *decider) sortUnpaired(l life, events []candidate) {
	waits, again, dropped := d.pairs.sort(l.working, events)
	for _, c := range waits {
		d.mover.hold(c.candidate, c.goal, nil)
	}
	d.settler.settle(dropped...)
	for _, m := range d.decideInParts(l, again) {
		d.settler.nak(m, 0)
	}
}
