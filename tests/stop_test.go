package tests

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestRollingRestart replaces every worker during a flow of events. The acknowledgement wait is longer than the test, so JetStream
// redelivers only events that a worker has given back.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	slowPosts(d.slack, 40*time.Millisecond)
	changes := []string{"NATS_ACK_WAIT", "10m", "GLOBAL_LIMIT", "300/30m", "CATEGORY_LIMIT", "none"}
	workers := d.startFleet(3, changes...)

	stop, stopped := make(chan struct{}), make(chan int, 1)
	go func() {
		published := 0
		for {
			select {
			case <-stop:
				stopped <- published
				return
			case <-time.After(3 * time.Millisecond):
				_, err := d.js.Publish(t.Context(), fmt.Sprintf("notify.category%d", published%20), []byte(eventBody(fmt.Sprintf("event-%d", published))))
				if err == nil {
					published++
				}
			}
		}
	}()
	replaced := 0
	for round := range 2 {
		for i := range workers {
			d.awaitPosts(20 * (replaced + 1))
			workers[i].stop()
			workers[i] = d.startReady(fmt.Sprintf("worker %d of round %d", i+1, round+2), changes...)
			replaced++
		}
	}
	d.awaitPosts(290)
	close(stop)
	published := <-stopped
	d.awaitEmpty()

	posts := d.slack.Posts()
	// The limit is 300, and a slow machine publishes fewer events than that.
	testkit.Equal(t, len(posts), min(300, published), "posts of %d events", published)
	testkit.Equal(t, repeats(posts), 0, "repeated posts")
	d.wantLogged()
}

// TestStopWhileSlackHangs stops a worker whose posts hang. Another worker delivers the events.
func TestStopWhileSlackHangs(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.slack.Respond(func(slacktest.Post) slacktest.Answer { return slacktest.Hold(nil, slacktest.OK()) })
	changes := unlimited("NATS_ACK_WAIT", "20m", "SLACK_TIMEOUT", "10m", "SHUTDOWN_TIMEOUT", "2s")
	first := d.startReady("first", changes...)
	ids := d.publishEvents([]string{"errors"}, 20)
	testkit.Eventually(t, "requests under way", func() bool { return len(d.slack.Posts()) >= defaultSendings })
	began := time.Now()
	first.stop()
	// Far from the other timeouts, which are in minutes.
	testkit.AtMost(t, time.Since(began), 30*time.Second, "the time to the end")
	first.wantLogLines(1, "returned unfinished deliveries")

	d.slack.Respond(nil)
	d.startReady("second", changes...)
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), ids...)
}

func TestSecondSignal(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.slack.Respond(func(slacktest.Post) slacktest.Answer { return slacktest.Hold(nil, slacktest.OK()) })
	w := d.startReady("worker", unlimited("NATS_ACK_WAIT", "20m", "SLACK_TIMEOUT", "10m", "SHUTDOWN_TIMEOUT", "10m")...)
	d.publishEvents([]string{"errors"}, 1)
	testkit.Eventually(t, "a request under way", func() bool { return len(d.slack.Posts()) > 0 })
	w.signal(syscall.SIGTERM)
	w.awaitUnready("stopping")
	w.wantHealthy()
	w.signal(syscall.SIGTERM)
	testkit.Equal(t, w.wait() == 0, false, "the status after a second signal is that of an orderly end")
}

// TestStopIdle stops an idle worker, and a worker without servers.
func TestStopIdle(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	ready := d.startReady("ready")
	waiting := d.startWorker("waiting", "NATS_URL", "nats://127.0.0.1:1", "REDIS_URL", "redis://127.0.0.1:1")
	waiting.awaitUnready("")
	ready.signal(syscall.SIGINT)
	testkit.Equal(t, ready.wait(), 0, "status after SIGINT")
	waiting.stop()
}
