package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/replicas"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestUnfit refuses unsafe streams with a reason, and consumers with an ack wait that is no longer than a post.
func TestUnfit(t *testing.T) {
	t.Parallel()
	type unfitCase struct {
		change func(events, room *jetstream.StreamConfig)
		says   string
	}
	each(t, map[string]unfitCase{
		"a producers' stream with schedules": {func(events, _ *jetstream.StreamConfig) {
			events.AllowMsgSchedules, events.AllowRollup, events.DenyPurge, events.Discard = true, true, false, jetstream.DiscardOld
		}, "allows message schedules"},
		"a producers' stream with roll-ups":    {func(events, _ *jetstream.StreamConfig) { events.AllowRollup, events.DenyPurge = true, false }, "allows roll-ups"},
		"a producers' stream that is no queue": {func(events, _ *jetstream.StreamConfig) { events.Retention = jetstream.LimitsPolicy }, "has retention Limits, expected workqueue"},
		"a room without schedules":             {func(_, room *jetstream.StreamConfig) { room.AllowMsgSchedules, room.AllowRollup = false, false }, "does not allow message schedules"},
		"a room that is no queue":              {func(_, room *jetstream.StreamConfig) { room.Retention = jetstream.LimitsPolicy }, "expected workqueue"},
		"an ack wait that a post outlasts":     {func(_, _ *jetstream.StreamConfig) {}, "has an acknowledgement wait of"},
	}, func(t *testing.T, f *fixture, test unfitCase) {
		events, room := testNames.StreamConfig(), testNames.RoomConfig()
		test.change(&events, &room)
		for _, config := range []jetstream.StreamConfig{events, room} {
			testkit.Must(f.js.CreateStream(t.Context(), config))(t)
		}
		options := f.setup().client
		options.Longest = options.AckWait
		c := f.newClient(options)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		testkit.Fails(t, "error of Find", c.Find(ctx), stream.ErrUnfit, test.says)
		f.log.WantCount(t, 0, "consumer not found")
	})
}

// TestFullStream fills the producers' stream. Workers still store waiting events and dead letters.
func TestFullStream(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATS(t, func(o *server.Options) { o.JetStreamMaxStore = 64 << 20 }))
	w := f.newWorker(func(o *setup) {
		o.client.Names.MaxBytes, o.client.Names.DeadLetters.Bytes = 1<<20, 1<<20
		mayDelay(o)
	})
	var err error
	for i := 0; err == nil; i++ {
		body := fmt.Sprintf(`{"id": "%d", "title": "x", "text": %q}`, i, strings.Repeat("x", heavyBytes/2))
		if i%2 == 1 {
			body = body[1:] + "{"
		}
		_, err = f.js.Publish(t.Context(), []string{"notify.payments", "notify.broken.ä"}[i%2], []byte(body))
	}
	testkit.Contains(t, "error of the producer", err.Error(), "maximum bytes exceeded")
	stored := int(f.streamInfo(testNames.Stream).State.Msgs)
	f.denyFirst(comeBackIn(time.Second))
	f.run(w)
	f.awaitSettled(stored)
	f.requireOutcomes(map[string]int{"sent payments": (stored + 1) / 2, "dead ": stored / 2})
}

// TestDeletedWhileRunning deletes the consumer or the stream. A worker that provisions makes them anew. Another one waits for them.
func TestDeletedWhileRunning(t *testing.T) {
	t.Parallel()
	deletions := map[string]func(*fixture) error{
		"consumer": func(f *fixture) error { return f.js.DeleteConsumer(f.Context(), testNames.Stream, testNames.Consumer) },
		"stream":   func(f *fixture) error { return f.js.DeleteStream(f.Context(), testNames.Stream) },
	}
	for what, remove := range deletions {
		for _, provision := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, provision %t", what, provision), func(t *testing.T) {
				t.Parallel()
				f := newProvisioned(t)
				w := f.start(func(o *setup) { o.client.Provision = provision })
				f.event("payments", "before")
				f.awaitSettled(1)
				removed := time.Now()
				testkit.NoError(t, remove(f))
				f.eventually("that is noticed", func() bool { return len(f.log.Lines("consumer not found")) == 1 })
				if !provision {
					f.eventually("the probe names the consumer", func() bool {
						err := w.streams.Ready()
						return err != nil && strings.Contains(err.Error(), `consumer "notifier" of stream "EVENTS"`)
					})
					f.provision(usualAckWait)
				}
				f.eventually("it is ready", func() bool { return w.streams.Ready() == nil })
				f.eventually("the stream takes messages", f.streamAnswers)
				if made := testkit.Must(f.js.Stream(t.Context(), testNames.Stream))(t).CachedInfo().Created; made.After(removed) && provision {
					testkit.Between(t, made.Sub(removed), replicas.DeletionTime, time.Minute, "time after which the stream is recreated")
				}
				f.event("payments", "after")
				f.awaitSettled(2)
				f.requireHistory("after", "send", "finish")
				f.requireOutcomes(map[string]int{"sent payments": 2})
				f.log.WantCount(t, 1, "consumer found")
			})
		}
	}
}

// TestUnfitWhileRunning makes the stream anew as no worker can use it. The worker ends with an error.
func TestUnfitWhileRunning(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	w := f.start(func(o *setup) { o.client.Provision = false })
	testkit.NoError(t, f.js.DeleteStream(t.Context(), testNames.Stream))
	events := testNames.StreamConfig()
	events.AllowRollup, events.DenyPurge = true, false
	testkit.Must(f.js.CreateStream(t.Context(), events))(t)
	f.eventually("that is noticed", func() bool { return len(f.log.Lines("consumer not found")) == 1 })
	testkit.Must(f.js.CreateConsumer(t.Context(), testNames.Stream, testNames.ConsumerConfig(usualAckWait, events.Subjects)))(t)
	testkit.Fails(t, "error of the worker", receive(t, "the end of the worker", w.result), stream.ErrUnfit)
}

// anotherStream is how a stream refuses a message that expects another stream.
const anotherStream = jetstream.ErrorCode(10060)

// streamAnswers tells whether the stream answers a publisher. A new stream takes a moment. The server refuses the message.
func (f *fixture) streamAnswers() bool {
	ctx, cancel := context.WithTimeout(f.Context(), time.Second)
	defer cancel()
	_, err := f.js.Publish(ctx, testNames.Subject+".check", nil, jetstream.WithExpectStream("another"))
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return refused && refusal.ErrorCode == anotherStream
}
