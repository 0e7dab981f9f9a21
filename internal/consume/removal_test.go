package consume

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/openers"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// reappearedCase is a message behind the acknowledgement floor of a consumer.
type reappearedCase struct {
	stream   string
	consumer jetstream.ConsumerConfig
	narrow   string // the consumer's filter while the message is stored
	behind   string // the message's subject
}

func reappearedCases() map[string]reappearedCase {
	token := room.Token("payments")
	queue := testNames.Room().ChannelFilter(token)
	return map[string]reappearedCase{
		"an event": {testNames.Stream, testNames.ConsumerConfig(patience, testNames.Subjects()), "notify.settled", "notify.payments"},
		"a replay": {testNames.RoomStream, testNames.RoomConsumerConfig(patience), "notify-room.replay.settled", "notify-room.replay.payments"},
		"an event for a channel": {
			testNames.RoomStream,
			testNames.ChannelConsumerConfig(token, patience),
			strings.TrimSuffix(queue, ">") + "settled", strings.TrimSuffix(queue, ">") + "payments",
		},
	}
}

// TestAcknowledgedMessagesReappear starts a worker with a message behind a consumer's acknowledgement floor, as after a kill of the server. The
// worker removes the message without an outcome.
func TestAcknowledgedMessagesReappear(t *testing.T) {
	t.Parallel()
	each(t, reappearedCases(), func(t *testing.T, f *fixture, test reappearedCase) {
		f.provision(usualAckWait)
		_ = f.js.DeleteConsumer(t.Context(), test.stream, test.consumer.Durable)
		narrow := test.consumer
		narrow.FilterSubject, narrow.FilterSubjects = test.narrow, nil
		consumer := testkit.Must(f.js.CreateConsumer(t.Context(), test.stream, narrow))(t)
		behind := &nats.Msg{Subject: test.behind, Header: nats.Header{}, Data: []byte(`{"id": "settled", "title": "an event"}`)}
		trusted.Mark(behind.Header)
		testkit.Must(f.js.PublishMsg(t.Context(), behind))(t)
		f.publish(test.narrow, `{}`)
		testkit.NoError(t, testkit.Must(consumer.Next(jetstream.FetchMaxWait(patience)))(t).DoubleAck(t.Context()))
		wide := testkit.Must(f.js.UpdateConsumer(t.Context(), test.stream, test.consumer))(t).CachedInfo()
		testkit.Equal(t, wide.NumPending, uint64(0), "messages to come of the consumer")
		testkit.Equal(t, f.streamInfo(test.stream).State.Msgs, uint64(1), "messages behind the floor")

		f.event("payments", "order-1")
		f.start(nil)
		f.eventually("the stream is empty", func() bool { return f.streamInfo(test.stream).State.Msgs == 0 })
		f.awaitOutcomes(map[string]int{"sent payments": 1})
		f.requireHistory("settled")
		f.eventually("the log reports it", func() bool { return len(f.log.Lines("removed acknowledged messages")) == 1 })
		if lines := f.log.Lines("removed acknowledged messages"); !strings.Contains(lines[0], test.consumer.Durable) || !strings.Contains(lines[0], "removed=1") {
			t.Errorf("line: got %q, want one message of consumer %q", lines[0], test.consumer.Durable)
		}
	})
}

// TestUnacknowledgedMessagesStay has messages that wait, and one that a worker has and that is not acknowledged.
func TestUnacknowledgedMessagesStay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	found := f.provision(usualAckWait)
	f.numbered("payments", 3)
	testkit.Must(found.Consumer.Next(jetstream.FetchMaxWait(patience)))(t)
	testkit.NoError(t, testkit.Must(found.Consumer.Next(jetstream.FetchMaxWait(patience)))(t).DoubleAck(t.Context()))
	w := f.newWorker(nil)
	isDone, err := w.watcher.RemoveReappeared(t.Context(), make(map[string]uint64))
	testkit.NoError(t, err)
	testkit.Equal(t, isDone, false, "done, while a worker has a message")
	testkit.Equal(t, f.streamInfo(testNames.Stream).State.Msgs, uint64(2), "messages in the stream")
}

