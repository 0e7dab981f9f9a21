package consume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// heavyMessage makes a message of a size on a subject, delivered for the first time.
func heavyMessage(category string, size int) *received.Message {
	subject := "notify." + category
	m := &nats.Msg{
		Subject: subject, Data: make([]byte, size-messagesize.Of(subject, nil, 0)), Sub: new(nats.Subscription),
		Reply: fmt.Sprintf("$JS.ACK.EVENTS.notifier.1.1.1.%d.0", time.Now().UnixNano()),
	}
	made, err := received.NewMessage(m, &received.PullRequest{Request: new(stream.Request)}, usualAckWait)
	if err != nil {
		panic(err)
	}
	return made
}

// newBodiesOf makes the bodies of a worker that does not run.
func newBodiesOf(t *testing.T) *bodies {
	t.Helper()
	f := newFixture(t)
	return f.newWorker(nil).puller.bodies
}

// TestFirstLevelsTakeTurns queues many bodies of one first level before a body of another one. The other one has the second turn.
func TestFirstLevelsTakeTurns(t *testing.T) {
	t.Parallel()
	b := newBodiesOf(t)
	for _, first := range []string{"a", "a", "a", "b"} {
		goes, _ := b.enqueue(first, heavyMessage(first, 1000))
		testkit.Equal(t, goes, toMemory, "where a body of %s goes", first)
	}
	var order []string
	for range 4 {
		first, _, _ := b.take(time.Now())
		order = append(order, first)
	}
	testkit.EqualSlices(t, order, []string{"a", "b", "a", "a"}, "first levels in the order of their turns")
}

// TestCooldown lets a first level cool down after a body, since messages of producers wait. Other first levels go on.
func TestCooldown(t *testing.T) {
	t.Parallel()
	b := newBodiesOf(t)
	b.owners.inbox.behind.Store(true)
	heavy := heavyMessage("a", 1000)
	b.enqueue("a", heavy)
	b.enqueue("a", heavyMessage("a", 1000))
	b.take(time.Now())
	b.done("a", heavy, 10*time.Hour, time.Hour)
	_, m, wait := b.take(time.Now())
	testkit.Check(t, m == nil && wait > 0, "turn of a first level in its cooldown: got message %v and a wait of %v, want only a wait", m, wait)
	b.enqueue("b", heavyMessage("b", 1000))
	first, _, _ := b.take(time.Now())
	testkit.Equal(t, first, "b", "first level with the turn")
	b.owners.inbox.behind.Store(false)
	first, _, _ = b.take(time.Now())
	testkit.Equal(t, first, "a", "first level with the turn while no message waits")
	b.enqueue("a", heavyMessage("a", 1000))
	b.owners.inbox.behind.Store(true)
	first, _, _ = b.take(time.Now().Add(coolTimes * time.Hour))
	testkit.Equal(t, first, "a", "first level with the turn after the cooldown")
}

// TestCooldownsDoNotAddUp decodes bodies of a first level in its cooldown, each while no message of a producer waits. The cooldown after the last
// body is that of one body.
func TestCooldownsDoNotAddUp(t *testing.T) {
	t.Parallel()
	b := newBodiesOf(t)
	for range 100 {
		heavy := heavyMessage("a", 1000)
		b.enqueue("a", heavy)
		b.owners.inbox.behind.Store(false)
		_, m, _ := b.take(time.Now())
		testkit.Require(t, m == heavy, "turn while no message waits: got %v, want the body", m)
		b.owners.inbox.behind.Store(true)
		b.done("a", heavy, time.Minute, time.Minute)
	}
	testkit.AtMost(t, time.Until(b.queues["a"].cooldownEnd), coolTimes*time.Minute, "cooldown")
}

// TestFewBodiesHaveNoCooldown decodes a body that takes little time, and then one that takes more. The first level has a cooldown after the second one.
func TestFewBodiesHaveNoCooldown(t *testing.T) {
	t.Parallel()
	b := newBodiesOf(t)
	b.owners.inbox.behind.Store(true)
	for _, took := range []time.Duration{forgiven / coolTimes / 2, forgiven} {
		heavy := heavyMessage("a", 1000)
		b.enqueue("a", heavy)
		_, m, _ := b.take(time.Now())
		testkit.Require(t, m == heavy, "turn before a body that takes %v: got %v, want the body", took, m)
		b.done("a", heavy, took, took)
	}
	b.enqueue("a", heavyMessage("a", 1000))
	_, m, wait := b.take(time.Now())
	testkit.Check(t, m == nil && wait > 0, "turn after a body that takes long: got message %v and a wait of %v, want only a wait", m, wait)
}

