package consume

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/delayed"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// recountKit has a room with an event for each kind of stay, and a worker that does not run.
type recountKit struct {
	*fixture
	*stay.Recounter
	stays []store.Stay // of the events in the room, one for each place
}

func newRecountKit(t *testing.T) *recountKit {
	f := newProvisioned(t)
	f.room.claim = true
	k := &recountKit{fixture: f, Recounter: f.newWorker(mayDelay).recounts}
	k.Between = time.Millisecond
	names := testNames.Room()
	slot, _ := names.Schedule(room.Slot, "payments", "a slot")
	const size = stay.WeightBytes + 1 // two places
	for subject, entry := range map[string]room.Entry{
		slot: {Reason: room.Slot, ID: "a slot"},
		names.Channel("0123456789abcdef", "payments"): {Reason: room.Channel, ID: "a channel"},
		names.Queue(room.Part, "payments"):            {Reason: room.Part, ID: "a part", Part: "2"},
		string(names) + ".due.body.payments.x":        {Reason: room.Body, ID: "a body"},
		string(names) + ".due.update.payments.x":      {Reason: room.Update, ID: "an update", Receipt: "C1 1.2"},
		string(names) + ".due.pair.payments.x":        {Reason: room.Pair, ID: "a fold", Fires: true},
		string(names) + ".due.steady.payments.x":      {Reason: room.Steady, ID: "a report", Steady: 1},
	} {
		entry = from(entry, uint64(len(k.stays))+1)
		message := entry.Message(subject, nil, []byte(strings.Repeat(" ", size)))
		place := stay.Of("payments", entry, size, time.Hour)
		if entry.Reason == room.Slot {
			room.ScheduleAt(message, string(names)+".due.slot.payments.x", time.Now().Add(time.Hour))
			place = stay.OfSlot("payments a slot", "payments", entry, size, time.Hour)
		}
		testkit.Must(k.js.PublishMsg(t.Context(), message))(t)
		k.stays = append(k.stays, place.Units()...)
	}
	testkit.Must(f.room.EnterRoom(t.Context(), k.stays))(t)
	return k
}

// from returns an entry of an event from a message of a producer.
func from(entry room.Entry, sequence uint64) room.Entry {
	at := time.UnixMilli(1_700_000_000_000)
	entry.Subject, entry.Since = "notify.payments", at
	entry.Origin = room.Origin{Stream: "EVENTS", Sequence: sequence, Stored: at}
	return entry
}

// want recounts, and checks that the stays of the events in the room are left, and so many others.
func (k *recountKit) want(others int, what string) {
	k.Helper()
	testkit.NoError(k, k.Recount(k.Context()))
	left := make(map[store.Stay]bool)
	for _, stay := range k.room.inRoom() {
		left[stay] = true
	}
	for _, stay := range k.stays {
		testkit.Equal(k, left[stay], true, "%s: whether the stay of %q is left", what, stay.Member)
	}
	testkit.Equal(k, len(left)-len(k.stays), others, "%s: stays without an event", what)
}

func TestRecount(t *testing.T) {
	t.Parallel()
	k := newRecountKit(t)
	forging := from(room.Entry{Reason: room.Part, ID: "forged"}, 1000)
	forged := forging.Message(testNames.Room().Queue(room.Part, "payments"), nil, nil)
	forged.Header.Del(trusted.Header)
	testkit.Must(k.js.PublishMsg(t.Context(), forged))(t)
	lost := []store.Stay{stay.Of("payments", forging, 0, time.Hour)}
	for _, share := range []string{"payments", "payments bodies", "payments folds", "payments updates", "search"} {
		lost = append(lost, store.Stay{First: share, Member: "lost", Weight: 1, For: time.Hour})
	}
	lost = append(lost, store.Stay{First: "payments", Member: "on its way", Weight: 1, For: time.Hour})
	testkit.Must(k.room.EnterRoom(t.Context(), lost))(t)
	k.room.moving = "on its way"

	k.want(7, "while no event is refused")
	k.room.enter = func(store.Stay) bool { return false }
	testkit.Must(stay.WatchedRoom{Room: k.room, Refused: k.Add}.EnterRoom(t.Context(), []store.Stay{{First: "payments updates", Member: "refused", Weight: 1, For: time.Hour}}))(t)
	k.room.claim = false
	k.want(7, "while another worker recounts")
	k.room.claim = true
	k.want(2, "after a refusal")
	k.eventually("the event that waited behind a lost event is due", func() bool { return len(k.waiting(room.Slot)) == 0 })
	k.log.WantCount(t, 1, "waiting events were counted that the room does not have")
}

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
	waits := stay.Waits{Streams: w.streams, Room: f.room, Decoder: testDecoder}
	testkit.Await(t, "the events are planned anew", func() error {
		return waits.Advance(t.Context(), func(e delayed.Event) bool { return e.Entry.Limits == "older" })
	})
	testkit.Equal(t, len(f.room.inRoom()), events, "events that are due in their queues")
	f.eventually("no event waits for its slot", func() bool { return len(f.waiting(room.Slot)) == 0 })
}

// TestForgottenSchedules has a server lose a message schedule from its list of schedules, but not from the stream, as after a kill. A worker
// makes the schedule due.
func TestForgottenSchedules(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATS(t, func(*server.Options) {}))
	f.provision(usualAckWait)
	subject, target := testNames.Room().Schedule(room.Pair, "payments", "order-1")
	entry := from(room.Entry{Reason: room.Pair, ID: "order-1"}, 1)
	schedule := entry.Message(subject, nil, []byte(`{"title": "an event"}`))
	due := time.Now().Add(2 * time.Second)
	room.ScheduleAt(schedule, target, due)
	sequence := testkit.Must(f.js.PublishMsg(t.Context(), schedule))(t).Sequence

	f.server.Kill()
	list := filepath.Join(f.server.Dir, "jetstream", "$G", "streams", testNames.RoomStream, "msgs", "sched.db")
	testkit.Must(os.Stat(list))(t)
	empty := binary.LittleEndian.AppendUint64([]byte{1}, 0) // the version of the format, and the number of schedules
	empty = binary.LittleEndian.AppendUint64(empty, sequence+1)
	testkit.NoError(t, os.WriteFile(list, empty, 0o600))
	f.server.Restart()

	f.eventually("the schedule is late", func() bool { return time.Since(due) > time.Second })
	testkit.Equal(t, len(f.waiting(room.Pair)), 1, "schedules that the server has forgotten")
	f.room.claim = true
	w := f.newWorker(nil)
	w.recounts.Overdue = time.Millisecond
	f.run(w)
	f.awaitOutcomes(map[string]int{"sent payments": 1})
	f.requireRoomEmpty()
	f.eventually("the log has a line", func() bool { return len(f.log.Lines("made message schedules due")) == 1 })
}
