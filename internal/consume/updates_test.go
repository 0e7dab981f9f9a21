package consume

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/consume/update"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func resolvedAs(receipts ...string) (messages []store.Resolved) {
	for _, receipt := range receipts {
		messages = append(messages, store.Resolved{Receipt: receipt})
	}
	return messages
}

// resolvesMessages admits each event. A resolved event resolves the messages of receipts.
func (f *fixture) resolvesMessages(receipts ...string) {
	f.throttle.answers(func(c store.Request) store.Decision {
		d := f.throttle.admit(c)
		if c.Resolves {
			d.Resolved = resolvedAs(receipts...)
		}
		return d
	})
}

// updatesOf lists the updates of a message that the sink was asked for, each by the ID of the event.
func (f *fixture) updatesOf(receipt string) (ids []string) {
	for _, line := range f.calls.all() {
		if id, ok := strings.CutPrefix(line, "update "+receipt+" "); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// TestUpdates resolves an event that has several messages. Each of them is updated once, also one whose update has to wait.
func TestUpdates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.resolvesMessages("r1", "r2", "r3")
	var asked atomic.Int32
	f.pacer.beginUpdate = func(pacing.Update) pacing.Reservation {
		if asked.Add(1) == 1 {
			return pacing.Reservation{Wait: update.UpdateEarly + 2*pollTime}
		}
		return pacing.Reservation{OK: true, Wait: time.Millisecond}
	}
	f.start(nil)
	f.status(event.StatusResolved)
	f.awaitOutcomes(map[string]int{"sent payments": 1})
	f.requireRoomEmpty()
	for _, receipt := range []string{"r1", "r2", "r3"} {
		testkit.EqualSlices(t, f.updatesOf(receipt), []string{"resolved"}, "updates of %s", receipt)
	}
	testkit.Equal(t, asked.Load(), 4, "requests for a place in the budget")
}

// TestUpdateDelaysNothing has updates that wait for their budget, are limited, or fail. The event that they belong to has its outcome, another
// event is posted, and the updates wait in the room.
func TestUpdateDelaysNothing(t *testing.T) {
	t.Parallel()
	type delayCase struct {
		begin  func(u pacing.Update) pacing.Reservation
		update error
	}
	each(t, map[string]delayCase{
		"the budget is used up": {begin: func(pacing.Update) pacing.Reservation { return pacing.Reservation{Wait: time.Minute} }},
		"limited":               {update: &sink.Error{Class: sink.RateLimited, RetryAfter: time.Minute, Err: errScripted}},
		"failed":                {update: &sink.Error{Class: sink.Transient, Err: errScripted}},
		"unknown":               {update: errScripted},
		"the setup is at fault": {update: &sink.Error{Class: sink.Misconfigured, Err: errScripted}},
	}, func(t *testing.T, f *fixture, test delayCase) {
		f.resolvesMessages("r1", "r2")
		f.pacer.beginUpdate = test.begin
		f.sink.update = func(context.Context, string) error { return test.update }
		f.start(nil)
		f.status(event.StatusResolved)
		f.event("payments", "other")
		f.awaitOutcomes(map[string]int{"sent payments": 2})
		f.requireHistory("other", "send", "finish")
		f.eventually("the updates wait", func() bool { return len(f.waiting(room.Update)) == 2 })
		if test.update == nil {
			testkit.Equal(t, len(f.updatesOf("r1")), 0, "updates without a place in the budget")
		}
		if limited, ok := test.update.(*sink.Error); ok { //nolint:errorlint // as the test made it
			f.pacer.mu.Lock()
			testkit.Equal(t, f.pacer.pauses[updates], limited.RetryAfter, "pause of the updates")
			f.pacer.mu.Unlock()
		}
		due, _ := room.DueAt(f.waiting(room.Update)[0].Header)
		in := time.Until(due)
		testkit.Check(t, in > 0 && in <= time.Minute, "the update comes back in %v, want at most a minute", in)
	})
}

// TestUpdateEnds has updates that no worker can or need make. They end.
func TestUpdateEnds(t *testing.T) {
	t.Parallel()
	type endCase struct {
		begin   func(u pacing.Update) pacing.Reservation
		update  error
		since   time.Duration // age of the event
		updates int
		logged  int
	}
	each(t, map[string]endCase{
		"obsolete":               {begin: func(pacing.Update) pacing.Reservation { return pacing.Reservation{Obsolete: true} }},
		"the message is gone":    {update: &sink.Error{Class: sink.Rejected, Code: "message_not_found", Err: errScripted}, updates: 1, logged: 1},
		"it waited for too long": {since: outcome.StayIn + time.Minute, logged: 1},
	}, func(t *testing.T, f *fixture, test endCase) {
		f.pacer.beginUpdate = test.begin
		f.sink.update = func(context.Context, string) error { return test.update }
		f.start(nil)
		_, due := testNames.Room().Schedule(room.Update, "payments", "m")
		f.putInRoom(due, updateEntry("r1", update.ResolvedOrder, time.Now().Add(-test.since)), `{"id": "order-1", "title": "x", "status": "resolved", "key": "k"}`)
		f.requireRoomEmpty()
		testkit.Equal(t, len(f.updatesOf("r1")), test.updates, "updates")
		testkit.Equal(t, f.log.Count("a message cannot be updated"), test.logged, "log lines")
		ended := 0
		for _, line := range f.calls.all() {
			if strings.HasPrefix(line, fmt.Sprintf("updated %d ", update.ResolvedOrder)) {
				ended++
			}
		}
		testkit.Equal(t, ended, test.updates, "ended updates")
		f.requireOutcomes(nil)
	})
}

// updateEntry returns a state of a message.
func updateEntry(receipt string, order int64, stored time.Time) room.Entry {
	stored = stored.Truncate(time.Millisecond)
	return room.Entry{
		Reason: room.Update, Subject: "notify.payments", ID: "order-1", Origin: room.Origin{Stream: testNames.Stream, Sequence: 1, Stored: stored},
		Since: stored, Receipt: receipt, State: order,
	}
}

// TestNewestStateStays stores states of a message in any order. The room keeps the newest one that waits, with the earliest time. It stores no
// state that is older than one that is due.
func TestNewestStateStays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	u := w.decider.deliverer.updater
	keep := func(receipt string, order int64, in time.Duration) {
		t.Helper()
		testkit.NoError(t, u.Store(t.Context(), "payments", &received.Message{Content: received.Content{Data: []byte(fmt.Sprint(order))}}, updateEntry(receipt, order, time.Now()), in))
	}
	keep("r1", 2, time.Hour)
	keep("r1", 1, time.Minute) // older
	keep("r2", 1, time.Hour)
	keep("r1", 3, 2*time.Hour)
	keep("r1", 3, time.Minute) // again
	got := make(map[string]string)
	for _, m := range f.waiting(room.Update) {
		entry := testkit.Must(room.Read(m.Header, m.Time))(t)
		due, _ := room.DueAt(m.Header)
		got[entry.Receipt] += fmt.Sprintf("%d %s %v", entry.State, m.Data, time.Until(due).Round(time.Minute))
	}
	testkit.Equal(t, got["r1"], "3 3 1h0m0s", "states of r1")
	testkit.Equal(t, got["r2"], "1 1 1h0m0s", "states of r2")

	keep("r1", 4, 0)
	keep("r1", 3, 0)
	keep("r1", 5, 0)
	due := f.inRoom("notify-room.due.update.>")
	testkit.Equal(t, len(due), 2, "states that are due, of which a worker may have the older one")
	testkit.Equal(t, string(due[0].Data)+string(due[1].Data), "45", "these states")
}