// TestReappearedAboveTheFloor has a message reappear between one that a worker has and one that is acknowledged. It is removed once the first is
// acknowledged.
func TestReappearedAboveTheFloor(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	wide := testNames.ConsumerConfig(usualAckWait, testNames.Subjects())
	testkit.NoError(t, f.js.DeleteConsumer(t.Context(), testNames.Stream, wide.Durable))
	narrow := wide
	narrow.FilterSubject, narrow.FilterSubjects = "notify.settled", nil
	consumer := testkit.Must(f.js.CreateConsumer(t.Context(), testNames.Stream, narrow))(t)
	for _, subject := range []string{"notify.settled", "notify.payments", "notify.settled"} {
		f.publish(subject, `{}`)
	}
	held := testkit.Must(consumer.Next(jetstream.FetchMaxWait(patience)))(t)
	testkit.NoError(t, testkit.Must(consumer.Next(jetstream.FetchMaxWait(patience)))(t).DoubleAck(t.Context()))
	testkit.Must(f.js.UpdateConsumer(t.Context(), testNames.Stream, wide))(t)

	w, before := f.newWorker(nil), make(map[string]uint64)
	for _, left := range []uint64{2, 0} {
		isDone, err := w.watcher.RemoveReappeared(t.Context(), before)
		testkit.NoError(t, err)
		testkit.Equal(t, isDone, left == 0, "done with %d messages left", left)
		testkit.Equal(t, f.streamInfo(testNames.Stream).State.Msgs, left, "messages in the stream")
		if !isDone {
			testkit.NoError(t, held.DoubleAck(t.Context()))
		}
	}
}

// TestMessagesOfAReconnect distinguishes messages that were stored after a reconnect, which have not reappeared, from earlier messages.
func TestMessagesOfAReconnect(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	w := f.newWorker(nil)
	stored := time.Now()
	testkit.Equal(t, w.streams.IsOfReconnect(stored.Add(time.Minute)), false, "without a reconnect, a message is of it")
	before := w.streams.Connection.UntilReconnect()
	testkit.NoError(t, w.streams.Connection.Conn.ForceReconnect())
	<-before.Done()
	testkit.Equal(t, w.streams.IsOfReconnect(stored.Add(-time.Minute)), false, "an earlier message is of the reconnect")
	testkit.Equal(t, w.streams.IsOfReconnect(stored.Add(time.Minute)), true, "a later message is of the reconnect")
}

// TestNarrowFilter narrows the filter of a consumer while a worker runs. Events that the consumer leaves out are not acknowledged: no worker
// removes them, and they are sent after notifier provision.
func TestNarrowFilter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := f.provision(usualAckWait).Consumer.CachedInfo().Config
	config.FilterSubjects = []string{"notify.payments"}
	w := f.newWorker(nil)
	narrow := testkit.Must(f.js.UpdateConsumer(t.Context(), testNames.Stream, config))(t)
	f.event("deploys", "deploy-1")
	f.event("payments", "order-1")
	testkit.NoError(t, testkit.Must(narrow.Next(jetstream.FetchMaxWait(patience)))(t).DoubleAck(t.Context()))
	_, err := w.watcher.RemoveReappeared(t.Context(), make(map[string]uint64))
	testkit.Fails(t, "removal", err, err, "takes only some of the subjects notify, notify.>")

	for _, done := range (stream.Provisioning{JetStream: f.js, Names: testNames, AckWait: usualAckWait}).Apply(t.Context()) {
		testkit.NoError(t, done.Err)
	}
	f.run(w)
	f.awaitOutcomes(map[string]int{"sent deploys": 1})
}

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
	f.eventually("the forged messages are stored", func() bool {
		return testkit.Must(f.js.Stream(t.Context(), testNames.RoomStream))(t).CachedInfo().State.Msgs == 2
	})
	decided := w.decider.pairs.openers.AreDecided(t.Context(), &openers.Reach{Until: 1, Behind: 2}, func() uint64 { return 1 })
	testkit.Equal(t, decided, true, "decided, with forged messages in the room")
}

// TestQueueThatComesLater has a worker with other settings store an event for a channel that this worker's settings do not name. The other worker
// ends, so this worker has to post the event.
func TestQueueThatComesLater(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start(nil)
	f.event("payments", "order-1")
	f.awaitSettled(1) // the worker has looked for queues
	f.putInRoom(testNames.Room().Channel(room.Token("#earlier"), "security"), room.Entry{
		Reason: room.Channel, Subject: "notify.security", ID: "held", Origin: room.Origin{Stream: "OTHER", Sequence: 7, Stored: time.Now()}, Since: time.Now(),
	}, `{"title": "an event"}`)
	f.awaitOutcomes(map[string]int{"sent payments": 1, "sent security": 1})
	f.requireRoomEmpty()
}

// TestForgedQueues has forged messages in the queues of more channels than may wait to be served. A worker serves the other queues, also that of
// a channel that the settings no longer name, and makes no consumer for the forged ones.
func TestForgedQueues(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	const few = 100
	w := f.newWorker(nil)
	w.puller.queues.Unserved = make(chan received.Source, few)
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