// TestBodiesComeBackSoon sends many bodies to the room after bodies that took long. The last one comes back while the first level may still be in its cooldown,
// and then waits once more.
func TestBodiesComeBackSoon(t *testing.T) {
	t.Parallel()
	b := newBodiesOf(t)
	heavy := heavyMessage("a", bodiesOfFirst)
	b.enqueue("a", heavy)
	b.queues["a"].byteTime = time.Millisecond
	for range 3 {
		goes, wait := b.enqueue("a", heavy)
		testkit.Equal(t, goes, toRoom, "where a further body goes")
		testkit.Equal(t, wait, longestBodyWait, "wait of a further body")
	}
}

// crowdedFor returns refusals whose clock stands still, just after the room has refused a heavy body of a first level.
func crowdedFor(first string) *outcome.Refusals {
	r := outcome.NewRefusals(noTime, &fakeMetrics{}, func() time.Time { return testkit.Start })
	r.AddCrowded(outcome.Crowd(room.Body, first))
	return r
}

func noTime(string) time.Duration { return 0 }

// TestBodiesAreBounded fills the share of one first level. Its further bodies go to the room, one behind the other. A body that comes back
// from there has twice the share. Other first levels have shares of their own.
func TestBodiesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBodiesOf(t)
	b.enqueue("a", heavyMessage("a", bodiesOfFirst))
	last := time.Duration(0)
	for range 3 {
		goes, wait := b.enqueue("a", heavyMessage("a", 100_000))
		testkit.Equal(t, goes, toRoom, "where a body beyond the bound goes")
		testkit.Check(t, wait > last, "wait of a body behind one that waits %v: got %v, want longer", last, wait)
		last = wait
	}
	comesBack := heavyMessage("a", bodiesOfFirst-2*received.MessageBytes)
	comesBack.Entry.Reason = room.Body
	goes, _ := b.enqueue("a", comesBack)
	testkit.Equal(t, goes, toMemory, "where a body goes that has waited")
	goes, _ = b.enqueue("b", heavyMessage("b", 1000))
	testkit.Equal(t, goes, toMemory, "where a body of another first level goes")
	b.owners.refusals = crowdedFor("a")
	goes, _ = b.enqueue("a", heavyMessage("a", 1000))
	testkit.Equal(t, goes, nowhere, "where a body goes that the room would refuse")
	redelivered := heavyMessage("a", 1000)
	redelivered.Meta.NumDelivered = 2
	goes, _ = b.enqueue("a", redelivered)
	testkit.Equal(t, goes, toRoom, "where a body goes whose event may have been admitted")
	testkit.AtMost(t, b.bytes, mostBodies, "bytes of all bodies")
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	b.queues["a"].waiting, b.queues["b"].waiting = nil, nil
	b.run(stopped)
	goes, _ = b.enqueue("b", heavyMessage("b", 1000))
	testkit.Equal(t, goes, back, "where a body goes after the end")
}

// TestCrowdedBodyOnTheBareSubject drops a heavy body that the room would refuse. It is counted under the category that the body names.
func TestCrowdedBodyOnTheBareSubject(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	f.publish("notify", `{"category": "payments", "title": "`+strings.Repeat("x", heavyBytes)+`"}`)
	w := f.newWorker(nil)
	b := w.puller.bodies
	b.owners.refusals = crowdedFor(event.NoLevel)
	b.of(event.NoLevel, time.Now()).back = time.Now().Add(time.Hour)
	f.run(w)
	f.awaitOutcomes(map[string]int{"dropped payments": 1})
}

// largeGroup is a group of two alerts of a size.
func largeGroup(id, size int) string {
	const alert = `{"labels": {"alertname": "x"}, "annotations": {"summary": %q}, "fingerprint": "%d-%d"}`
	text := strings.Repeat("x", size/2)
	return fmt.Sprintf(`{"alerts": [`+alert+`, `+alert+`]}`, text, id, 1, text, id, 2)
}

