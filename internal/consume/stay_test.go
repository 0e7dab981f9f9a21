package consume

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// fullCase is an event without a place in the room.
type fullCase struct {
	setUp   func(*fixture)
	body    string // "" for an event with the ID order-1
	history []string
	refused room.Reason // "": the event may stay
}

var fullCases = map[string]fullCase{
	"its channel is paused": {
		setUp:   func(f *fixture) { f.pacer.Pause(f.Context(), "payments", time.Hour) },
		history: []string{"refund"}, refused: room.Channel,
	},
	"its post is far away": {setUp: (*fixture).holdFresh, history: []string{"refund"}, refused: room.Channel},
	"its channel asks for a long pause": {
		setUp:   func(f *fixture) { f.sink.send = inTurn(sink.RateLimited) },
		history: []string{"send", "refund"}, refused: room.Channel,
	},
	"it may have been delivered": {
		setUp:   func(f *fixture) { f.sink.send = inTurn(sink.Unknown, sink.RateLimited) },
		history: []string{"send", "send", "finish"}, refused: room.Channel,
	},
	"a worker before may have delivered it": {
		setUp:   func(f *fixture) { f.holdFresh(); f.admitInDoubt(true) },
		history: []string{"finish"}, refused: room.Channel,
	},
	"its firing event is not settled": {
		setUp: func(f *fixture) {
			f.throttle.answers(always(store.Decision{Verdict: store.Leased, Wait: time.Second}))
		},
		body: `{"id": "order-1", "title": "an event", "status": "resolved", "key": "k"}`, refused: room.Pair,
	},
	"Redis refuses a log": {setUp: decided(store.Deferred), refused: room.Redis},
	"an alert of its body may not": {
		setUp: func(f *fixture) {
			f.room.enter = func(stay store.Stay) bool { return !strings.HasSuffix(stay.Member, "f2") }
		},
		body: twoAlerts, refused: room.Part,
	},
	"nobody knows": {
		setUp:   func(f *fixture) { f.holdFresh(); f.room.enterFails = errScripted },
		history: []string{"release", "send", "finish"},
	},
}

// TestRoomIsFull drops an event that may not stay in the room. Its slot is returned unless an attempt may have delivered it. While Redis
// does not answer, each event may stay.
func TestRoomIsFull(t *testing.T) {
	t.Parallel()
	each(t, fullCases, func(t *testing.T, f *fixture, test fullCase) {
		f.room.enter = func(store.Stay) bool { return false }
		test.setUp(f)
		f.start(slow)
		sequence := f.publish("notify.payments", cmp.Or(test.body, `{"id": "order-1", "title": "an event"}`))
		f.awaitSettled(1)
		f.requireRoomEmpty()
		f.requireSaid(sequence, "+ACK")
		f.requireHistory("order-1", test.history...)
		if test.refused == "" {
			f.requireOutcomes(map[string]int{"sent payments": 1})
			return
		}
		f.requireOutcomes(map[string]int{"dropped payments": 1})
		testkit.Equal(t, f.metrics.Get("by room payments"), 1, "drops by the room")
		testkit.Equal(t, f.metrics.Get("refused by the room: "+string(test.refused)), 1, "refusals for %s", test.refused)
		testkit.Equal(t, f.streamInfo(testNames.RoomStream).State.LastSeq, 0, "messages stored in the room")
	})
}

