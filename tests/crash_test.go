package tests

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// quick returns settings with a short acknowledgement wait, and more settings. The timeouts leave a post some seconds on a busy machine.
func quick(more ...string) []string {
	return append([]string{"NATS_ACK_WAIT", "6s", "SLACK_TIMEOUT", "4s", "REDIS_TIMEOUT", "500ms"}, more...)
}

func slowPosts(slack *slacktest.Server, d time.Duration) {
	slack.Respond(func(slacktest.Post) slacktest.Answer { return slacktest.Delay(d, slacktest.OK()) })
}

// rejectedPosts has Slack reject the events whose ID begins with "rejected".
func rejectedPosts(slack *slacktest.Server) {
	slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if strings.HasPrefix(post.Origin("id"), "rejected") {
			return slacktest.Code("invalid_blocks")
		}
		return slacktest.OK()
	})
}

// failures are failures of servers during a flood. A paused server keeps its connections open and answers nothing.
var failures = []struct {
	name, policy string
	workers      int
	fail         func(d *deployment, workers fleet)
}{
	{"redis is killed, hold", "hold", 3, func(d *deployment, workers fleet) {
		d.redis.Kill()
		testkit.Eventually(d.t, "a worker that waits for redis", func() bool { return workers.sum("notifier_degraded", "policy", "hold") > 0 })
		d.redis.Restart()
	}},
	{"redis is killed, local", "local", 1, func(d *deployment, workers fleet) {
		d.redis.Kill()
		workers.awaitSum(1, "notifier_degraded", "policy", "local")
		workers.awaitReady()
		d.awaitPosts(60)
		d.redis.Restart()
		workers.awaitSum(0, "notifier_degraded", "policy", "local")
	}},
	{"redis is paused", "local", 1, func(d *deployment, workers fleet) {
		d.redis.Pause()
		workers.awaitSum(1, "notifier_degraded", "policy", "local")
		d.awaitPosts(90)
		d.redis.Resume()
	}},
	{"nats is paused", "local", 1, func(d *deployment, workers fleet) {
		d.nats.Pause()
		workers.awaitUnready("nats")
		d.nats.Resume()
	}},
	{"nats is killed twice", "local", 3, func(d *deployment, workers fleet) {
		for range 2 {
			d.restartNATS(workers)
		}
		d.publishEvents([]string{"later"}, 5)
	}},
}

// TestServersFail has each server fail during a flood. Every event has an outcome, no limit is exceeded, and no post is repeated.
func TestServersFail(t *testing.T) {
	t.Parallel()
	for _, test := range failures {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDurableDeployment(t)
			slowPosts(d.slack, 50*time.Millisecond)
			workers := d.startFleet(test.workers, quick("REDIS_FAILURE", test.policy, "REDIS_GRACE", "300ms")...)
			d.publishEvents(twentyCategories(), 30)
			d.awaitPosts(20)
			test.fail(d, workers)
			d.awaitEmpty()
			workers.awaitReady()
			d.wantDefaultLimits()
			testkit.Equal(t, repeats(d.slack.Accepted()), 0, "posts were repeated")
			if !strings.HasPrefix(test.name, "redis is paused") { // Redis may decide after it was given up
				d.wantLogged()
			}
			if strings.HasPrefix(test.name, "redis is killed") {
				workers.awaitEvents(600)
				for _, w := range workers {
					recovered := w.logLines(`"msg":"redis answers"`) // more than once if calls time out on a busy machine
					testkit.AtMost(t, w.logLines(`"msg":"redis is unavailable"`), max(1, recovered), "lines of %s that redis is unavailable", w.name)
				}
			}
		})
	}
}

// restartNATS kills NATS, waits until no worker is ready, starts NATS again, and waits until all workers are ready. The streams survive, so no
// worker misses its consumer.
func (d *deployment) restartNATS(workers fleet) {
	d.t.Helper()
	d.nats.Kill()
	workers.awaitUnready("nats")
	d.nats.Restart()
	workers.awaitReady()
	for _, w := range workers {
		testkit.Equal(d.t, w.logLines("consumer not found"), 0, "lines of %s that its consumer is gone", w.name)
	}
}

// TestRedisFailsBeforeTheRecord has Redis fail between a post and its record, and the worker die before Redis is back. Another worker finds the
// post, so the event that resolves it later updates its message.
func TestRedisFailsBeforeTheRecord(t *testing.T) {
	t.Parallel()
	d := newDurableDeployment(t)
	var fails sync.Once
	d.slack.Respond(func(slacktest.Post) slacktest.Answer {
		fails.Do(d.redis.Kill)
		return slacktest.OK()
	})
	changes := quick(unlimited()...)
	doomed := d.startFleet(1, changes...)
	d.publish("notify.payments", firing("firing-1", "disk"))
	doomed.awaitEvents(1, "outcome", "sent")
	doomed[0].kill()
	d.redis.Restart()
	d.startReady("next", changes...)
	d.publish("notify.payments", resolved("resolved-1", "disk"))
	d.awaitEmpty()
	d.wantResolved("firing-1", "resolved-1")
	testkit.Equal(t, repeats(d.slack.Accepted()), 0, "posts were repeated")
}

// TestWorkerPausedPastItsLease pauses a worker during deliveries until another worker has taken them over. The resumed worker must see that
// its leases have lapsed. Each worker posts to its own Slack server.
func TestWorkerPausedPastItsLease(t *testing.T) {
	t.Parallel()
	const concurrency = 2
	d := newDeployment(t)
	slowPosts(d.slack, 200*time.Millisecond)
	changes := unlimited(quick("CONCURRENCY", fmt.Sprint(concurrency))...)
	paused := d.startReady("paused", changes...)
	ids := d.publishEvents([]string{"errors"}, 40)
	d.awaitPosts(4)
	paused.signal(syscall.SIGSTOP)

	slack := slacktest.New(t)
	other := d.startReady("other", append(changes, "SLACK_API_URL", slack.APIURL())...)
	d.awaitEmpty()
	byOther := count(slack.Accepted(), "id")
	paused.signal(syscall.SIGCONT)
	last := d.publishEvents([]string{"afterwards"}, 40)
	d.awaitEmpty()
	other.awaitReady()
	paused.awaitReady()

	byPaused := count(d.slack.Posts(), "id")
	twice := 0
	for _, id := range append(ids, last...) {
		posts := byPaused[id] + count(slack.Posts(), "id")[id]
		testkit.Between(t, posts, 1, 2, "posts of %s", id)
		if posts == 2 {
			twice++
			testkit.Check(t, byOther[id] != 0, "%s was posted twice, and not because it was under way when the worker was paused", id)
		}
	}
	testkit.AtMost(t, twice, 2*concurrency, "events were posted twice, those under way or being recorded")
}
