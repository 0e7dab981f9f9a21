package tests

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// unlimited returns settings without limits, and more settings.
func unlimited(more ...string) []string {
	return append([]string{"GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "none"}, more...)
}

// TestRetryAfterHoldsForAllInstances has Slack refuse one post. No instance posts to the channel before Retry-After has passed.
func TestRetryAfterHoldsForAllInstances(t *testing.T) {
	t.Parallel()
	const instances, pause = 3, 4 * time.Second
	d := newDeployment(t)
	d.slack.Script(slacktest.RateLimited(pause))
	workers := d.startFleet(instances, unlimited()...)
	ids := d.publishEvents([]string{"first"}, 1)
	testkit.Eventually(t, "the note of the pause in redis", func() bool { return d.redis.CLI("exists", "{notifier}:pauses") == "1" })
	ids = append(ids, d.publishEvents([]string{"a", "b", "c", "d"}, 25)...)
	d.awaitEmpty()
	posts := d.slack.Posts()
	wantPostedOnce(t, d.slack.Accepted(), ids...)
	for _, post := range posts[1:] {
		testkit.AtLeast(t, post.Received.Sub(posts[0].Received), pause, "the pause before %s was posted", post.Origin("id"))
	}
	workers.awaitSum(1, "notifier_sink_requests_total", "result", "rate_limited")
}

// TestRefusedToken starts a worker with a wrong token. It is not ready, although it has posted nothing.
func TestRefusedToken(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	refusing := slacktest.New(t, slacktest.WithToken("xoxb-another"))
	w := d.startWorker("worker", "SLACK_API_URL", refusing.APIURL())
	w.awaitUnready("auth.test: invalid_auth (check NOTIFIER_SLACK_TOKEN)")
	w.awaitOutput("slack refuses the token")
	testkit.Equal(t, len(refusing.Posts()), 0, "posts")
}

// TestArchivedChannel has Slack refuse one channel. The workers stay ready. Events for another channel go out at once, and those of the channel
// when Slack accepts it again.
func TestArchivedChannel(t *testing.T) {
	t.Parallel()
	const archived = 100
	d := newDeployment(t)
	d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if post.Channel == "#money" {
			return slacktest.Code("is_archived")
		}
		return slacktest.OK()
	})
	changes := unlimited("SLACK_ROUTES", "money=#money", "SLACK_RATE", "20/1s", "CONCURRENCY", "8")
	workers := d.startFleet(2, changes...)
	ids := d.publishEvents([]string{"money"}, archived)
	workers[0].awaitOutput("a channel refuses messages")
	testkit.Eventually(t, "status names the channel", func() bool {
		return strings.Contains(run(t, d.settings("HTTP_ADDR", "off"), "status").stdout.String(), "post to #money: misconfigured: is_archived")
	})
	for _, w := range workers {
		w.awaitReady()
	}
	for i := range 3 {
		id := fmt.Sprint("critical-", i)
		d.publish(subjectPrefix+".db", eventBody(id))
		testkit.Eventually(t, "the post of "+id, func() bool { return len(d.posts(id)) == 1 })
	}
	d.slack.Respond(nil)
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), append(ids, "critical-0", "critical-1", "critical-2")...)
	for _, w := range workers {
		w.awaitReady()
		testkit.AtMost(t, w.logLines("a channel refuses messages"), 3, "log lines of %s about the channel", w.name)
	}
}
