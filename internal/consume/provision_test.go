package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// provisionCase is an existing consumer, or none.
type provisionCase struct {
	existing *jetstream.ConsumerConfig
	maxAge   time.Duration // of the existing stream
	ackWait  time.Duration
	remarks  []string
	err      string
}

func existing(change func(*jetstream.ConsumerConfig)) *jetstream.ConsumerConfig {
	c := &jetstream.ConsumerConfig{Durable: testNames.Consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: patience, MaxDeliver: -1}
	change(c)
	return c
}

var provisionCases = map[string]provisionCase{
	"nothing is there":        {maxAge: testNames.MaxAge, ackWait: patience},
	"as it is made":           {existing: existing(func(*jetstream.ConsumerConfig) {}), maxAge: time.Hour, ackWait: patience},
	"shorter ack wait":        {existing: existing(func(c *jetstream.ConsumerConfig) { c.AckWait = 7 * time.Second }), ackWait: 7 * time.Second, remarks: []string{"acknowledgement wait is 7s, not 30s"}},
	"longer ack wait":         {existing: existing(func(c *jetstream.ConsumerConfig) { c.AckWait = time.Hour }), ackWait: time.Hour, remarks: []string{"acknowledgement wait is 1h0m0s, not 30s"}},
	"bounded deliveries":      {existing: existing(func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 3 }), ackWait: patience, remarks: []string{"at most 3 times"}},
	"push":                    {existing: existing(func(c *jetstream.ConsumerConfig) { c.DeliverSubject = "deliver" }), err: "not a pull consumer"},
	"without acknowledgement": {existing: existing(func(c *jetstream.ConsumerConfig) { c.AckPolicy, c.AckWait = jetstream.AckNonePolicy, 0 }), err: "acknowledgement policy"},
	"with a back-off": {existing: existing(func(c *jetstream.ConsumerConfig) {
		c.BackOff, c.MaxDeliver = []time.Duration{4 * time.Second, 2 * time.Second, time.Minute}, 5
	}), ackWait: 2 * time.Second, remarks: []string{"back-off", "at most 5 times", "acknowledgement wait is 2s"}},
}

// TestProvision makes absent streams and consumers. It uses existing ones without a change.
func TestProvision(t *testing.T) {
	t.Parallel()
	each(t, provisionCases, func(t *testing.T, f *fixture, test provisionCase) {
		before := ""
		if test.existing != nil {
			stream := jetstream.StreamConfig{Name: testNames.Stream, Subjects: []string{"notify.>"}, MaxAge: test.maxAge, Description: "by hand"}
			testkit.Must(f.js.CreateStream(t.Context(), stream))(t)
			testkit.NoError(t, f.createConsumer(*test.existing))
			if test.err == "" {
				before = f.state()
			}
		}
		w := f.newWorker(nil)
		found, err := w.names.provision(t.Context(), f.js, patience, true, f.log.Logger())
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("error: got %v, want one with %q", err, test.err)
			}
			return
		}
		testkit.NoError(t, err)
		ackWait, maxAge := leaseOf(found.consumer.CachedInfo().Config), found.stream.CachedInfo().Config.MaxAge
		if ackWait != test.ackWait || maxAge != test.maxAge {
			t.Errorf("ack wait and age: got %v and %v, want %v and %v", ackWait, maxAge, test.ackWait, test.maxAge)
		}
		f.log.WantCount(t, len(test.remarks), "consumer differs from the settings")
		for _, remark := range test.remarks {
			f.log.WantCount(t, 1, remark)
		}
		if before == "" {
			f.requireProvisioned()
			before = f.state()
		}
		testkit.Must(w.names.provision(t.Context(), f.js, time.Minute, true, f.log.Logger()))(t)
		testkit.Equal(t, f.state(), before, "configuration after another provision")
	})
}

// state shows the configuration of the stream and the consumer.
func (f *fixture) state() string {
	f.Helper()
	return fmt.Sprintf("%+v\n%+v", f.streamInfo(testNames.Stream).Config, f.consumerConfig())
}

func (f *fixture) consumerConfig() jetstream.ConsumerConfig {
	f.Helper()
	config := f.consumerInfo().Config
	config.Metadata = nil // metadata of the server
	return config
}

// createConsumer makes a pull consumer or a push consumer, as configured.
func (f *fixture) createConsumer(config jetstream.ConsumerConfig) error {
	f.Helper()
	if config.DeliverSubject != "" {
		_, err := f.js.CreatePushConsumer(f.Context(), testNames.Stream, config)
		return err
	}
	_, err := f.js.CreateConsumer(f.Context(), testNames.Stream, config)
	return err
}

