package stream

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
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
	c := &jetstream.ConsumerConfig{Durable: testNames.Consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1, MaxAckPending: MaxAckPending}
	change(c)
	return c
}

var provisionCases = map[string]provisionCase{
	"nothing is there":         {maxAge: testNames.MaxAge, ackWait: ackWait},
	"as it is made":            {existing: existing(func(*jetstream.ConsumerConfig) {}), maxAge: time.Hour, ackWait: ackWait},
	"shorter ack wait":         {existing: existing(func(c *jetstream.ConsumerConfig) { c.AckWait = 7 * time.Second }), ackWait: 7 * time.Second, remarks: []string{"acknowledgement wait is 7s, not 30s"}},
	"longer ack wait":          {existing: existing(func(c *jetstream.ConsumerConfig) { c.AckWait = time.Hour }), ackWait: ackWait, remarks: []string{"acknowledgement wait is 1h0m0s, not 30s"}},
	"fewer deliveries at once": {existing: existing(func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 1000 }), ackWait: ackWait, remarks: []string{"1000 unacknowledged messages (max_ack_pending), not 20000"}},
	"bounded deliveries":       {existing: existing(func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 3 }), ackWait: ackWait, remarks: []string{"at most 3 times"}},
	"push":                     {existing: existing(func(c *jetstream.ConsumerConfig) { c.DeliverSubject = "deliver" }), err: "not a pull consumer"},
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
			stream := jetstream.StreamConfig{
				Name: testNames.Stream, Subjects: []string{"notify.>"}, Retention: jetstream.WorkQueuePolicy, MaxAge: test.maxAge, Description: "by hand",
			}
			testkit.Must(f.js.CreateStream(t.Context(), stream))(t)
			testkit.NoError(t, f.createConsumer(*test.existing))
			if test.err == "" {
				before = f.state()
			}
		}
		found, err := search(t.Context(), f.js, ackWait, f.log.Logger())
		if test.err != "" {
			testkit.Fails(t, "error", err, nil, test.err)
			return
		}
		testkit.NoError(t, err)
		if ackWait, maxAge := found.AckWait(), found.MaxAge(); ackWait != test.ackWait || maxAge != test.maxAge {
			t.Errorf("ack wait and age: got %v and %v, want %v and %v", ackWait, maxAge, test.ackWait, test.maxAge)
		}
		client := testkit.Must(NewClient(Options{
			Connection: f.connect(ConnectOptions{URL: f.server.URL}), Names: testNames, Provision: true, AckWait: ackWait, Logger: f.log.Logger(),
		}))(t)
		testkit.NoError(t, client.Find(t.Context()))
		f.log.WantCount(t, min(1, len(test.remarks)), "consumer differs from the settings")
		for _, remark := range test.remarks {
			f.log.WantCount(t, 1, remark)
		}
		if before == "" {
			f.requireProvisioned()
			before = f.state()
		}
		testkit.Must(search(t.Context(), f.js, time.Minute, f.log.Logger()))(t)
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
	config := testkit.Must(f.js.Consumer(f.Context(), testNames.Stream, testNames.Consumer))(f).CachedInfo().Config
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
		testkit.Check(f, got == want && c.Storage == jetstream.FileStorage && c.Replicas == 1,
			"stream %s: got %d replicas, storage %v and\n%s, want 1, files and\n%s", name, c.Replicas, c.Storage, got, want)
	}
	c := f.consumerConfig()
	if c.AckPolicy != jetstream.AckExplicitPolicy || c.MaxDeliver != -1 || c.AckWait != ackWait || c.MaxAckPending != MaxAckPending || c.Durable != testNames.Consumer {
		f.Errorf("consumer: got %+v, want that of the settings", c)
	}
	consumer := testkit.Must(f.js.Consumer(f.Context(), testNames.RoomStream, testNames.roomConsumer()))(f)
	c = consumer.CachedInfo().Config
	if c.AckPolicy != jetstream.AckExplicitPolicy || c.MaxDeliver != -1 || c.AckWait != ackWait || c.MaxAckPending != MaxAckPending ||
		fmt.Sprint(c.FilterSubjects) != "[notify-room.due.> notify-room.part.> notify-room.replay.>]" {
		f.Errorf("consumer of the room: got %+v, want that of the settings", c)
	}
}

// TestProducersAreNotTrusted has a producer try to delete and forge the messages of others.
func TestProducersAreNotTrusted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision()
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
		_, err := f.js.PublishMsg(t.Context(), m)
		testkit.Fails(t, name, err, nil)
	}
	testkit.Equal(t, f.streamInfo(testNames.Stream).State.Msgs, 1, "messages in the stream")
}

func TestServerIsTooOld(t *testing.T) {
	t.Parallel()
	conn := testkit.Must(nats.Connect(servertest.OldNATS(t, "2.11.9")))(t)
	defer conn.Close()
	js := testkit.Must(jetstream.New(conn))(t)
	_, err := search(t.Context(), js, ackWait, slog.New(slog.DiscardHandler))
	want := "nats-server 2.11.9 at " + conn.ConnectedAddr() + " is older than 2.12.8: the room needs message schedules, and older servers let a producer delete the events of others"
	testkit.Fails(t, "error", err, ErrUnfit, want)
}

// TestStoreIsTooSmall wants an error with the names of the settings.
func TestStoreIsTooSmall(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATS(t, func(o *server.Options) { o.JetStreamMaxStore = 100 << 20 }))
	_, err := search(t.Context(), f.js, ackWait, f.log.Logger())
	for _, setting := range []string{
		`stream "DEAD" with 67108864 bytes`, "NOTIFIER_STREAM_MAX_BYTES", "NOTIFIER_DLQ_MAX_BYTES", "NOTIFIER_JOURNAL_MAX_BYTES", "max_file_store",
	} {
		testkit.Fails(t, "error", err, nil, setting)
	}
}

// TestChannelConsumerGetsTheLease has a channel's consumer from before a change of the ack wait.
func TestChannelConsumerGetsTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision()
	testkit.Must(f.js.CreateConsumer(t.Context(), testNames.RoomStream, testNames.ChannelConsumerConfig("C1", 7*time.Second)))(t)
	found := testkit.Must(search(t.Context(), f.js, ackWait, f.log.Logger()))(t)
	for range 2 { // the second time it is cached
		consumer := testkit.Must(found.Room.Channel(t.Context(), "C1"))(t)
		testkit.Equal(t, consumer.CachedInfo().Config.AckWait, ackWait, "ack wait that the worker knows")
	}
	stored := testkit.Must(f.js.Consumer(t.Context(), testNames.RoomStream, testNames.ChannelConsumer("C1")))(t)
	testkit.Equal(t, stored.CachedInfo().Config.AckWait, ackWait, "ack wait of the consumer")
}
