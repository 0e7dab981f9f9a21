package consume

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/delayed"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestReplanInOnePass has several batches of events wait for an hour by older limits. One request makes all of them due.
func TestReplanInOnePass(t *testing.T) {
	t.Parallel()
	const events = 2*store.MaxBatch + 100 // several batches
	f := newProvisioned(t)
	w := f.newWorker(mayDelay)
	stored := time.Now()
	for i := range events {
		id := fmt.Sprint("order-", i)
		subject, target := testNames.Room().Schedule(room.Slot, "payments", id)
		entry := room.Entry{
			Reason: room.Slot, Subject: "notify.payments", ID: id, Limits: "older",
			Origin: room.Origin{Stream: "OTHER", Sequence: uint64(i) + 1, Stored: stored}, Since: stored,
		}
		m := entry.Message(subject, nil, []byte(`{"title": "an event"}`))
		room.ScheduleAt(m, target, stored.Add(time.Hour))
		testkit.Must(f.js.PublishMsgAsync(m))(t)
	}
	<-f.js.PublishAsyncComplete()
	testkit.Await(t, "the events are planned anew", func() error {
		return w.replans.advance(t.Context(), func(e delayed.Event) bool { return e.Entry.Limits == "older" })
	})
	testkit.Equal(t, len(f.room.inRoom()), events, "events that are due in their queues")
	f.eventually("no event waits for its slot", func() bool { return len(f.waiting(room.Slot)) == 0 })
}