// TestTooLargeForTheRoom drops an event that exceeds the room's largest message with its headers. The slot is returned.
func TestTooLargeForTheRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.smallRoom()
	f.holdFresh()
	recorded := f.startWithJournal(slow)
	f.publish("notify.payments", `{"id": "order-1", "title": "an event", "text": "`+strings.Repeat("x", 450)+`"}`)
	f.awaitSettled(1)
	f.requireHistory("order-1", "refund")
	f.eventually("the drop is recorded", func() bool { return len(recorded.all()) == 1 })
	testkit.Equal(t, aboutEntry(recorded.all()[0]), "dropped, because "+journal.TooLarge+", by room, to payments", "recorded")
	f.requireOutcomes(map[string]int{"dropped payments": 1})
	f.publish("notify.payments", `{"alerts": [{"labels": {"alertname": "First"}}, {"labels": {"alertname": "`+strings.Repeat("x", 450)+`"}}]}`)
	f.awaitSettled(2)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"dropped payments": 2})
	for _, reason := range []room.Reason{room.Channel, room.Part} {
		testkit.Equal(t, f.metrics.Get("refused by the room: "+string(reason)), 1, "refusals for %s", reason)
	}
}

// TestRoomShrinks has the room accept smaller messages than a worker knows. The worker has released the lease of an admitted event by then, so the
// event comes back with its slots.
func TestRoomShrinks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	sequence := f.publish("notify.payments", `{"id": "order-1", "title": "an event", "text": "`+strings.Repeat("x", 450)+`"}`)
	d := &delivery{
		message: f.taken(w, usualAckWait), event: event.Event{ID: "order-1", Category: "payments"}, destination: "C1",
		admission: outcome.Admission{Grant: &fakeGrant{id: "order-1", calls: f.calls}},
	}
	smaller := testNames.RoomConfig()
	smaller.MaxMsgSize = 500
	testkit.Must(f.js.UpdateStream(t.Context(), smaller))(t)
	w.decider.deliverer.mover.Start()
	moving := w.decider.deliverer.hold(d)
	receive(t, "the end of the move", moving.Ended)
	w.decider.deliverer.mover.Close()
	f.requireSaid(sequence, "-NAK…")
	f.requireHistory("order-1", "release")
}

// TestRoomCannotBeWritten deletes the room. The events keep their slots, and get a nak like a group. The log says so once.
func TestRoomCannotBeWritten(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	f.holdFresh()
	w := f.start(func(o *setup) { slow(o); o.client.Provision = false })
	testkit.NoError(t, f.js.DeleteStream(t.Context(), testNames.RoomStream))
	sequences := []uint64{f.event("payments", "0"), f.event("payments", "1"), f.publish("notify.payments", twoAlerts)}
	for _, sequence := range sequences {
		f.requireSaid(sequence, "-NAK…")
		f.requirePutOff(sequence)
	}
	f.requireHistory("0", "release")
	f.requireHistory("1", "release")
	f.requireOutcomes(nil)
	f.log.WantCount(t, 1, "cannot store waiting events")
	testkit.Fails(t, "Failing", w.Failing(), jetstream.ErrNoStreamResponse, "cannot store waiting events: ")
	f.eventually("no publish is pending", func() bool { return w.streams.JetStream.PublishAsyncPending() == 0 })
	f.eventually("nothing counts in the room", func() bool { return len(f.room.inRoom()) == 0 })
	f.eventually("it is not ready", func() bool { return w.Ready() != nil })
	f.provision(usualAckWait)
	f.awaitSettled(4)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 4})
	f.log.WantCount(t, 1, "storing waiting events again")
	testkit.Equal(t, w.Failing(), nil, "Failing")
}