// TestConcurrentStates has workers store states of a message at once. The room keeps the newest one.
func TestConcurrentStates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := f.prepared(nil).decider.deliverer.updater, f.prepared(nil).decider.deliverer.updater
	done := make(chan error)
	const states = 20
	for order := range int64(states) {
		u := first
		if order%2 == 0 {
			u = second
		}
		go func() {
			done <- u.Store(context.Background(), "payments", new(received.Message), updateEntry("r1", order+1, time.Now()), time.Hour)
		}()
	}
	for range states {
		testkit.NoError(t, <-done)
	}
	found := f.waiting(room.Update)
	testkit.Equal(t, len(found), 1, "states")
	testkit.Equal(t, testkit.Must(room.Read(found[0].Header, found[0].Time))(t).State, states, "order of the state")
}

// TestNewStateBesideADeliveredOne stores a newer state of a message while a worker has an older one, and another worker has an earlier update.
// The consumer does not take the earlier update for an acknowledged one: workers remove what is below the acknowledgement floor.
func TestNewStateBesideADeliveredOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	consumer := w.streams.Layout().Room.Consumer
	take := func() jetstream.Msg {
		t.Helper()
		return testkit.Must(consumer.Next(jetstream.FetchMaxWait(patience)))(t)
	}
	_, due := testNames.Room().Schedule(room.Update, "payments", "other")
	held := f.putInRoom(due, updateEntry("other", update.ResolvedOrder, time.Now()), `{"id": "order-1", "title": "x"}`)
	take()
	f.status(event.StatusResolved)
	m := f.taken(w, patience)
	for _, order := range []int64{update.CountedOrder(1, false), update.ResolvedOrder} {
		testkit.NoError(t, w.decider.deliverer.updater.Store(t.Context(), "payments", m, updateEntry("r1", order, time.Now()), 0))
		if next := take(); order == update.ResolvedOrder {
			testkit.NoError(t, next.DoubleAck(t.Context()))
		}
	}
	info := testkit.Must(consumer.Info(t.Context()))(t)
	testkit.AtMost(t, info.AckFloor.Stream, held-1, "acknowledgement floor, with update %d at a worker", held)
}

