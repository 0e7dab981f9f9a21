package consume

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// twoAlerts is a group of a firing and a resolved alert.
const twoAlerts = `{"receiver": "team", "status": "firing", "alerts": [
	{"status": "firing", "labels": {"alertname": "First"}, "fingerprint": "f1"},
	{"status": "resolved", "labels": {"alertname": "Second"}, "fingerprint": "f2"}
]}`

// group publishes twoAlerts with the ID group.
func (f *fixture) group() uint64 {
	f.Helper()
	return f.publish("notify.payments", twoAlerts, "Nats-Msg-Id", "group")
}

// requireSplit wants one event for each alert of the group, and none for the group.
func (f *fixture) requireSplit() {
	f.Helper()
	f.awaitSettled(2)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 2})
	for _, id := range []string{"group/f1", "group/f2"} {
		history := slices.DeleteFunc(f.calls.about(id), func(call string) bool {
			return call == "extend" || call == "release" // a slow machine may call these
		})
		testkit.EqualSlices(f, history, []string{"send", "finish"}, "event %s", id)
	}
	testkit.Equal(f, f.streamInfo(testNames.RoomStream).State.LastSeq, 2, "messages stored in the room")
	testkit.Equal(f, f.streamInfo(testNames.Stream).State.LastSeq, 1, "messages stored in the producers' stream")
}

// TestSplit splits a group into a message of the room for each alert. The group has no outcome. Each event has the group's ID and origin,
// and the alert's name.
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
			t.Errorf("request: got %+v, want the origin of the group", c)
		}
	}
	testkit.EqualMaps(t, titles, map[string]string{"First": "firing f1 group f1", "Second": "resolved f2 group f2"}, "events")
	testkit.Equal(t, f.room.mostInRoom, 2, "stays at once")
}

// TestSplitWithBadAlerts stores one dead letter for all bad alerts of a group. The good alerts go on.
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

// TestSplitOnTheBareSubject splits a group on the bare subject. The stays of its events count for their category.
func TestSplitOnTheBareSubject(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.holdFresh()
	f.pacer.Pause(t.Context(), "default", time.Hour)
	f.start(slow)
	f.publish("notify", twoAlerts)
	f.eventually("both are held", func() bool { return f.held("default") == 2 })
	f.eventually("they count for their category only", func() bool {
		stays := f.room.inRoom()
		return len(stays) == 2 && stays[0].First == "default" && stays[1].First == "default"
	})
	f.pacer.Pause(t.Context(), "default", 0)
	f.awaitSettled(2)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent default": 2})
}

// TestSplitAgain repeats a split. The room stores each part once.
func TestSplitAgain(t *testing.T) {
	t.Parallel()
	t.Run("after a crash", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		gone := f.prepared(nil)
		group := f.group()
		m := f.taken(gone, patience)
		parts, _ := testDecoder.Parts(m.published())
		for _, part := range gone.mover.newSplit(m, parts).toStore.messages {
			testkit.Must(f.js.PublishMsg(t.Context(), part))(t)
		}
		f.start(nil)
		f.eventually("the parts end", func() bool { return f.metrics.ended() == 2 })
		gone.settler.nak(m, 0)
		f.requireSplit()
		f.requireSaid(group, sayNak, "+ACK")
	})
	t.Run("after a lost connection", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		const ackWait = 2 * time.Second
		f.provision(ackWait)
		proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
		f.start(func(o *setup) { o.client.Connection, o.client.AckWait = f.connect("nats://"+proxy.Addr), ackWait })
		cut := proxy.CutAfterRequest("Notifier-Part: f2")
		f.group()
		receive(t, "the loss of the connection", cut)
		f.requireSplit()
	})
}