// TestBodiesWaitInTheRoom publishes more large groups than fit into the share of their first level. Some wait in the room undecoded. Each
// alert becomes one event.
func TestBodiesWaitInTheRoom(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	var waited atomic.Int64
	watching := testkit.Must(f.js.Conn().Subscribe("notify-room.body.payments.>", func(*nats.Msg) { waited.Add(1) }))(t)
	defer func() { _ = watching.Unsubscribe() }()
	const groups, size = 12, 200_000
	for i := range groups {
		f.publish("notify.payments", largeGroup(i, size), "Nats-Msg-Id", fmt.Sprint("group-", i))
	}
	w := f.start(nil)
	f.awaitSettled(2 * groups)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 2 * groups})
	testkit.Check(t, waited.Load() != 0, "no body has waited in the room, want those beyond the share of their first level")
	ids := make(map[string]bool)
	for _, e := range f.sink.handed() {
		ids[e.ShownID()] = true
	}
	testkit.Equal(t, len(ids), 2*groups, "different events")
	for i := range groups {
		id := fmt.Sprintf("group-%d/%d-1", i, i)
		testkit.Check(t, ids[id], "event %s was not sent", id)
	}
	testkit.Equal(t, f.metrics.Get("split"), groups, "messages counted as split")
	f.eventually("all stays have ended", func() bool { return len(f.room.inRoom()) == 0 })
	testkit.Equal(t, w.puller.hand.Held(), 0, "bytes in hand")
}

// TestRefusedAfterALostAnswer has the room refuse an undecided event. A redelivered event may have been admitted, so it comes back; any other
// event is dropped.
func TestRefusedAfterALostAnswer(t *testing.T) {
	t.Parallel()
	deliveries := map[string]func(*received.Message){
		"delivered once": func(*received.Message) {},
		"redelivered":    func(m *received.Message) { m.Meta.NumDelivered = 2 },
		"redelivered before it came from the room": func(m *received.Message) { m.Entry.Attempted = m.Meta.Timestamp },
	}
	for _, reason := range []room.Reason{room.Body, room.Redis} {
		for name, deliver := range deliveries {
			t.Run(string(reason)+", "+name, func(t *testing.T) {
				t.Parallel()
				f := newProvisioned(t)
				f.room.enter = func(store.Stay) bool { return false }
				w := f.prepared(nil)
				w.mover.Start()
				defer w.mover.Close()
				sequence := f.event("payments", "order-1")
				m := f.taken(w, patience)
				m.About.Category = "payments"
				deliver(m)
				w.mover.Hold(received.Candidate{Message: m, Event: testkit.Must(testDecoder.Decode(m.Published()))(t)}, move.Goal{Reason: reason, In: time.Minute}, nil)
				f.eventually("the message is settled", func() bool { return len(f.said.about(sequence)) > 0 })
				if name == "delivered once" {
					f.awaitOutcomes(map[string]int{"dropped payments": 1})
				} else {
					f.requirePutOff(sequence)
					f.requireOutcomes(map[string]int{})
				}
				testkit.Equal(t, f.metrics.Get("refused by the room: "+string(reason)), 1, "refusals")
			})
		}
	}
}

// TestTinyBodiesLeaveRoomInHand queues so many tiny bodies of several first levels that they would fill a worker's hand. Half of it stays free, as
// the parts of earlier bodies need it.
func TestTinyBodiesLeaveRoomInHand(t *testing.T) {
	t.Parallel()
	b := newBodiesOf(t)
	inHand := 0
	for i := range received.MostInHand / received.MessageBytes {
		first := fmt.Sprint("c", i%8)
		tiny := heavyMessage(first, 100)
		if goes, _ := b.enqueue(first, tiny); goes == toMemory {
			inHand += tiny.Size()
		}
	}
	testkit.AtMost(t, inHand, received.MostInHand/2, "bytes in hand")
}

// TestBytesInHand publishes more bytes than a worker takes in hand, while no post ends. The worker sends to the room what it does not take.
func TestBytesInHand(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	release := newGate(t)
	f.holdPosts(release)
	const events, size = 800, heavyBytes - 1000
	f.publishAsync(events, func(int) (subject, body string) { return "notify.payments", strings.Repeat("x", size) })
	w := f.start(func(o *setup) { o.Concurrency = events })
	f.eventually("all events are delivered to the worker, and few are in hand", func() bool {
		testkit.AtMost(t, w.puller.hand.Held(), received.MostInHand, "bytes in hand")
		info := testkit.Must(w.streams.Layout().Consumer.Info(t.Context()))(t)
		return info.NumPending == 0 && info.NumAckPending*size <= 2*lane.MostBytes
	})
	release.open()
	f.awaitOutcomes(map[string]int{"sent payments": events})
}

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
		testkit.Check(t, c.Message.Stream == testNames.Stream && c.Message.Sequence == group && !c.HasWaited,
			"request: got %+v, want the origin of the group", c)
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
		parts, _ := testDecoder.Parts(m.Published())
		for _, part := range gone.mover.NewSplit(m, parts).ToStore.Messages {
			testkit.Must(f.js.PublishMsg(t.Context(), part))(t)
		}
		f.start(nil)
		f.eventually("the parts end", func() bool { return f.metrics.ended() == 2 })
		gone.settler.Nak(m, 0)
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
