package simulate

import (
	"context"
	"fmt"
	"time"
)

// Event is one event as a Judge sees it.
type Event struct {
	Number   uint64 // its place among all of them, from 1
	ID       string // "" for an event without one of its own
	Category string
	Cost     int
}

// Outcome is what becomes of an event.
type Outcome int

// The outcomes.
const (
	Sent      Outcome = iota + 1
	Dropped           // some limit was full
	Duplicate         // another event with its ID was sent
)

// Verdict is a Judge's answer about one event.
type Verdict struct {
	Outcome Outcome
	Level   string // Dropped: the rule that denied
}

// Judge decides about the events of one instant, in their order. It is asked about later and later instants. The
// verdicts are the caller's until the next call.
type Judge interface {
	Judge(ctx context.Context, at time.Time, events []Event) ([]Verdict, error)
}

// Replay judges all events in the order of their times and reports what became of them. It may be called again, with
// another judge.
func (h *History) Replay(ctx context.Context, judge Judge, progress Progress) (Report, error) {
	h.sort()
	var (
		tallies = make([]tally, len(h.categories))
		total   tally
		batch   []Event
		told    int
	)
	for start := 0; start < len(h.events); {
		at, end := h.events[start].at, start+1
		for end < len(h.events) && h.events[end].at == at {
			end++
		}
		batch = h.appendEvents(batch[:0], start, end)
		verdicts, err := judge.Judge(ctx, time.UnixMicro(at), batch)
		if err != nil {
			return Report{}, fmt.Errorf("judging events: %w", err)
		}
		for i, verdict := range verdicts {
			tallies[h.events[start+i].category].count(at, verdict)
			total.count(at, verdict)
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
	return h.report(tallies, total), nil
}

func (h *History) appendEvents(batch []Event, start, end int) []Event {
	for i, e := range h.events[start:end] {
		batch = append(batch, Event{
			Number:   uint64(start + i + 1), //nolint:gosec // an index
			ID:       e.id,
			Category: h.categories[e.category],
			Cost:     int(e.cost),
		})
	}
	return batch
}

// tally counts what became of the events of one path. Times are microseconds.
type tally struct {
	seen, sent, duplicate int
	dropped               map[string]int // by level

	quiet   int64 // since when nothing was sent: the latest message, or the first event
	last    int64 // the latest event
	silence int64 // the longest silence that has ended
}

func (t *tally) count(at int64, verdict Verdict) {
	if t.seen == 0 {
		t.quiet = at
	}
	t.seen++
	t.last = at
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
	}
}

func (t *tally) path(category string) Path {
	silence := max(t.silence, t.last-t.quiet)
	return Path{
		Category: category, Seen: t.seen, Sent: t.sent, Duplicate: t.duplicate, Dropped: t.dropped,
		LongestSilence: time.Duration(silence) * time.Microsecond,
	}
}