func (f *fixture) requireProvisioned() {
	f.Helper()
	for name, want := range map[string]string{
		testNames.Stream:           "[notify notify.>] WorkQueue DiscardNew 67108864 bytes -1 on a subject for 168h0m0s, schedules false, roll-ups false, purge denied true, known for 2m0s",
		testNames.RoomStream:       "[notify-room.>] WorkQueue DiscardOld -1 bytes -1 on a subject for 168h0m0s, schedules true, roll-ups true, purge denied false, known for 1h0m0s",
		testNames.DeadLetterStream: "[notify-dlq.>] Limits DiscardNew 67108864 bytes 100 on a subject for 720h0m0s, schedules false, roll-ups false, purge denied false, known for 1h0m0s",
	} {
		c := f.streamInfo(name).Config
		got := fmt.Sprintf("%v %v %v %d bytes %d on a subject for %v, schedules %t, roll-ups %t, purge denied %t, known for %v", c.Subjects, c.Retention, c.Discard,
			c.MaxBytes, c.MaxMsgsPerSubject, c.MaxAge, c.AllowMsgSchedules, c.AllowRollup, c.DenyPurge, c.Duplicates)
		if got != want || c.Storage != jetstream.FileStorage || c.Replicas != 1 {
			f.Errorf("stream %s: got %d replicas, storage %v and\n%s, want 1, files and\n%s", name, c.Replicas, c.Storage, got, want)
		}
	}
	c := f.consumerConfig()
	if c.AckPolicy != jetstream.AckExplicitPolicy || c.MaxDeliver != -1 || c.AckWait != patience || c.MaxAckPending != maxAckPending || c.Durable != testNames.Consumer {
		f.Errorf("consumer: got %+v, want that of the settings", c)
	}
	consumer := testkit.Must(f.js.Consumer(f.Context(), testNames.RoomStream, testNames.roomConsumer()))(f)
	c = consumer.CachedInfo().Config
	if c.AckPolicy != jetstream.AckExplicitPolicy || c.MaxDeliver != -1 || c.AckWait != patience || c.MaxAckPending != maxAckPending ||
		fmt.Sprint(c.FilterSubjects) != "[notify-room.due.> notify-room.part.> notify-room.replay.>]" {
		f.Errorf("consumer of the room: got %+v, want that of the settings", c)
	}
}

// TestProducersAreNotTrusted has a producer try to delete and forge the messages of others.
func TestProducersAreNotTrusted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	f.event("security", "order-1")
	for name, headers := range map[string][]string{
		"roll all up":     {"Nats-Rollup", "all"},
		"roll one up":     {"Nats-Rollup", "sub"},
		"schedule":        {"Nats-Schedule", "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target", "notify.security"},
		"purge another's": {"Nats-Schedule-Next", "purge", "Nats-Scheduler", "notify.security"},
	} {
		m := nats.NewMsg("notify.payments")
		for i := 0; i < len(headers); i += 2 {
			m.Header.Set(headers[i], headers[i+1])
		}
		if _, err := f.js.PublishMsg(t.Context(), m); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
	testkit.Equal(t, f.streamInfo(testNames.Stream).State.Msgs, 1, "messages in the stream")
}

// TestUnfit refuses unsafe streams with a reason.
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
		"a producers' stream with roll-ups": {func(events, _ *jetstream.StreamConfig) { events.AllowRollup, events.DenyPurge = true, false }, "allows roll-ups"},
		"a room without schedules":          {func(_, room *jetstream.StreamConfig) { room.AllowMsgSchedules, room.AllowRollup = false, false }, "does not allow message schedules"},
		"a room that is no queue":           {func(_, room *jetstream.StreamConfig) { room.Retention = jetstream.LimitsPolicy }, "expected workqueue"},
	}, func(t *testing.T, f *fixture, test unfitCase) {
		events, room := testNames.StreamConfig(), testNames.RoomConfig()
		test.change(&events, &room)
		for _, config := range []jetstream.StreamConfig{events, room} {
			testkit.Must(f.js.CreateStream(t.Context(), config))(t)
		}
		w := f.newWorker(nil)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, _, err := w.Prepare(ctx); !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("error of Prepare: got %v, want %v with %q", err, ErrUnfit, test.says)
		}
		if err := w.Ready(); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("Ready: got %v, want %q", err, test.says)
		}
	})
}

func TestServerIsTooOld(t *testing.T) {
	t.Parallel()
	conn := testkit.Must(nats.Connect(servertest.OldNATS(t, "2.11.9")))(t)
	defer conn.Close()
	js := testkit.Must(jetstream.New(conn))(t)
	_, err := testNames.provision(t.Context(), js, patience, true, slog.New(slog.DiscardHandler))
	want := "nats-server 2.11.9 at " + conn.ConnectedAddr() + " is older than 2.12: the room needs message schedules"
	if !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), want) {
		t.Errorf("error: got %v, want %q", err, want)
	}
}

