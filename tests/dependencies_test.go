package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// wantReadyGauge wants the gauge of readiness to exist with a value.
func (w *worker) wantReadyGauge(want float64) {
	w.t.Helper()
	series := w.scrape()["notifier_ready"].GetMetric()
	testkit.Check(w.t, len(series) == 1 && series[0].GetGauge().GetValue() == want, "notifier_ready is %v, want %v", series, want)
}

// TestServersDownAtStart starts a worker before NATS and Redis, and kills NATS at the end. The gauge of readiness agrees with /readyz.
func TestServersDownAtStart(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.nats.Kill()
	d.redis.Kill()
	w := d.startWorker("worker", "REDIS_FAILURE", "local", "REDIS_GRACE", "10m")
	w.awaitUnready("nats is not connected")
	w.wantHealthy()
	unknown := func(names ...string) {
		t.Helper()
		for _, name := range names {
			series := w.scrape()[name].GetMetric()
			testkit.Check(t, len(series) == 0, "%s is %v, and nobody knows it yet", name, series)
		}
	}
	unknown("notifier_limit_size", "notifier_limit_used", "notifier_degraded", "notifier_ack_pending", "notifier_room_pending")
	w.wantReadyGauge(0)
	time.Sleep(3 * time.Second) // for several attempts, of which the log is to mention the first: none can be seen from outside
	testkit.AtMost(t, w.logLines(""), 3, "lines of the log, one for each server and one for the start")

	d.nats.Restart()
	w.awaitUnready("redis")
	ids := d.publishEvents([]string{"errors"}, 5)
	w.awaitOutput("redis")
	time.Sleep(time.Second) // for several attempts, which cannot be seen from outside
	testkit.Equal(t, w.logLines("redis"), 1, "lines about redis")
	testkit.Equal(t, len(d.slack.Posts()), 0, "posts before redis was there")
	unknown("notifier_limit_used")
	w.alone().awaitSum(100, "notifier_limit_size", "level", "global")

	d.redis.Restart()
	w.awaitReady()
	w.wantReadyGauge(1)
	d.awaitEmpty()
	d.nats.Kill()
	w.awaitUnready("nats is not connected")
	w.wantReadyGauge(0)
	wantPostedOnce(t, d.slack.Accepted(), ids...)
	testkit.AtMost(t, w.logLines(`"level":"WARN"`)+w.logLines(`"level":"ERROR"`), 4, "warnings, one for each server at the start and two for the end of nats")
}

// TestIdleWorkerNoticesRedis kills Redis while the worker has no event, and reads no limit there.
func TestIdleWorkerNoticesRedis(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", unlimited("REDIS_FAILURE", "hold", "REDIS_TIMEOUT", "500ms")...)
	d.redis.Kill()
	w.awaitUnready("redis")
	w.awaitOutput(`"grace":"5s"`)
	w.alone().awaitSum(1, "notifier_degraded", "policy", "hold")
	d.redis.Restart()
	w.awaitReady()
	w.alone().awaitSum(0, "notifier_degraded", "policy", "hold")
}

// withRights starts servers, and returns the settings of a worker whose NATS user has permissions. The test's own user may do everything.
func withRights(t *testing.T, permissions string) (*deployment, []string) {
	t.Helper()
	n := servertest.StartNATSProcess(t, fmt.Sprintf(`
		accounts { A { jetstream: enabled, users: [
			{ user: admin, password: admin }
			{ user: worker, password: worker, permissions: { subscribe: ">", %s } }
		] } }`, permissions))
	return deploy(t, n, nats.UserInfo("admin", "admin")), []string{"NATS_USER", "worker", "NATS_PASSWORD", "worker"}
}

// TestMessagesVanish purges undelivered events. One worker logs and counts the loss.
func TestMessagesVanish(t *testing.T) {
	t.Parallel()
	const stored, kept = 10, 3
	d := newDeployment(t)
	d.createStream()
	workers := d.startFleet(2, unlimited()...)
	d.publishUntil(workers, "sent", "notify.errors", eventBody("first"))
	testkit.Eventually(t, "the note of the consumer's position in redis", func() bool { return d.redis.CLI("keys", "*passed:"+streamName+" *") != "" })
	workers.stop()
	d.awaitConsumer("that nobody asks", func(c *jetstream.ConsumerInfo) bool { return c.NumWaiting == 0 })
	ids := d.publishEvents([]string{"errors"}, stored)
	stream := testkit.Must(d.js.Stream(t.Context(), streamName))(t)
	testkit.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeKeep(kept)))
	workers = d.startFleet(2, unlimited()...)
	workers.awaitEvents(kept, "outcome", "sent")
	workers.awaitSum(stored-kept, "notifier_vanished_total")
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), append(ids[stored-kept:], "first")...)
	awaitNumber(t, 1, "lines that messages have left", func() (int, error) {
		return workers.logLines("messages left the stream without being processed"), nil
	})
	workers.awaitSum(stored-kept, "notifier_vanished_total")
}

// TestConsumerDeletedWhileDelivering deletes the consumer during the posts of admitted events, whose limit is in the deny cache. The new
// consumer delivers these events as first deliveries. The worker must not drop them.
func TestConsumerDeletedWhileDelivering(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	release := make(chan struct{})
	d.slack.Respond(func(slacktest.Post) slacktest.Answer { return slacktest.Hold(release, slacktest.OK()) })
	w := d.startReady("worker", quick("SLACK_TIMEOUT", "2s", "CATEGORY_LIMIT", "2/30m", "DENY_CACHE_TTL", "10m")...)
	d.publishEvents([]string{"errors"}, 10)
	w.alone().awaitEvents(8, "outcome", "dropped")
	testkit.NoError(t, d.js.DeleteConsumer(t.Context(), streamName, consumerName))
	d.awaitConsumer("that was created again and has delivered", func(c *jetstream.ConsumerInfo) bool { return c.Delivered.Consumer >= 2 })
	close(release)
	d.awaitEmpty()
	w.alone().awaitOutcomes(map[string]int{"dropped": 8, "sent": 2})
	testkit.Equal(t, len(count(d.slack.Accepted(), "id")), 2, "events were posted")
}

// TestOtherNames changes all names, and uses a NATS token and another Redis database.
func TestOtherNames(t *testing.T) {
	t.Parallel()
	d := deploy(t, servertest.StartNATS(t, func(o *server.Options) { o.Authorization = "token" }), nats.Token("token"))
	w := d.startReady("worker", "NATS_TOKEN", "token", "NATS_STREAM", "ALARMS", "NATS_SUBJECT", "team.alarms", "NATS_CONSUMER", "posting", "ROOM_STREAM", "LOBBY",
		"DLQ_STREAM", "REFUSED", "DLQ_SUBJECT", "team.refused", "REDIS_URL", "redis://"+d.redis.Addr+"/3", "REDIS_PREFIX", "team:a.b-c", "GLOBAL_LIMIT", "2/1h")
	d.publishUntil(w.alone(), "dead", "team.alarms.errors", "{")
	d.publish("team.alarms", eventBody("bare"))
	d.publish("team.alarms.errors", eventBody("error"))
	d.publish("team.alarms.errors", eventBody("too many"))
	w.alone().awaitOutcomes(map[string]int{"sent": 2, "dropped": 1, "dead": 1})
	wantPostedOnce(t, d.slack.Accepted(), "bare", "error")
	for stream, want := range map[string]int{"ALARMS": 0, "LOBBY": 0, "REFUSED": 1} {
		d.awaitLeft(stream, want)
	}
	testkit.Equal(t, d.redis.CLI("keys", "*"), "", "database 0 holds")
}
