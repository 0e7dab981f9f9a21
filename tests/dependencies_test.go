package tests

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// TestServersDownAtStart starts a worker before anything that it needs.
func TestServersDownAtStart(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"hold", "local"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			n, r := servertest.StartNATS(t), servertest.StartRedis(t)
			d := deploy(t, nil, r)
			n.Kill()
			r.Kill()
			w := d.startWorker("worker", "NATS_URL", n.URL, "REDIS_FAILURE", policy, "REDIS_GRACE", "10m")
			w.awaitStatus("/readyz", http.StatusServiceUnavailable, "nats is not connected")
			w.awaitStatus("/healthz", http.StatusOK, "")
			unknown := func(names ...string) {
				t.Helper()
				for _, name := range names {
					if series := w.scrape()[name].GetMetric(); len(series) > 0 {
						t.Errorf("%s is %v, and nobody knows it yet", name, series)
					}
				}
			}
			unknown("notifier_limit_size", "notifier_limit_used", "notifier_degraded", "notifier_ack_pending", "notifier_room_pending")
			time.Sleep(3 * time.Second) // for several attempts, of which the log is to mention the first: none can be seen from outside
			if lines := w.logLines(""); lines > 3 {
				t.Errorf("the log has %d lines, want no more than one for each server and one for the start", lines)
			}

			n.Restart()
			d.nats, d.js = n, servertest.JetStream(t, n.URL)
			w.awaitStatus("/readyz", http.StatusServiceUnavailable, "redis")
			ids := d.publishEvents([]string{"errors"}, 5)
			testkit.Await(t, "a line about redis", func() error {
				if w.logLines("redis") == 0 {
					return errMissing
				}
				return nil
			})
			time.Sleep(time.Second) // for several attempts, which cannot be seen from outside
			if lines := w.logLines("redis"); lines != 1 {
				t.Errorf("the log has %d lines about redis, want one", lines)
			}
			if posts := d.slack.Posts(); len(posts) != 0 {
				t.Errorf("%d posts before redis was there", len(posts))
			}
			unknown("notifier_limit_used")
			w.alone().awaitSum(100, "notifier_limit_size", "level", "global")

			r.Restart()
			w.awaitReady()
			d.awaitEmpty()
			wantPostedOnce(t, d.slack.Accepted(), ids)
			if lines := w.logLines(`"level":"WARN"`) + w.logLines(`"level":"ERROR"`); lines > 3 {
				t.Errorf("%d warnings, want no more than one for each server and one for the consumer", lines)
			}
		})
	}
}

// TestIdleWorkerNoticesRedis has Redis go while no event makes the worker ask.
func TestIdleWorkerNoticesRedis(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", "REDIS_FAILURE", "hold", "REDIS_TIMEOUT", "500ms")
	d.redis.Kill()
	w.awaitStatus("/readyz", http.StatusServiceUnavailable, "redis")
	w.alone().awaitSum(1, "notifier_degraded", "policy", "hold")
	d.redis.Restart()
	w.awaitReady()
	w.alone().awaitSum(0, "notifier_degraded", "policy", "hold")
}

