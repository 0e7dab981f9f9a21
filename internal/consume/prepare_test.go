package consume

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// An event that comes alone is prepared while it is decided about, and what came of that is what is sent.
func TestPreparedWhileDecided(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	prepared := make(chan struct{})
	f.sink.prepare = func(e event.Event) string {
		close(prepared)
		return "of " + e.ID
	}
	f.throttle.answers(func(c throttle.Request) throttle.Decision {
		select {
		case <-prepared:
		case <-time.After(patience):
			t.Error("the event is not prepared while it is decided about")
		}
		return f.throttle.admit(c)
	})
	f.event("payments", "order-1")
	worker := f.start(nil)
	f.awaitSettled(1)
	worker.stop()
	testkit.Equal(t, f.sink.prepared["order-1"], "of order-1", "sent as prepared, want what was prepared")
}

// Many are not prepared: most of a flood is dropped.
func TestManyAreNotPrepared(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.prepare = func(e event.Event) string { return e.ID }
	batch := make([]candidate, fewCandidates+1)
	for i := range batch {
		batch[i].event.ID = fmt.Sprint(i)
	}
	w := f.newWorker(nil)
	w.sink = f.sink
	for _, n := range []int{1, fewCandidates} {
		prepared := w.prepare(batch[:n])
		for i, c := range batch[:n] {
			if d := prepared(i); d.Mention != c.event.ID || d.Event.ID != c.event.ID {
				t.Errorf("of %d candidates, %d is prepared as %+v", n, i, d)
			}
		}
	}
	unprepared := w.prepare(batch)
	for i, c := range batch {
		if d := unprepared(i); d.Mention != "" || d.Event.ID != c.event.ID {
			t.Errorf("of %d candidates, %d is prepared as %+v", len(batch), i, d)
		}
	}
}
