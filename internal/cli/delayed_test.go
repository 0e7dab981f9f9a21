package cli

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/delayed"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// putWaiting stores an event of payments in the room as a worker does. With a target, the event waits there for an hour.
func putWaiting(t *testing.T, js jetstream.JetStream, entry room.Entry, subject, target string) {
	t.Helper()
	entry.Subject, entry.Origin = "notify.payments", room.Origin{Stream: "NOTIFICATIONS", Sequence: 1, Stored: time.Now()}
	m := entry.Message(subject, nil, []byte(`{"title": "card declined"}`))
	if target != "" {
		room.ScheduleAt(m, target, time.Now().Add(time.Hour))
	}
	testkit.Must(js.PublishMsg(t.Context(), m))(t)
}

// An order leaves events alone that it does not reach, or that have an order already. The status is 1 if the command line names one of them.
func TestOrderHeld(t *testing.T) {
	js, in := dlqServer(t), room.Under("notify")
	alice := room.Order{Action: room.Release, By: "alice"}
	putWaiting(t, js, room.Entry{ID: "posted", Reason: room.Channel}, in.Channel("token", "payments"), "")
	_, due := in.Schedule(room.Slot, "payments", "ordered")
	putWaiting(t, js, room.Entry{ID: "ordered", Reason: room.Slot, Order: alice}, due, "")
	for _, id := range []string{"waits", "again"} {
		schedule, due := in.Schedule(room.Slot, "payments", id)
		entry := room.Entry{ID: id, Reason: room.Slot}
		if id == "again" {
			entry.Order = alice
		}
		putWaiting(t, js, entry, schedule, due)
	}
	drop := func(ids ...string) (output, problems string, status int) {
		t.Helper()
		output, problems, err := execute(t.Context(), "", append([]string{"delayed", "drop", "payments", "--yes", "--as", "bob"}, ids...)...)
		return output, problems, ExitStatus(err, io.Discard)
	}
	const left = "1 event not dropped: they are on their way to a channel or to a worker\n"
	const released = "1 event already ordered: release by alice\n"
	for _, test := range []struct {
		ids              []string
		output, problems string
		status           int
	}{
		{[]string{"posted", "waits"}, "dropped 1 event\n", left, Failure},
		{[]string{"ordered", "again"}, "dropped 1 event\n", released, Failure},
		{[]string{"waits"}, "dropped 0 events\n", "1 event already ordered: drop by bob\n", OK},
		{[]string{"again", "waits"}, "dropped 0 events\n", "2 events already ordered: drop by bob\n", OK},
	} {
		output, problems, status := drop(test.ids...)
		testkit.Equal(t, output, test.output, "drop of %v prints", test.ids)
		testkit.Equal(t, problems, test.problems, "drop of %v complains", test.ids)
		testkit.Equal(t, status, test.status, "exit status of the drop of %v", test.ids)
	}
	_, problems, status := drop()
	testkit.Contains(t, "problems of the drop of all", problems, left, released, "2 events already ordered: drop by bob\n")
	testkit.Equal(t, status, OK, "exit status of the drop of all")
}

// slowRoom takes longer for each order than an order waits for workers. A worker has each event in hand at its first order.
type slowRoom struct{ orders map[string]int }

func (r slowRoom) Clock(context.Context) (func() time.Time, error) { return time.Now, nil }

func (r slowRoom) Order(_ context.Context, e delayed.Event, _ room.Order, _ time.Time) (bool, error) {
	time.Sleep(decidedWithin + time.Second)
	r.orders[e.Identity]++
	return r.orders[e.Identity] > 1, nil
}

// An order of many events waits for the workers after its first pass, however long that took.
func TestOrderOfManyEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := []delayed.Event{{Identity: "a", Reason: "slot"}, {Identity: "b", Reason: "slot"}}
		o := orders{store: slowRoom{make(map[string]int)}, problems: io.Discard, bar: screen.NewProgress(io.Discard), order: room.Order{Action: room.Drop}}
		testkit.NoError(t, o.give(t.Context(), all, func() ([]delayed.Event, error) { return all, nil }))
		testkit.Equal(t, o.given, 2, "events that got the order")
	})
}
