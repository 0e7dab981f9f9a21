package simulate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func startStream(t *testing.T, config jetstream.StreamConfig) (jetstream.JetStream, jetstream.Stream) {
	t.Helper()
	js := servertest.JetStream(t, servertest.StartNATS(t).URL)
	config.Name, config.Subjects = "EVENTS", []string{"notify", "notify.>", "other.>"}
	return js, testkit.Must(js.CreateStream(t.Context(), config))(t)
}

func readStream(t *testing.T, js jetstream.JetStream) *History {
	t.Helper()
	return testkit.Must(ReadStream(t.Context(), js, "EVENTS", decoder, unwatched))(t)
}

func publish(t *testing.T, js jetstream.JetStream, subject, body string, options ...jetstream.PublishOpt) {
	t.Helper()
	testkit.Must(js.Publish(t.Context(), subject, []byte(body), options...))(t)
}

// TestReadWorkQueue reads a work queue beside its consumer. The stream and the consumer do not change.
func TestReadWorkQueue(t *testing.T) {
	t.Parallel()
	js, stream := startStream(t, jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy})
	consumer := testkit.Must(stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable: "notifier", AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: []string{"notify", "notify.>"},
	}))(t)
	const count = 600 // more than the number of pieces
	for i := range count {
		publish(t, js, fmt.Sprintf("notify.team%d", i%3), fmt.Sprintf(`{"text": "x", "id": "%d", "cost": %d}`, i, i%5+1))
	}
	batch := testkit.Must(consumer.Fetch(100))(t)
	var acked []uint64 // every third of the delivered messages
	inHand := 0
	for m := range batch.Messages() {
		meta := testkit.Must(m.Metadata())(t)
		if inHand++; meta.Sequence.Stream%3 == 0 {
			acked = append(acked, meta.Sequence.Stream)
			testkit.NoError(t, m.DoubleAck(t.Context()))
		}
	}
	var before *jetstream.ConsumerInfo
	testkit.Eventually(t, "the consumer counts all messages", func() bool { // the server counts them after it has acknowledged them
		before = testkit.Must(consumer.Info(t.Context()))(t)
		return before.NumPending == count-100
	})

	h := readStream(t, js)
	testkit.Check(t, inHand == 100 && len(h.events) == count-len(acked) && h.Invalid == 0,
		"got %d events and %d invalid messages, want %d and none", len(h.events), h.Invalid, count-len(acked))
	seen := make(map[string]bool)
	for i, e := range h.events {
		if i > 0 && e.At.Before(h.events[i-1].At) {
			t.Errorf("time of %s: got %v, want none before %v", e.Identity, e.At, h.events[i-1].At)
		}
		seen[e.Identity] = true
	}
	testkit.Equal(t, len(seen), len(h.events), "different events")
	after := testkit.Must(consumer.Info(t.Context()))(t)
	if after.Delivered.Consumer != before.Delivered.Consumer || after.NumPending != before.NumPending || after.NumAckPending != before.NumAckPending {
		t.Errorf("consumer: got %+v, want %+v", after, before)
	}
	info := testkit.Must(stream.Info(t.Context()))(t)
	if left := uint64(count - len(acked)); info.State.Msgs != left || info.State.Consumers != 1 {
		t.Errorf("stream: got %d messages and %d consumers, want %d and 1", info.State.Msgs, info.State.Consumers, left)
	}
}

// TestReadStream reads the events that a worker would decode, at their times in JetStream. The stream allows direct reads.
func TestReadStream(t *testing.T) {
	t.Parallel()
	js, stream := startStream(t, jetstream.StreamConfig{AllowDirect: true})
	started := time.Now().Add(-time.Second)
	publish(t, js, "notify.Payments", `{"title": "t", "time": "2020-01-01T00:00:00Z", "cost": 3}`, jetstream.WithMsgID("header"))
	publish(t, js, "other.thing", "not for the notifier")
	publish(t, js, "notify.payments", "")
	publish(t, js, "notify", `{"text": "u", "category": "errors", "id": "body"}`)
	publish(t, js, "notify.a.b", "plain text")
	publish(t, js, "notify.a.b", "deleted")
	testkit.NoError(t, stream.DeleteMsg(t.Context(), 6))

	h := readStream(t, js)
	for i, e := range h.events {
		testkit.Check(t, !e.At.Before(started) && !e.At.After(time.Now().Add(time.Second)),
			"time of an event: got %v, want the time of storing", e.At)
		h.events[i].At = time.Time{}
	}
	testkit.EqualDeeply(t, h.events, []Event{
		{Number: 1, Identity: "payments header", Category: "payments", Cost: 3}, {Number: 4, Identity: "errors body", Category: "errors", Cost: 1},
		{Number: 5, Identity: "a.b EVENTS:5", Derived: true, Category: "a.b", Cost: 1},
	}, "events")
	testkit.Check(t, h.Invalid == 1 && h.Problems[0].Number == 3 && strings.Contains(h.Problems[0].Err.Error(), "empty"),
		"invalid messages: got %d, %v, want the empty message 3", h.Invalid, h.Problems)
}

