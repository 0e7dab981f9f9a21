package consume

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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
		f.awaitSettled(1)
		f.requireOutcomes(map[string]int{"sent payments": 1})
		f.requireHistory("settled")
		f.eventually("the log tells of it", func() bool { return len(f.log.Lines("removed acknowledged messages")) == 1 })
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
	isDone, err := w.watcher.removeReappeared(t.Context(), make(map[string]uint64))
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
		isDone, err := w.watcher.removeReappeared(t.Context(), before)
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
	testkit.Equal(t, w.watcher.isOfReconnect(stored.Add(time.Minute)), false, "without a reconnect, a message is of it")
	before := w.streams.Connection.UntilReconnect()
	testkit.NoError(t, w.streams.Connection.Conn.ForceReconnect())
	<-before.Done()
	testkit.Equal(t, w.watcher.isOfReconnect(stored.Add(-time.Minute)), false, "an earlier message is of the reconnect")
	testkit.Equal(t, w.watcher.isOfReconnect(stored.Add(time.Minute)), true, "a later message is of the reconnect")
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
	_, err := w.watcher.removeReappeared(t.Context(), make(map[string]uint64))
	testkit.Fails(t, "removal", err, err, "takes only some of the subjects notify, notify.>")

	for _, done := range (stream.Provisioning{JetStream: f.js, Names: testNames, AckWait: usualAckWait}).Apply(t.Context()) {
		testkit.NoError(t, done.Err)
	}
	f.run(w)
	f.awaitSettled(1)
	f.requireOutcomes(map[string]int{"sent deploys": 1})
}
