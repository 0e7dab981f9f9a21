package consume

import (
	"context"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/openers"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// pairPatience is how long an event that resolves another event waits for that event to be stored.
const pairPatience = 2 * time.Second

// Further waits of a resolved event in the room: half its age, within these bounds.
const (
	shortestPairWait = 500 * time.Millisecond
	longestPairWait  = 30 * time.Second
)

// pairs finds out whether an undecided message may still open the pair of a resolved event. Its methods may be called concurrently.
type pairs struct {
	streams  *stream.Client
	reader   *received.Reader
	known    Known
	refusals *outcome.Refusals
	metrics  outcome.EventMetrics

	openers *openers.Search // for undecided messages that may open a pair
	begun   quota           // of the resolved events that begin to wait for such messages
}

// comesBackLate is how much later than planned an event may come back that waits for a message of its key, before a resolved event overtakes it.
const comesBackLate = 2 * time.Second

// letFold lets a decision fold an event with a key into a message of its key, if the settings have folds for its category or the key may be
// flapping. With folds, an event without a status has a pair too.
func (p *pairs) letFold(c received.Candidate, request *store.Request) {
	within := p.reader.Fold(c.Event.Category)
	counts := p.reader.Flaps && request.Pair != "" && !c.Entry.IsReport()
	if within == 0 && !counts || c.Event.Key == "" || request.Cost == 0 {
		return
	}
	if request.Fold.Counts = counts; request.Resolves {
		return
	}
	request.Pair = c.Event.Keyed()
	request.Fold.Within, request.Fold.ComesBack = within, p.goalOf(c).In+comesBackLate
}

// goalOf returns how long an event waits in the room for another event of its key before the next request about it.
func (p *pairs) goalOf(c received.Candidate) move.Goal {
	wait := min(max(p.streams.Clock.Since(c.Entry.Since)/2, shortestPairWait), longestPairWait)
	return move.Goal{Reason: room.Pair, In: wait, Searched: openers.Reach{Until: c.Entry.Until, Behind: c.Entry.Behind}}
}

type waiting struct {
	received.Candidate
	goal move.Goal
}

// sort decides what becomes of resolved events without an open pair. An event waits in the room for pairPatience. If the quota of its first
// level is used up, the event is dropped instead. After pairPatience, the event waits until all earlier messages that may open its pair are
// decided. If the pair still is not open, the event is dropped.
//
// Another worker may decide after the throttle's answer and before the look at the streams. So the worker asks the throttle once more, and the
// second answer counts.
func (p *pairs) sort(ctx context.Context, events []received.Candidate) (waits []waiting, again []received.Candidate, dropped []outcome.Settlement) {
	now := p.streams.Clock.Earliest(time.Now())
	end := sync.OnceValue(func() uint64 { return p.openers.End(ctx) })
	for _, c := range events {
		first := event.FirstLevel(c.Event.Category)
		if c.Entry.Reason != room.Pair && (p.refusals.Crowded(room.Pair, first) || !p.begun.take(first, time.Now())) {
			dropped = append(dropped, p.refusals.DropCrowded(c.Message, room.Pair))
			continue
		}
		to := p.goalOf(c)
		patience := pairPatience - p.reader.LeastAge(c.Message)
		switch {
		case to.Searched.Until == 0 && patience > 0:
			to.In = patience
		case p.openers.AreDecided(ctx, &to.Searched, end):
			c.Certain = true
			if c.Entry.Until == 0 {
				c.DecidedUpTo = now
			}
			again = append(again, c)
			continue
		}
		waits = append(waits, waiting{c, to})
	}
	return waits, again, dropped
}

// neverOpened returns the settlement of a resolved event whose pair certainly never opens for it.
func (p *pairs) neverOpened(c received.Candidate, decision *store.Decision) outcome.Settlement {
	p.metrics.Resolved("unpaired")
	if !c.DecidedUpTo.IsZero() && !decision.Awaits {
		p.known.LearnUnpaired(c.Event.Pair(), c.DecidedUpTo)
	}
	return p.refusals.Dropped(c.Message, store.DeniedUnpaired)
}

// mostBegun is how many resolved events of one first level, without an open pair, a worker lets begin to wait in the room within
// pairPatience. Each of them costs JetStream a schedule, two messages and their removal.
const mostBegun = 1000

// quota bounds how many events of each first level begin to wait within a period.
type quota struct {
	most   int
	period time.Duration

	mu    sync.Mutex
	until time.Time      // when the counts are reset
	begun map[string]int // by first level
}

// take counts an event that begins to wait. It returns false if the quota of its first level is used up for this period.
func (q *quota) take(first string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !now.Before(q.until) {
		q.until, q.begun = now.Add(q.period), make(map[string]int)
	}
	if q.begun[first] >= q.most {
		return false
	}
	q.begun[first]++
	return true
}