// TestPermissionsMissing gives the worker NATS users who lack something.
func TestPermissionsMissing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		permissions string
		options     []string
		says        string
		most        int // lines: one for each subject
	}{
		{"no JetStream API", `publish: { deny: "$JS.API.>" }`, nil, "$JS.API.CONSUMER.INFO", 2},
		{"may not create the stream", `publish: { deny: "$JS.API.STREAM.CREATE.>" }`, nil, "$JS.API.STREAM.CREATE", 2},
		{"may not take events", `publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" }`, nil, "$JS.API.CONSUMER.MSG.NEXT", 3}, // of events, the room and a channel
		{"may not acknowledge", `publish: { deny: "$JS.ACK.>" }`, nil, "$JS.ACK", 2},
		{"no account with JetStream", ``, []string{"jetstream: disabled"}, "JetStream", 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			jetStream := "jetstream: enabled"
			for _, option := range test.options {
				jetStream = option
			}
			n := servertest.StartNATSProcess(t, fmt.Sprintf(`
				accounts { A { %s, users: [
					{ user: admin, password: admin }
					{ user: worker, password: worker, permissions: { subscribe: ">", %s } }
				] } }`, jetStream, test.permissions))
			d := deploy(t, nil, servertest.StartRedis(t))
			d.js = servertest.JetStream(t, n.URL, nats.UserInfo("admin", "admin"))
			w := d.startWorker("worker", "NATS_URL", n.URL, "NATS_USER", "worker", "NATS_PASSWORD", "worker")
			if test.name == "may not take events" || test.name == "may not acknowledge" {
				w.awaitReady()
				d.publishEvents([]string{"errors"}, 10)
			} else {
				w.awaitStatus("/readyz", http.StatusServiceUnavailable, "")
			}
			testkit.Await(t, "a line that names what is missing", func() error {
				if w.logLines(test.says) == 0 {
					return errMissing
				}
				return nil
			})
			if status, _ := w.get("/healthz"); status != http.StatusOK {
				t.Errorf("/healthz has status %d, want 200", status)
			}
			w.stop()
			if lines := w.logLines("permission is missing"); lines > test.most {
				t.Errorf("the log has %d lines about permissions, want one for each that is missing, %d at most", lines, test.most)
			}
		})
	}
}

// TestStreamDeleted deletes the stream under a running worker. The new one counts from 1 again, so that events without an
// ID get those of the old stream's, which were posted.
func TestStreamDeleted(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, unlimited()...)
	const events = 5
	for range events {
		d.publish("notify.errors", "before")
	}
	d.awaitPosts(events)
	d.awaitEmpty()
	testkit.NoError(t, d.js.DeleteStream(t.Context(), streamName))
	d.awaitConsumer()
	for range events {
		d.publish("notify.errors", "after")
	}
	d.awaitPosts(2 * events)
	d.awaitEmpty()
	for _, w := range workers {
		w.awaitReady()
	}
	after := 0
	for _, post := range d.slack.Accepted() {
		if post.Text == "[INFO] after" {
			after++
		}
	}
	if after != events {
		t.Errorf("%d of %d events of the new stream were posted", after, events)
	}
	workers.awaitEvents(2*events, "outcome", "sent")
	workers.awaitSum(2*events, "notifier_events_total")
}

// TestMessagesVanish has an operator purge events that no worker has had: one worker says so, and counts them.
func TestMessagesVanish(t *testing.T) {
	t.Parallel()
	const stored, kept = 10, 3
	d := newDeployment(t)
	d.createStream()
	workers := d.startFleet(2, unlimited()...)
	d.publish("notify.errors", eventBody("first"))
	workers.awaitEvents(1, "outcome", "sent")
	testkit.Await(t, "the note of the consumer's position in redis", func() error {
		if d.redis.CLI("keys", "*passed:*") == "" {
			return errMissing
		}
		return nil
	})
	workers.stopFrom(0)
	ids := d.publishEvents([]string{"errors"}, stored)
	stream := testkit.Must(d.js.Stream(t.Context(), streamName))(t)
	testkit.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeKeep(kept)))
	workers = d.startFleet(2, unlimited()...)
	workers.awaitEvents(kept, "outcome", "sent")
	workers.awaitSum(stored-kept, "notifier_vanished_total")
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), append(ids[stored-kept:], "first"))
	said := 0
	for _, w := range workers {
		said += w.logLines("messages have left the stream without the workers' doing")
	}
	if said != 1 {
		t.Errorf("the logs say %d times that messages have left, want once", said)
	}
	workers.awaitSum(stored-kept, "notifier_vanished_total")
}

// awaitConsumer waits until the consumer is there again.
func (d *deployment) awaitConsumer() {
	d.t.Helper()
	testkit.Await(d.t, "the consumer", func() error {
		_, err := d.js.Consumer(d.t.Context(), streamName, consumerName)
		return err
	})
}

