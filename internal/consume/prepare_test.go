package consume

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestPreparedWhileDecided prepares a single event during its decision. The sink gets the prepared delivery.
func TestPreparedWhileDecided(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	prepared := make(chan struct{})
	f.sink.prepare = func(e event.Event) string {
		close(prepared)
		return "of " + e.ID
	}
	f.throttle.answers(func(c store.Request) store.Decision {
		select {
		case <-prepared:
		case <-time.After(patience):
			t.Error("got a decision without a preparation, want both at once")
		}
		return f.throttle.admit(c)
	})
	f.event("payments", "order-1")
	worker := f.start(nil)
	f.awaitSettled(1)
	worker.stop()
	testkit.Equal(t, f.sink.prepared["order-1"], "of order-1", "prepared mention")
}

// TestSlowPreparationDelaysNoOther prepares an event for ever. Events that come later are decided and sent.
func TestSlowPreparationDelaysNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	prepared, preparing := newGate(t), newGate(t)
	f.sink.prepare = func(e event.Event) string {
		if e.Category == "payments" {
			preparing.open()
			<-prepared.opened
		}
		return ""
	}
	f.start(nil)
	t.Cleanup(prepared.open) // before the worker's own cleanup
	f.event("payments", "order-1")
	f.eventually("it is prepared", preparing.isOpen)
	f.event("orders", "order-2")
	f.eventually("the other event ends", func() bool { return f.metrics.ended() == 1 })
	f.requireOutcomes(map[string]int{"sent orders": 1})
	prepared.open()
	f.awaitSettled(2)
	f.requireOutcomes(map[string]int{"sent orders": 1, "sent payments": 1})
}

// TestManyAreNotPrepared prepares no large batch, because most of a flood is dropped.
func TestManyAreNotPrepared(t *testing.T) {
	t.Parallel()
	v := &deliverer{doubts: &doubts{}, sink: &fakeSink{prepare: func(e event.Event) string { return e.ID }}}
	batch := make([]candidate, fewCandidates+1)
	for i := range batch {
		batch[i].message = &message{from: new(pullRequest), entry: new(room.Entry), meta: new(nats.MsgMetadata)}
		batch[i].event.ID = fmt.Sprint(i)
	}
	for i, p := range v.prepare(batch[:fewCandidates]) {
		testkit.Equal(t, p.result().Mention, batch[i].event.ID, "prepared mention")
	}
	for _, p := range v.prepare(batch) {
		testkit.Equal(t, p, nil, "a preparation in a large batch")
	}
}
