package simulate

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Event is one event as an Evaluator sees it.
type Event struct {
	Number   uint64    // of the line or message
	At       time.Time // of publication, in UTC, whole microseconds
	Identity string    // see event.Event.Identity
	Derived  bool      // the producer gave no ID
	Category string
	Key      string // see event.Event.Key
	Cost     int
	Severity int  // its rank, of an event with a key
	Fires    bool // it opens the pair of its key
	Resolves bool // resolves its pair
}

// Outcome is what becomes of an event.
type Outcome int

// The outcomes.
const (
	Sent      Outcome = iota + 1
	Dropped           // a limit was full; for a resolved event, its firing event was not sent
	Duplicate         // another event with its identity was sent
	Folded            // it is counted in the message of its key
)

// Verdict is an Evaluator's answer about one event.
type Verdict struct {
	Outcome Outcome
	Level   string // of a dropped event: the rule that denied it; limits.LevelUnpaired without a pair
	Number  int64  // of a folded event: its number in its message
}

// Evaluator decides about the events of one instant, in their order, without changing them. Each call has a later instant.
type Evaluator interface {
	Evaluate(events []Event) ([]Verdict, error)
}

// Replay evaluates all events in the order of their times, and reports the outcomes. Events of one time keep the order of the input. Replay
// may be called again with another evaluator.
func (h *History) Replay(ctx context.Context, evaluator Evaluator, progress Progress) (Report, error) {
	slices.SortStableFunc(h.events, func(a, b Event) int { return a.At.Compare(b.At) })
	var total tally
	tallies := make(map[string]*tally) // by category
	reported := 0
	for start := 0; start < len(h.events); {
		end := start + 1
		for end < len(h.events) && h.events[end].At.Equal(h.events[start].At) {
			end++
		}
		batch := h.events[start:end]
		start = end
		verdicts, err := evaluator.Evaluate(batch)
		if err != nil {
			return Report{}, fmt.Errorf("evaluating events: %w", err)
		}
		for i, verdict := range verdicts {
			category := batch[i].Category
			if tallies[category] == nil {
				tallies[category] = &tally{Path: Path{Category: category}}
			}
			tallies[category].count(batch[i].At, verdict)
			total.count(batch[i].At, verdict)
		}
		if end-reported >= progressEvery {
			reported = end
			progress(int64(end), int64(len(h.events)))
			if ctx.Err() != nil {
				return Report{}, context.Cause(ctx)
			}
		}
	}
	return h.report(tallies, total), nil
}

// tally counts the outcomes of the events of one path.
type tally struct {
	Path
	quiet time.Time // time of the last sent event; before it, of the first event
	last  time.Time // the latest event
}

// count counts an event. Times never decrease.
func (t *tally) count(at time.Time, verdict Verdict) {
	if t.Seen == 0 {
		t.quiet = at
	}
	t.Seen++
	t.last = at
	switch verdict.Outcome {
	case Sent:
		t.Sent++
		t.LongestSilence = max(t.LongestSilence, at.Sub(t.quiet))
		t.quiet = at
	case Dropped:
		if t.Dropped == nil {
			t.Dropped = make(map[string]int)
		}
		t.Dropped[verdict.Level]++
	case Duplicate:
		t.Duplicate++
	case Folded:
		t.Folded++
	}
}

// path returns the counts, with the silence after the last sent event.
func (t *tally) path() Path {
	path := t.Path
	path.LongestSilence = max(path.LongestSilence, t.last.Sub(t.quiet))
	return path
}