func TestConsumerDeleted(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	slowPosts(d.slack, 50*time.Millisecond)
	workers := d.startFleet(2, unlimited()...)
	ids := d.publishEvents([]string{"errors"}, 50)
	d.awaitPosts(10)
	testkit.NoError(t, d.js.DeleteConsumer(t.Context(), streamName, consumerName))
	d.awaitConsumer()
	ids = append(ids, d.publishEvents([]string{"later"}, 10)...)
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), ids)
	for _, w := range workers {
		w.awaitReady()
	}
}

// TestConsumerDeletedWhileDelivering deletes the consumer while admitted events are being posted and their limit is known to be full.
// The new consumer delivers them as if for the first time; they must not be taken for new ones, which would be dropped.
func TestConsumerDeletedWhileDelivering(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	release := make(chan struct{})
	d.slack.Respond(func(slacktest.Post) slacktest.Answer { return slacktest.Hold(release, slacktest.OK()) })
	w := d.startReady("worker", quick("SLACK_TIMEOUT", "2s", "CATEGORY_LIMIT", "2/30m", "DENY_CACHE_TTL", "10m")...)
	d.publishEvents([]string{"errors"}, 10)
	w.alone().awaitEvents(8, "outcome", "dropped")
	testkit.NoError(t, d.js.DeleteConsumer(t.Context(), streamName, consumerName))
	d.awaitConsumer()
	testkit.Await(t, "a delivery by the new consumer", func() error {
		consumer, err := d.js.Consumer(t.Context(), streamName, consumerName)
		if err == nil && consumer.CachedInfo().Delivered.Consumer < 2 {
			err = errMissing
		}
		return err
	})
	close(release)
	d.awaitEmpty()
	w.alone().awaitEvents(8, "outcome", "dropped")
	w.alone().awaitSum(10, "notifier_events_total")
	testkit.Equal(t, len(count(d.slack.Accepted(), "id")), 2, "events were posted")
}

// TestNothingProvisioned runs a worker that may create nothing.
func TestNothingProvisioned(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startWorker("worker", "NATS_PROVISION", "false")
	w.awaitStatus("/readyz", http.StatusServiceUnavailable, "stream not found")
	time.Sleep(3 * time.Second) // for several attempts, which cannot be seen from outside
	w.wantLogLines(1, "the consumer is not there")
	if names := d.js.StreamNames(t.Context()); len(names.Name()) != 0 {
		t.Error("a stream was created")
	}

	d.createStream()
	w.awaitStatus("/readyz", http.StatusServiceUnavailable, "consumer not found")
	testkit.Must(d.js.CreateConsumer(t.Context(), streamName, jetstream.ConsumerConfig{
		Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 20 * time.Second,
	}))(t)
	w.awaitStatus("/readyz", http.StatusServiceUnavailable, roomStreamName)
	d.createRoom()
	w.awaitReady()
	ids := d.publishEvents([]string{"errors"}, 3)
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), ids)
	w.wantLogLines(1, "acknowledgement wait")
}

// TestProvisioned reads what a worker creates, and that it alters nothing that is there.
func TestProvisioned(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	if _, err := d.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: streamName, Subjects: []string{"notify.>", "notify", "more"}, Storage: jetstream.MemoryStorage, Description: "mine",
	}); err != nil {
		t.Fatal(err)
	}
	d.startReady("worker", "NATS_ACK_WAIT", "20s")
	stream := testkit.Must(d.js.Stream(t.Context(), streamName))(t)
	if c := stream.CachedInfo().Config; c.Description != "mine" || len(c.Subjects) != 3 || c.Storage != jetstream.MemoryStorage {
		t.Errorf("the stream was altered: %+v", c)
	}
	consumer := testkit.Must(d.js.Consumer(t.Context(), streamName, consumerName))(t)
	if c := consumer.CachedInfo().Config; c.AckPolicy != jetstream.AckExplicitPolicy || c.AckWait != 20*time.Second || c.MaxDeliver != -1 || c.Durable != consumerName {
		t.Errorf("the consumer is %+v", c)
	}
	dead := testkit.Must(d.js.Stream(t.Context(), deadStreamName))(t)
	if c := dead.CachedInfo().Config; c.Retention != jetstream.LimitsPolicy || c.Storage != jetstream.FileStorage || c.Subjects[0] != "notify-dlq.>" ||
		c.MaxMsgsPerSubject != 1000 || c.MaxBytes != 256<<20 || c.MaxAge != 30*24*time.Hour {
		t.Errorf("the dead-letter stream is %+v", c)
	}
	room := testkit.Must(d.js.Stream(t.Context(), roomStreamName))(t)
	if c := room.CachedInfo().Config; c.Retention != jetstream.WorkQueuePolicy || c.Storage != jetstream.FileStorage || c.Subjects[0] != "notify-room.>" ||
		!c.AllowMsgSchedules {
		t.Errorf("the room is %+v", c)
	}
}

