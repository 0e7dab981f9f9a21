package consume

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// twoAlerts is a body that holds a firing and a resolved alert.
const twoAlerts = `{"receiver": "team", "status": "firing", "alerts": [
	{"status": "firing", "labels": {"alertname": "First"}, "fingerprint": "f1"},
	{"status": "resolved", "labels": {"alertname": "Second"}, "fingerprint": "f2"}
]}`

// group publishes a body that holds several alerts.
func (f *fixture) group() uint64 {
	f.Helper()
	return f.publish("notify.payments", twoAlerts, "Nats-Msg-Id", "group")
}

// requireSplit checks that each alert was an event, once, and the group none.
func (f *fixture) requireSplit() {
	f.Helper()
	f.awaitSettled(2)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 2})
	for _, id := range []string{"group/f1", "group/f2"} {
		history := slices.DeleteFunc(f.journal.about(id), func(call string) bool {
			return call == "extend" || call == "release" // a slow machine may call these
		})
		testkit.EqualSlices(f, history, []string{"send", "finish"}, "event %s", id)
	}
	testkit.Equal(f, f.streamInfo(testNames.RoomStream).State.LastSeq, 2, "messages were stored in the room, want one for each alert")
	testkit.Equal(f, f.streamInfo(testNames.Stream).State.LastSeq, 1, "messages were stored in the producers' stream, want the group")
}

// A body that holds several events becomes a message of the room for each, and has no outcome of its own. They are the group's ID
// and the alert's name, and of the time at which the group was stored.
func TestSplit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start(nil)
	group := f.group()
	f.requireSplit()
	f.requireSaid(group, "+ACK")
	testkit.Equal(t, f.metrics.Get("split"), 1, "messages counted as split")
	titles := make(map[string]string)
	for _, e := range f.sink.handed() {
		titles[e.Title] = string(e.Status) + " " + e.Key + " " + e.ID + " " + e.Part
	}
	for _, c := range f.throttle.asked() {
		if c.Message.Stream != testNames.Stream || c.Message.Sequence != group || c.HasWaited {
			t.Errorf("asked for %+v, want the group's identity", c)
		}
	}
	if len(titles) != 2 || titles["First"] != "firing f1 group f1" || titles["Second"] != "resolved f2 group f2" {
		t.Errorf("sent %v, want one event for each alert", titles)
	}
	testkit.Equal(t, f.throttle.mostInRoom, 2, "stays were entered, want one for each alert")
}

// A group is split though its category is full: each of its events is dropped, or asked for, on its own.
func TestSplitInAFullCategory(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.throttle.full = fullFor("the rule", "")
	f.start(nil)
	f.group()
	f.awaitSettled(2)
	f.requireRoomEmpty()
	// What is in the room may have been in someone's hands, so both are asked for.
	f.requireOutcomes(map[string]int{"sent payments": 2})
}

// Alerts that cannot be read are one dead letter, whichever they are; the others go on.
func TestSplitWithBadAlerts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start(nil)
	group := f.publish("notify.payments", `{"alerts": [{}, {"labels": {"alertname": "First"}}, {}, {"labels": {"alertname": "Second"}}, {}]}`)
	f.awaitSettled(3)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 2, "dead payments": 1})
	f.requireSaid(group, "+TERM …")
	testkit.Equal(t, len(f.deadLetters()), 1, "dead letters")
}

// The parts of a body on the bare subject count for the category that they turn out to have.
func TestSplitOnTheBareSubject(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.holdFresh()
	f.throttle.Pause(t.Context(), "default", time.Hour)
	f.start(slow)
	f.publish("notify", twoAlerts)
	f.eventually("both are held", func() bool { return f.held("default") == 2 })
	f.eventually("they count for their category only", func() bool {
		stays := f.throttle.inRoom()
		return len(stays) == 2 && stays[0].First == "default" && stays[1].First == "default"
	})
	f.throttle.Pause(t.Context(), "default", 0)
	f.awaitSettled(2)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent default": 2})
}

// What a worker has stored and not settled, or not seen confirmed, is stored once.
func TestSplitAgain(t *testing.T) {
	t.Parallel()
	t.Run("after a crash", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		gone := f.prepared(nil)
		group := f.group()
		m := f.taken(gone, patience)
		parts, bad := gone.o.Decoder.Parts(m.asStored())
		for _, part := range gone.newSplit(m, parts, bad).toStore {
			testkit.Must(f.js.PublishMsg(t.Context(), part))(t)
		}
		f.start(nil)
		f.eventually("the parts end", func() bool { return f.metrics.ended() == 2 })
		gone.nak(m, 0)
		f.requireSplit()
		f.requireSaid(group, sayNak, "+ACK")
	})
	t.Run("after a lost connection", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		const ackWait = 2 * time.Second
		f.provision(ackWait)
		proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
		f.start(func(o *Options) { o.Connection, o.AckWait = f.connect("nats://"+proxy.Addr), ackWait })
		cut := proxy.CutAfterRequest("Notifier-Part: f2")
		f.group()
		select {
		case <-cut:
		case <-time.After(patience):
			t.Fatal("the connection was not lost")
		}
		f.requireSplit()
	})
}

// While the events of a group cannot be stored the group waits: nothing is lost, and the log says it once.
func TestSplitIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	w := f.start(func(o *Options) { o.Provision = false })
	testkit.NoError(t, f.js.DeleteStream(t.Context(), testNames.RoomStream))
	const groups = 3
	for range groups {
		f.publish("notify.payments", twoAlerts)
	}
	for sequence := range uint64(groups) {
		f.requireSaid(sequence+1, "-NAK…")
		if delay := f.said.delays(t, sequence+1)[0]; delay < misconfiguredBackoff*3/4 || delay > misconfiguredBackoff*5/4 {
			t.Errorf("put off by %v, want %v give or take a quarter", delay, misconfiguredBackoff)
		}
	}
	f.requireOutcomes(nil)
	f.log.WantCount(t, 1, "events that have to wait cannot be stored")
	f.eventually("no confirmation is waited for any more", func() bool { return w.js.PublishAsyncPending() == 0 })
	f.provision(patience)
	f.awaitSettled(2 * groups)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 2 * groups})
}
