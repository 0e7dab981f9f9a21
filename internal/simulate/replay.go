package simulate

import (
	"context"
	"fmt"
	"time"
)

// Event is one event as a Judge sees it.
type Event struct {
	Number   uint64    // of its line or message
	At       time.Time // when that was published
	Identity string    // see event.Event.Identity
	Derived  bool      // the producer gave no ID
	Category string
	Cost     int
	Pair     string // see event.Event.Pair
	Resolves bool   // it resolves its pair
}

// Outcome is what becomes of an event.
type Outcome int

// The outcomes.
const (
	Sent      Outcome = iota + 1
	Dropped           // some limit was full
	Duplicate         // another event with its identity was sent
	Unpaired          // nothing was sent that it resolves
)

// LevelUnpaired is the level of a resolved event that is dropped because nothing was sent that it resolves.
const LevelUnpaired = "unpaired"

// Verdict is a Judge's answer about one event.
type Verdict struct {
	Outcome Outcome
	Level   string // Dropped: the rule that denied
}

// Judge decides about events in one instant, in their order. It is asked about later and later instants, and about an event that
// is Unpaired perhaps again. The verdicts are the caller's until the next call.
type Judge interface {
	Judge(ctx context.Context, at time.Time, events []Event) ([]Verdict, error)
}

// Replay judges all events in the order of their times and reports what became of them. It may be called again, with
// another judge.
func (h *History) Replay(ctx context.Context, judge Judge, progress Progress) (Report, error) {
	h.sort()
	r := replay{History: h, tallies: make([]tally, len(h.categories))}
	told := 0
	for start := 0; start < len(h.events); {
		at, end := h.events[start].at, start+1
		for end < len(h.events) && h.events[end].at == at {
			end++
		}
		if err := r.judge(ctx, judge, start, end); err != nil {
			return Report{}, fmt.Errorf("judging events: %w", err)
		}
		if end-told >= progressEvery {
			told = end
			progress(int64(end), int64(len(h.events)))
			if ctx.Err() != nil {
				return Report{}, context.Cause(ctx)
			}
		}
		start = end
	}
	return h.report(r.tallies, r.total), nil
}

// replay is one run through a history.
type replay struct {
	*History
	tallies []tally
	total   tally

	batch []Event // those that are judged now
}

// judge has the events of one instant judged.
func (r *replay) judge(ctx context.Context, judge Judge, start, end int) error {
	r.batch = r.batch[:0]
	for _, e := range r.events[start:end] {
		r.tallies[e.category].see(e.at)
		r.total.see(e.at)
		r.batch = append(r.batch, Event{
			Number: e.number, At: time.UnixMicro(e.at), Identity: e.identity, Derived: e.derived, Category: r.categories[e.category],
			Cost: int(e.cost), Pair: e.pair, Resolves: e.resolves,
		})
	}
	at := r.events[start].at
	verdicts, err := judge.Judge(ctx, time.UnixMicro(at), r.batch)
	if err != nil {
		return err
	}
	for i, verdict := range verdicts {
		if verdict.Outcome == Unpaired {
			verdict = Verdict{Outcome: Dropped, Level: LevelUnpaired}
		}
		r.tallies[r.events[start+i].category].end(at, verdict)
		r.total.end(at, verdict)
	}
	return nil
}

// tally counts what became of the events of one path. Times are microseconds.
type tally struct {
	seen, sent, duplicate int
	dropped               map[string]int // by level

	quiet   int64 // since when nothing was sent: the latest message, or the first event
	last    int64 // the latest event
	silence int64 // the longest silence that has ended
}

// see counts an event.
func (t *tally) see(at int64) {
	if t.seen == 0 {
		t.quiet = at
	}
	t.seen++
	t.last = at
}

// end counts what became of an event that was seen, at that time or earlier.
func (t *tally) end(at int64, verdict Verdict) {
	switch verdict.Outcome {
	case Sent:
		t.sent++
		t.silence = max(t.silence, at-t.quiet)
		t.quiet = at
	case Dropped:
		if t.dropped == nil {
			t.dropped = make(map[string]int)
		}
		t.dropped[verdict.Level]++
	case Duplicate:
		t.duplicate++
	case Unpaired: // it has not ended
	}
}

func (t *tally) path(category string) Path {
	silence := max(t.silence, t.last-t.quiet)
	return Path{
		Category: category, Seen: t.seen, Sent: t.sent, Duplicate: t.duplicate, Dropped: t.dropped,
		LongestSilence: time.Duration(silence) * time.Microsecond,
	}
}