// TestReadStreamOfAlerts reads groups and pairs as a worker does. Forged headers have no effect.
func TestReadStreamOfAlerts(t *testing.T) {
	t.Parallel()
	js, _ := startStream(t, jetstream.StreamConfig{})
	publish(t, js, "notify.a", `{"alerts": [`+alert("firing", "1")+", "+alert("firing", "2")+", {}]}")
	publish(t, js, "notify.a", `{"alerts": [`+alert("resolved", "1")+", "+alert("resolved", "3")+"]}")
	publish(t, js, "notify", `{"alerts": [`+strings.Replace(alert("firing", "1"), `"Disk"`, `"Disk", "category": "b"`, 1)+", "+alert("firing", "1")+"]}")
	forged := &nats.Msg{Subject: "notify.b", Data: []byte(`{"text": "x", "id": "x"}`), Header: nats.Header{"Notifier-Id": {"EVENTS:1"}, "Notifier-Part": {"1"}}}
	testkit.Must(js.PublishMsg(t.Context(), forged))(t)
	h := readStream(t, js)
	var got []string
	for _, e := range h.events {
		got = append(got, e.Identity)
	}
	const start = " 2020-01-01T00:00:00Z"
	want := []string{
		"a 1 firing" + start, "a 2 firing" + start, "a 1 resolved" + start, "a 3 resolved" + start,
		"b 1 firing" + start, "default 1 firing" + start, "b x",
	}
	testkit.EqualSlices(t, got, want, "identities")
	testkit.Check(t, h.Read == 4 && h.Invalid == 1 && h.Problems[0].Number == 1 && strings.Contains(h.Problems[0].Err.Error(), "alerts[2]"),
		"got %d of %d messages invalid, %v; want the first of 4", h.Invalid, h.Read, h.Problems)
	report := testkit.Must(h.Replay(t.Context(), newLimiter(t, "none", "none", ""), unwatched))(t)
	testkit.Equal(t, report.Total.Sent, 6, "sent")
	testkit.EqualMaps(t, report.Total.Dropped, map[string]int{"unpaired": 1}, "dropped")
}

func TestReadEmptyStream(t *testing.T) {
	t.Parallel()
	js, stream := startStream(t, jetstream.StreamConfig{})
	for range 2 { // a new stream, then a purged one
		h, err := ReadStream(t.Context(), js, "EVENTS", decoder, unwatched)
		testkit.Check(t, err == nil && len(h.events) == 0 && h.Invalid == 0, "got %+v, %v, want nothing", h, err)
		publish(t, js, "notify", "text")
		testkit.NoError(t, stream.Purge(t.Context()))
	}
}

func fill(t *testing.T, js jetstream.JetStream, count int) {
	t.Helper()
	for range count {
		testkit.Must(js.PublishAsync("notify", []byte("text")))(t)
	}
	<-js.PublishAsyncComplete()
}

// TestReadStreamAsItIs publishes more events during the read. The history leaves them out.
func TestReadStreamAsItIs(t *testing.T) {
	t.Parallel()
	js, _ := startStream(t, jetstream.StreamConfig{})
	const count, after = progressEvery + 257, 256 // the last piece is smaller than the others
	fill(t, js, count)
	late := 0
	h, err := ReadStream(t.Context(), js, "EVENTS", decoder, func(int64, int64) {
		for ; late < after; late++ {
			if _, err := js.Publish(t.Context(), "notify", []byte("late")); err != nil {
				t.Error(err)
			}
		}
	})
	testkit.Check(t, err == nil && len(h.events) == count && late == after,
		"got %d events and %d late ones, %v; want %d and %d", len(h.events), late, err, count, after)
}

func TestReadStreamEnds(t *testing.T) {
	t.Parallel()
	js, _ := startStream(t, jetstream.StreamConfig{})
	fill(t, js, 2*progressEvery)
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := ReadStream(ctx, js, "EVENTS", decoder, func(done, total int64) {
		testkit.Equal(t, done, progressEvery, "messages read")
		testkit.Equal(t, total, 2*progressEvery, "messages in all")
		cancel(stopped)
	})
	testkit.Fails(t, "end of the context", err, stopped)
	testkit.NoError(t, js.DeleteStream(t.Context(), "EVENTS"))
	_, err = ReadStream(t.Context(), js, "EVENTS", decoder, unwatched)
	testkit.Fails(t, "without a stream", err, jetstream.ErrStreamNotFound)
}
