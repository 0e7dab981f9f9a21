package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/update"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Throttle decides which events are delivered: a part of [throttle.Limiter]. Its methods may be called concurrently.
type Throttle interface {
	// Decide returns a decision for each request. After an error, nothing is known to be decided. Await returns when a retry is worthwhile.
	Decide(ctx context.Context, requests []store.Request) ([]store.Decision, error)
	Await(ctx context.Context) error

	move.Delayer
}

// decider decides candidates in batches, and passes each event on. Only receive and sortUnpaired use it.
type decider struct {
	incoming  chan *received.Message
	intake    *intake
	throttle  Throttle
	pool      *stage.Pool
	refusals  *outcome.Refusals
	pairs     *pairs
	folds     *update.FoldSettler
	planner   *move.Planner
	mover     *move.Mover
	settler   *outcome.Settler
	reporter  *outcome.Reporter
	deliverer *deliverer
}

// notDecided handles a failed decision: it sends a nak for each candidate. If the worker has ended, it sends none and returns false.
func (d *decider) notDecided(l stage.Life, candidates []received.Candidate) bool {
	d.pool.Release(len(candidates))
	if l.Waiting.Err() != nil {
		return false
	}
	for _, c := range candidates {
		d.settler.Nak(c.Message, stage.Jitter(stage.UndecidedDelay))
	}
	return true
}

// awaitOther makes an event wait while another worker delivers it. An event that waits for another event of its key waits in the room.
func (d *decider) awaitOther(l stage.Life, c received.Candidate, decision *store.Decision) {
	if decision.Changed > 0 {
		d.pool.Run(func() { defer d.pool.Release(1); d.folds.Updater.ReportAgain(l, c, decision.Changed) })
		return
	}
	if c.Event.Resolves() || decision.Awaits {
		to := d.pairs.goalOf(c)
		to.In, to.Fires = min(decision.Wait, to.In), !c.Event.Resolves()
		d.mover.Hold(c, to, d.pool.Hold(1))
		return
	}
	d.settler.Nak(c.Message, decision.Wait+stage.Jitter(50*time.Millisecond))
	d.pool.Release(1)
}

// sortUnpaired handles resolved events without an open pair: each of them waits in the room, is dropped, or is decided once more.
func (d *decider) sortUnpaired(l stage.Life, events []received.Candidate) {
	waits, again, dropped := d.pairs.sort(l.Working, events)
	for _, c := range waits {
		d.mover.Hold(c.Candidate, c.goal, nil)
	}
	d.settler.Settle(dropped...)
	for _, m := range d.decideInParts(l, again) {
		d.settler.Nak(m, 0)
	}
}
