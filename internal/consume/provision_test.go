package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/replicas"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
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
	f.awaitOutcomes(map[string]int{"sent payments": (stored + 1) / 2, "dead ": stored / 2})
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

// streamAnswers reports whether the stream answers a publisher. A new stream takes a moment. The server refuses the message.
func (f *fixture) streamAnswers() bool {
	ctx, cancel := context.WithTimeout(f.Context(), time.Second)
	defer cancel()
	_, err := f.js.Publish(ctx, testNames.Subject+".check", nil, jetstream.WithExpectStream("another"))
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return refused && refusal.ErrorCode == anotherStream
}

// sampleServer starts a server with the sample of configs. The operator provisions everything.
func sampleServer(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, servertest.StartSampleNATS(t, "../../configs/nats/notifier.conf"), nats.UserInfo("operator", "secret"))
}

// sampleNames are the default names, for which the sample of configs is written. The dead-letter stream is small.
var sampleNames = stream.Names{
	Stream: "NOTIFICATIONS", Subject: "notify", Consumer: "notifier", MaxBytes: 1 << 30, MaxAge: 7 * 24 * time.Hour,
	RoomStream: "NOTIFICATIONS_ROOM", LongestWait: time.Hour,
	DeadLetterStream: "NOTIFICATIONS_DLQ", DeadLetterSubject: "notify-dlq",
	DeadLetters: stream.DeadLetterBounds{PerSubject: 100, Bytes: 1 << 20, Age: time.Hour},
}

func (f *fixture) decideByID() {
	f.throttle.answers(func(c store.Request) store.Decision {
		switch {
		case shown(c) == "wait" && len(f.throttle.asked()) < 3:
			return store.Decision{Verdict: store.Leased, Wait: time.Millisecond}
		case shown(c) == "resolved":
			return store.Decision{Verdict: store.Unpaired}
		case shown(c) == "delay" && !c.HasWaited:
			return denied(time.Second)
		}
		return f.throttle.admit(c)
	})
	f.throttle.delay = comeBackIn(time.Second)
}

// TestSampleRightsAreEnough has a worker do all kinds of its work with the rights of the sample.
func TestSampleRightsAreEnough(t *testing.T) {
	f := sampleServer(t)
	for _, done := range (stream.Provisioning{JetStream: f.js, Names: sampleNames, AckWait: 3 * time.Second}).Apply(t.Context()) {
		testkit.NoError(t, done.Err)
	}
	c := f.connectAs(stream.ConnectOptions{URL: f.server.URL, User: "notifier", Password: "secret", Inbox: "_INBOX_notifier"})
	f.eventually("it is connected", c.Conn.IsConnected)
	for _, finding := range stream.Check(t.Context(), stream.Options{Connection: c, Names: sampleNames, AckWait: 3 * time.Second}, stream.Further{Channels: []string{"#ops"}, Bucket: "notifier-limits"}) {
		if finding.Err != nil && !finding.Warning {
			t.Errorf("check of %s: got %v, want no error", finding.Subject, finding.Err)
		}
	}

	// The IDs name the kinds. A group and more dead letters than the stream takes follow.
	release := newGate(t)
	f.decideByID()
	f.holdPosts(release)
	f.pacer.Pause(t.Context(), "paused", 3*time.Second)
	w := f.start(func(o *setup) {
		mayDelay(o)
		o.Pace = time.Millisecond
		o.client.Connection, o.client.Names, o.client.Provision, o.client.AckWait = c, sampleNames, false, 3*time.Second
	})
	f.event("payments", "slow")
	f.event("payments", "wait")
	f.event("payments", "delay")
	f.event("paused", "held")
	f.publish("notify.payments", `{"id": "resolved", "title": "x", "status": "resolved", "key": "k"}`)
	f.publish("notify.payments", `{"alerts": [
		{"status": "firing", "labels": {"alertname": "First"}, "fingerprint": "f1"},
		{"status": "firing", "labels": {"alertname": "Second"}, "fingerprint": "f2"}]}`)
	const letters = 8
	for range letters {
		f.publish("notify.payments", "{"+strings.Repeat("x", 200_000))
	}
	f.eventually("a lease is renewed", func() bool { return f.calls.count("extend slow") > 0 })
	release.open()
	f.eventually("all end", func() bool { return f.metrics.ended() == 7+letters })
	f.requireOutcomes(map[string]int{"sent payments": 5, "sent paused": 1, "dead payments": letters, "dropped payments": 1})
	w.stop()
	testkit.Check(t, f.metrics.Get("letters discarded") != 0, "discarded letters: got none, want some")
	if denied := c.Denied(); len(denied) > 0 || len(f.log.Lines("permission")) > 0 {
		t.Errorf("denials: got %q and the lines %q, want none", denied, f.log.Lines("permission"))
	}
}

// forgetful is a consumer about which the server leaves so many questions unanswered.
type forgetful struct {
	jetstream.Consumer
	infos chan struct{} // has an element for each question about the consumer
	dumb  int           // how many of these questions have no answer
}

func (c *forgetful) Info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	c.infos <- struct{}{}
	if c.dumb > 0 {
		c.dumb--
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.Consumer.Info(ctx)
}

// TestConsumerAskedForAfterReconnect loses the connection with a question about the consumer. The worker asks anew when the connection is
// there again, and does not report the consumer as absent.
func TestConsumerAskedForAfterReconnect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	consumer := &forgetful{Consumer: w.streams.Layout().Consumer, infos: make(chan struct{}), dumb: 1}
	ended := make(chan error, 1)
	go func() { ended <- w.puller.pullFailed(t.Context(), consumer, nats.ErrNoResponders) }()
	receive(t, "the first question", consumer.infos)
	testkit.NoError(t, w.streams.Connection.Conn.ForceReconnect())
	receive(t, "the question after the reconnect", consumer.infos)
	testkit.NoError(t, receive(t, "the end of the questions", ended))
	testkit.NoError(t, w.Ready())
	f.log.WantCount(t, 0, "consumer not found")
	f.log.WantCount(t, 0, "nats does not answer")
}