// TestStoreIsTooSmall wants an error with the names of the settings.
func TestStoreIsTooSmall(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATS(t, func(o *server.Options) { o.JetStreamMaxStore = 100 << 20 }))
	w := f.newWorker(nil)
	_, err := w.names.provision(t.Context(), f.js, patience, true, f.log.Logger())
	for _, setting := range []string{`stream "DEAD" with 67108864 bytes`, "NOTIFIER_STREAM_MAX_BYTES", "NOTIFIER_DLQ_MAX_BYTES", "max_file_store"} {
		if err == nil || !strings.Contains(err.Error(), setting) {
			t.Errorf("error: got %v, want one with %s", err, setting)
		}
	}
}

// TestFullStream fills the producers' stream. Workers still store waiting events and dead letters.
func TestFullStream(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATS(t, func(o *server.Options) { o.JetStreamMaxStore = 64 << 20 }))
	w := f.newWorker(func(o *Options) {
		o.Names.MaxBytes, o.Names.DeadLetters.Bytes = 4<<20, 4<<20
		mayDelay(o)
	})
	testkit.Must(w.names.provision(t.Context(), f.js, patience, true, f.log.Logger()))(t)
	var err error
	for i := 0; err == nil; i++ {
		body := fmt.Sprintf(`{"id": "%d", "title": "x", "text": %q}`, i, strings.Repeat("x", 100_000))
		if i%2 == 1 {
			body = body[1:] + "{"
		}
		_, err = f.js.Publish(t.Context(), []string{"notify.payments", "notify.broken.ä"}[i%2], []byte(body))
	}
	if !strings.Contains(err.Error(), "maximum bytes exceeded") {
		t.Errorf("error of the producer: got %v, want maximum bytes exceeded", err)
	}
	stored := int(f.streamInfo(testNames.Stream).State.Msgs)
	f.denyFirst(comeBackIn(time.Second))
	f.run(f.prepare(w))
	f.awaitSettled(stored)
	f.requireOutcomes(map[string]int{"sent payments": (stored + 1) / 2, "dead ": stored / 2})
}

// TestConsumerIsAwaited starts a worker that may create nothing. The worker logs the absent consumer once, and is ready when it is there.
func TestConsumerIsAwaited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.newWorker(func(o *Options) { o.Provision = false })
	if err := w.Ready(); err == nil {
		t.Error("Ready before Prepare: got no error, want one")
	}
	prepared := make(chan error, 1)
	go func() {
		_, _, err := w.Prepare(context.WithoutCancel(t.Context()))
		prepared <- err
	}()
	f.eventually("the log says what is missing", func() bool { return len(f.log.Lines("the consumer is not there")) == 1 })
	if err := w.Ready(); err == nil || !strings.Contains(err.Error(), `consumer "notifier" of stream "EVENTS"`) {
		t.Errorf("Ready: got %v, want an error with the name of the consumer", err)
	}
	f.provision(patience)
	testkit.NoError(t, <-prepared)
	testkit.Equal(t, w.Ready(), nil, "Ready")
	f.log.WantCount(t, 2, "the consumer is")
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
				f := newFixture(t)
				f.provision(patience)
				w := f.start(func(o *Options) { o.Provision = provision })
				f.event("payments", "before")
				f.awaitSettled(1)
				testkit.NoError(t, remove(f))
				f.eventually("that is noticed", func() bool { return len(f.log.Lines("the consumer is not there")) == 1 })
				if !provision {
					if err := w.Ready(); err == nil {
						t.Error("Ready without a consumer: got no error, want one")
					}
					f.provision(patience)
				}
				f.eventually("it is ready", func() bool { return w.Ready() == nil })
				f.eventually("the stream takes messages", f.streamAnswers)
				f.event("payments", "after")
				f.awaitSettled(2)
				f.requireHistory("after", "send", "finish")
				f.requireOutcomes(map[string]int{"sent payments": 2})
				f.log.WantCount(t, 1, "the consumer is there")
			})
		}
	}
}

// streamAnswers tells whether the stream answers a publisher. A new stream takes a moment. The server refuses the message.
func (f *fixture) streamAnswers() bool {
	ctx, cancel := context.WithTimeout(f.Context(), time.Second)
	defer cancel()
	_, err := f.js.Publish(ctx, testNames.Subject+".check", nil, jetstream.WithExpectStream("another"))
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return refused && refusal.ErrorCode == errUnexpected
}
