package consume

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// forge has the server publish its acknowledgements of events on subjects, as a producer can that shares the workers' account.
func (f *fixture) forge(subjects ...string) {
	f.Helper()
	for _, subject := range subjects {
		testkit.NoError(f, f.js.Conn().PublishMsg(&nats.Msg{Subject: "notify.forging", Reply: subject, Data: []byte(`{"title": "x"}`)}))
	}
	f.publish("notify.forging", `{"title": "x"}`)
}

// TestForgedMessages has acknowledgements of the server in the room, among the dead letters and in the journal. They are removed and counted,
// and become neither events nor dead letters. Entries that a worker wrote stay.
func TestForgedMessages(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	const first, key = "security", "0123456789abcdef0123456789abcdef"
	queue := testNames.Room().Channel(room.Token("#alerts"), first)
	inRoom := []string{
		"notify-room.part." + first, "notify-room.replay." + first, "notify-room.due.slot." + first + "." + key, queue,
		testNames.Room().Channel("0123456789abcdef", first), "notify-room.slot." + first, "notify-room.slot." + first + "." + key, "notify-room.pair." + first + "." + key, "notify-room.redis." + first + "." + key,
	}
	letters := []string{"notify-dlq.bad_field." + first, "notify-dlq.bad_json._", "notify-dlq." + first}
	entries := []string{"notify-journal." + first, "notify-journal._"}
	testkit.NoError(t, testNames.Journal.Provision(t.Context(), f.js))
	own := nats.NewMsg(entries[0])
	trusted.Mark(own.Header)
	testkit.Must(f.js.PublishMsg(t.Context(), own))(t)
	f.forge(slices.Concat(inRoom, letters, entries)...)
	const events = 15
	f.start(nil)
	f.eventually("the forged messages of the room are counted", func() bool { return f.metrics.Get("forged room") == len(inRoom) })
	f.eventually("the forged dead letters are counted", func() bool { return f.metrics.Get("forged dead_letters") == len(letters) })
	f.eventually("the forged entries are counted", func() bool { return f.metrics.Get("forged journal") == len(entries) })
	f.eventually("all events end", func() bool { return f.metrics.ended() == events })
	f.requireOutcomes(map[string]int{"sent forging": events})
	f.eventually("the room is empty", func() bool {
		return testkit.Must(f.js.Stream(t.Context(), testNames.RoomStream))(t).CachedInfo().State.Msgs == 0
	})
	testkit.Equal(t, len(f.deadLetters()), 0, "dead letters")
	testkit.Equal(t, f.streamInfo(testNames.Journal.Stream).State.Msgs, 1, "entries of the journal")
}

// TestForgedMessagesOpenNoPair has forged messages in the room where events that may open a pair wait. A resolved event does not wait for them.
func TestForgedMessagesOpenNoPair(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.forge("notify-room.redis.security", "notify-room.replay.security")
	at := w.streams.Layout()
	f.eventually("the forged messages are stored", func() bool {
		return testkit.Must(f.js.Stream(t.Context(), testNames.RoomStream))(t).CachedInfo().State.Msgs == 2
	})
	first := w.decider.pairs.firstOfRoom(t.Context(), at, openings{})
	testkit.Equal(t, first, openings{first: 3}, "sequence of the first event that may open a pair")
}

// TestForgedQueues has forged messages in the queues of more channels than may wait to be served. A worker serves the other queues, also that of
// a channel that the settings no longer name, and makes no consumer for the forged ones.
func TestForgedQueues(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	const few = 100
	w := f.newWorker(nil)
	w.puller.queues.unserved = make(chan source, few)
	f.publishAsync(few+1, func(i int) (subject, body string) {
		return testNames.Room().Channel(room.Token(fmt.Sprint("#forged", i)), "security"), ""
	})
	earlier := testNames.Room().Channel(room.Token("#earlier"), "security")
	testkit.Must(f.js.Publish(t.Context(), earlier, nil))(t) // forged too
	f.putInRoom(earlier, room.Entry{
		Reason: room.Channel, Subject: "notify.security", ID: "held", Origin: room.Origin{Stream: "OTHER", Sequence: 7, Stored: time.Now()}, Since: time.Now(),
	}, `{"title": "an event"}`)
	f.run(w)
	f.eventually("the event of the queue ends", func() bool { return f.metrics.ended() == 1 })
	f.requireOutcomes(map[string]int{"sent security": 1})
	testkit.AtMost(t, f.streamInfo(testNames.RoomStream).State.Consumers, 20, "consumers of the room")
}