// TestStaysEnd ends events that wait in the room in each way. Each end ends the stay, with its whole weight.
func TestStaysEnd(t *testing.T) {
	t.Parallel()
	type endCase struct {
		verdict  store.Verdict // about the event from the room
		recorded bool          // another worker delivered it meanwhile
		send     func(context.Context, event.Event, int) error
		outcome  journal.Result // "": none
	}
	each(t, map[string]endCase{
		"sent":            {verdict: store.Admitted, outcome: journal.Sent},
		"dropped":         {verdict: store.Denied, outcome: journal.Dropped},
		"dead":            {verdict: store.Admitted, send: inTurn(sink.Rejected), outcome: journal.Dead},
		"duplicate":       {verdict: store.Duplicate, outcome: journal.Duplicate},
		"done":            {verdict: store.Done},
		"recorded before": {verdict: store.Admitted, recorded: true},
		"expired":         {verdict: store.Unknown, outcome: journal.Expired},
	}, func(t *testing.T, f *fixture, test endCase) {
		const size = 6 * stay.WeightBytes
		f.holdFresh()
		asked := 0
		f.throttle.answers(func(c store.Request) store.Decision {
			if asked++; asked > 1 && test.verdict != store.Admitted {
				return store.Decision{Verdict: test.verdict, Node: limits.Node{Level: "the rule"}}
			}
			if asked > 1 && test.recorded {
				f.throttle.grant(c).finish()
			}
			return f.throttle.admit(c)
		})
		f.sink.send = test.send
		f.room.enter = func(place store.Stay) bool {
			if weight := 1 + size/stay.WeightBytes; place.Weight != weight || place.First != "payments" || place.For != outcome.StayIn {
				t.Errorf("stay: got %+v, want a weight of %d", place, weight)
			}
			return true
		}
		f.start(slow)
		f.publish("notify.payments.cards", `{"id": "order-1", "title": "an event", "text": "`+strings.Repeat("x", size)+`"}`)
		var want map[string]int
		if test.outcome != "" {
			f.awaitSettled(1)
			want = map[string]int{string(test.outcome) + " payments.cards": 1}
		}
		f.requireEmpty()
		f.eventually("it was moved", func() bool { return f.streamInfo(testNames.RoomStream).State.LastSeq > 0 })
		f.requireRoomEmpty()
		testkit.Equal(t, f.room.mostInRoom, 1, "stays at once")
		f.requireOutcomes(want)
	})
}

// TestStayGoesOn moves an event within the room. The stay goes on.
func TestStayGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	asked := 0
	f.throttle.answers(func(c store.Request) store.Decision {
		if asked++; asked < 3 {
			return store.Decision{Verdict: store.Leased, Wait: time.Second}
		}
		return f.throttle.admit(c)
	})
	f.pacer.Pause(t.Context(), "payments", time.Hour)
	f.start(slow)
	f.publish("notify.payments", `{"id": "order-1", "title": "an event", "status": "resolved", "key": "k"}`)
	f.eventually("it is held in the end", func() bool { return f.held("payments") == 1 && f.streamInfo(testNames.RoomStream).State.Msgs == 1 })
	if stays := f.room.inRoom(); len(stays) != 1 || stays[0].Weight != 1 || stays[0].For != outcome.StayIn || f.room.mostInRoom != 1 {
		t.Errorf("stays: got %v and at most %d at once, want one of weight 1 for %v", stays, f.room.mostInRoom, outcome.StayIn)
	}
	f.pacer.Pause(t.Context(), "payments", 0)
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 1})
}

// TestUpdatesOfAMessageShareAPlace compares the places of two updates of a message. The update of a report replaces an earlier update in the room,
// so nobody else would end the place of the earlier one. The update of a small event replaces the update of a large event too.
func TestUpdatesOfAMessageShareAPlace(t *testing.T) {
	t.Parallel()
	counting := room.Entry{Reason: room.Update, Receipt: "r", ID: "again"}
	ofReport := counting
	ofReport.ID, ofReport.Steady = "fired", 1
	testkit.Equal(t, stay.Of("payments", ofReport, 0, time.Hour), stay.Of("payments", counting, 0, time.Hour), "place of the update of a report")
	large := stay.Of("payments", counting, stay.WeightBytes, time.Hour)
	testkit.Equal(t, large, stay.Of("payments", counting, 0, time.Hour), "place of the update of a large event")
	reporting := ofReport
	reporting.Reason = room.Channel
	testkit.Check(t, stay.Of("payments", reporting, 0, time.Hour) != stay.Of("payments", ofReport, 0, time.Hour),
		"a report that waits for its channel has the place of an update")
}