// keepsPairs admits each event once. A resolved event resolves the messages of receipts, and finds them again after its delivery.
func (f *fixture) keepsPairs(receipts ...string) {
	f.throttle.answers(func(c store.Request) store.Decision {
		f.throttle.mu.Lock()
		delivered := f.throttle.finished[c.ID]
		f.throttle.mu.Unlock()
		d := store.Decision{Verdict: store.Done}
		if !delivered {
			d = f.throttle.admit(c)
		}
		if d.Flaps = c.Fold.Counts && !c.Resolves; c.Resolves {
			d.Resolved = resolvedAs(receipts...)
		}
		return d
	})
}

// TestUpdatesHaveRoomOfTheirOwn refuses the updates of a resolved event, and the report about a firing event, a place in the room. Both events are
// posted, and come back until the room has a place. Another event ends meanwhile.
func TestUpdatesHaveRoomOfTheirOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keepsPairs("r1", "r2")
	var full atomic.Bool
	full.Store(true)
	f.room.enter = func(stay store.Stay) bool { return stay.First != "payments updates" || !full.Load() }
	f.start(func(o *setup) { o.Flap = 20 * time.Minute })
	f.status(event.StatusFiring)
	f.status(event.StatusResolved)
	f.publish("notify.payments", `{"id": "other", "title": "disk is full"}`)
	f.eventually("all events are posted", func() bool { return f.metrics.ended() == 3 })
	f.eventually("both events are refused again", func() bool {
		return f.metrics.Get("refused by the room: update") >= 4 && f.metrics.Get("refused by the room: steady") >= 2
	})
	testkit.Equal(t, len(f.waiting(room.Update))+len(f.waiting(room.Steady)), 0, "entries of the room")
	full.Store(false)
	f.awaitSettled(3)
	f.eventually("both messages are updated", func() bool { return len(f.updatesOf("r1")) == 1 && len(f.updatesOf("r2")) == 1 })
	testkit.Equal(t, len(f.waiting(room.Steady)), 1, "reports")
	f.requireOutcomes(map[string]int{"sent payments": 3})
	testkit.Equal(t, len(f.sink.handed()), 3, "posts")
}

// TestOneReportOfAKey has two events of a flapping key, and a report of the key that goes back to the room. The room has one report, which counts
// once.
func TestOneReportOfAKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.newWorker(func(o *setup) { o.Flap = 20 * time.Minute })
	w.settler.Stays.Start()
	for _, isReport := range []bool{false, false, true} {
		f.status(event.StatusFiring)
		m := f.taken(w, patience)
		e := testkit.Must(testDecoder.Decode(m.Published()))(t)
		change := store.Request{Message: store.Message(m.Entry.Origin)}.Change()
		if isReport {
			m.Entry.Steady = int64(change)
			testkit.Must(f.room.EnterRoom(t.Context(), []store.Stay{stay.Of("payments", m.EntryFor(e, room.Steady), 0, time.Hour)}))(t)
		}
		testkit.Must(w.decider.deliverer.updater.KeepReport(t.Context(), m, e, change))(t)
	}
	w.settler.Close(t.Context())
	testkit.Equal(t, len(f.waiting(room.Steady)), 1, "reports")
	testkit.Equal(t, len(f.room.inRoom()), 1, "stays")
}

// TestCountOfALostMessage has Slack refuse the update that counts repeats. The message is given up, so that later repeats are posted, before the
// update ends.
func TestCountOfALostMessage(t *testing.T) {
	t.Parallel()
	type lostCase struct {
		giveUp error
		logged int
	}
	each(t, map[string]lostCase{
		"it is given up":        {nil, 1},
		"Redis does not answer": {errScripted, 0},
	}, func(t *testing.T, f *fixture, test lostCase) {
		folding := &fakeFolds{count: &store.Count{Folded: 3}, giveUp: test.giveUp}
		f.sink.update = func(context.Context, string) error {
			return &sink.Error{Class: sink.Rejected, Code: "message_not_found", Err: errScripted}
		}
		f.start(folding.shown)
		_, due := testNames.Room().Schedule(room.Update, "payments", "m")
		f.putInRoom(due, updateEntry("r1", update.CountedOrder(3, false), time.Now()), `{"id": "order-1", "title": "x", "key": "k"}`)
		f.eventually("the message is given up", func() bool { return folding.givenUp.Get("payments\nk r1") == 1 })
		if test.giveUp == nil {
			f.requireRoomEmpty()
		} else {
			f.eventually("the update waits", func() bool { return len(f.waiting(room.Update)) == 1 })
		}
		testkit.Equal(t, f.log.Count("a message cannot be updated"), test.logged, "log lines")
		testkit.Equal(t, f.calls.count("updated 6 "+stay.MessageOf("r1")), test.logged, "ended updates")
	})
}
