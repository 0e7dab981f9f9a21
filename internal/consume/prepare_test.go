package consume

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// An event that comes alone is prepared while it is decided about, and what came of that is what is sent.
func TestPreparedWhileDecided(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	prepared := make(chan struct{})
	f.sink.prepare = func(e event.Event) any {
		close(prepared)
		return "of " + e.ID
	}
	f.throttle.judge = func(_ context.Context, c Candidate) (Decision, error) {
		select {
		case <-prepared:
		case <-time.After(patience):
			t.Error("the event is not prepared while it is decided about")
		}
		return f.throttle.admit(c), nil
	}
	f.event("payments", "e")
	worker := f.start(nil)
	f.awaitSettled(1)
	worker.stop()
	if got := f.sink.prepared["e"]; got != "of e" {
		t.Errorf("sent as prepared: %v, want what was prepared", got)
	}
}

// A denied event may have been prepared for nothing, and the worker takes no harm.
func TestPreparedForNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	f.sink.prepare = func(e event.Event) any { return e.ID }
	f.throttle.judge = func(context.Context, Candidate) (Decision, error) {
		return Decision{Verdict: Deny, Level: "the rule"}, nil
	}
	f.event("payments", "e")
	f.start(nil)
	f.awaitSettled(1)
	f.requireHistory("e")
	f.requireOutcomes(map[string]int{"dropped payments": 1})
}

// Many are not prepared: most of a flood is dropped.
func TestManyAreNotPrepared(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.prepare = func(e event.Event) any { return e.ID }
	batch := make([]candidate, fewCandidates+1)
	for i := range batch {
		batch[i].event.ID = fmt.Sprint(i)
	}
	w := f.newWorker(nil)
	w.sink = f.sink
	for _, n := range []int{1, fewCandidates} {
		for i, prepared := range w.prepare(batch[:n])() {
			if prepared != batch[i].event.ID {
				t.Errorf("of %d candidates, %d is prepared as %v", n, i, prepared)
			}
		}
	}
	for i, prepared := range w.prepare(batch)() {
		if prepared != nil {
			t.Errorf("of %d candidates, %d is prepared as %v", len(batch), i, prepared)
		}
	}
}