// TestProducersStream reads what producers may do with the stream that a worker makes.
func TestProducersStream(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker")
	stream := testkit.Must(d.js.Stream(t.Context(), streamName))(t)
	if c := stream.CachedInfo().Config; c.AllowRollup || c.AllowMsgSchedules || !c.DenyPurge || c.MaxBytes != 1<<30 || c.MaxAge != 7*24*time.Hour {
		t.Errorf("the producers' stream is %+v", c)
	}
	for name, value := range map[string]string{"Nats-Rollup": "all", "Nats-Schedule": "@at 2030-01-01T00:00:00Z"} {
		message := nats.NewMsg("notify.payments")
		message.Header.Set(name, value)
		message.Header.Set("Nats-Schedule-Target", "notify.security")
		if _, err := d.js.PublishMsg(t.Context(), message); err == nil {
			t.Errorf("a message with the header %s is stored", name)
		}
	}
	if err := stream.Purge(t.Context()); err == nil {
		t.Error("the stream can be purged")
	}
	d.publish("notify.security", eventBody("unharmed"))
	testkit.Await(t, "the event of another category", func() error {
		if len(d.posts("unharmed")) == 0 {
			return errMissing
		}
		return nil
	})
	w.awaitReady()
}

// TestOtherNames uses names for everything other than the defaults, a NATS token and a Redis database.
func TestOtherNames(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t, func(o *server.Options) { o.Authorization = "token" })
	d := deploy(t, nil, servertest.StartRedis(t))
	d.nats, d.js = n, servertest.JetStream(t, n.URL, nats.Token("token"))
	w := d.startReady("worker", "NATS_TOKEN", "token", "NATS_STREAM", "ALARMS", "NATS_SUBJECT", "team.alarms", "NATS_CONSUMER", "posting", "ROOM_STREAM", "LOBBY",
		"DLQ_STREAM", "REFUSED", "DLQ_SUBJECT", "team.refused", "REDIS_URL", "redis://"+d.redis.Addr+"/3", "REDIS_PREFIX", "team:a.b-c", "GLOBAL_LIMIT", "2/1h")
	d.publish("team.alarms.errors", "{")
	w.alone().awaitEvents(1, "outcome", "dead")
	d.publish("team.alarms", eventBody("bare"))
	d.publish("team.alarms.errors", eventBody("error"))
	d.publish("team.alarms.errors", eventBody("too many"))
	w.alone().awaitEvents(2, "outcome", "sent")
	w.alone().awaitEvents(1, "outcome", "dropped")
	wantPostedOnce(t, d.slack.Accepted(), []string{"bare", "error"})
	for stream, want := range map[string]int{"ALARMS": 0, "LOBBY": 0, "REFUSED": 1} {
		testkit.Await(t, fmt.Sprintf("%d messages in the stream %s", want, stream), func() error {
			left, err := d.left(stream)
			if err == nil && left != want {
				err = fmt.Errorf("%d", left)
			}
			return err
		})
	}
	testkit.Equal(t, d.redis.CLI("keys", "*"), "", "database 0 holds")
}
