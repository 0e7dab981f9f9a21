package tests

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// lostAnswers are answers to a post that Slack has taken, which do not say so.
var lostAnswers = map[string]slacktest.Answer{
	"500":            slacktest.Status(http.StatusInternalServerError, "oops"),
	"fatal_error":    slacktest.Code("fatal_error"),
	"internal_error": slacktest.Code("internal_error"),
	"cut":            slacktest.Truncated(1000, `{"ok":true`),
	"none":           slacktest.Reset(),
}

// TestPostedOnceThroughLostAnswers loses the answer to the first post of each event, and shows a post in the history only later. No event is
// posted twice.
func TestPostedOnceThroughLostAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range lostAnswers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const events = 10
			d := newDeployment(t)
			d.slack = slacktest.New(t, slacktest.WithHistoryDelay(1500*time.Millisecond))
			var seen sync.Map
			d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
				if _, again := seen.LoadOrStore(post.Origin("id"), true); again {
					return slacktest.OK()
				}
				return slacktest.Stored(answer)
			})
			workers := d.startFleet(2, unlimited("SLACK_ROUTES", "orders=#orders")...)
			ids := d.publishEvents([]string{"payments", "orders"}, events)
			workers.awaitEvents(len(ids), "outcome", "sent")
			d.awaitEmpty()
			wantPostedOnce(t, d.slack.Accepted(), ids...)
			testkit.AtMost(t, d.slack.Calls(slacktest.MethodHistory), len(ids)-1, "look-ups, which several events share")
		})
	}
}

// TestQuietRunLooksNothingUp posts events without a fault. The worker asks Slack for nothing else.
func TestQuietRunLooksNothingUp(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, unlimited()...)
	ids := d.publishEvents(twentyCategories(), 2)
	workers.awaitEvents(len(ids), "outcome", "sent")
	wantPostedOnce(t, d.slack.Accepted(), ids...)
	testkit.Equal(t, d.slack.Calls(slacktest.MethodHistory)+d.slack.Calls(slacktest.MethodReplies), 0, "look-ups")
}

// TestPostedOnceThroughKills kills workers between a post and its record, four at a time, as often as it publishes events. With the scope
// every event is posted once; without the scope each kill repeats one post at most.
func TestPostedOnceThroughKills(t *testing.T) {
	t.Parallel()
	const atOnce = 4
	for _, lookUp := range []string{"auto", "off"} {
		t.Run(lookUp, func(t *testing.T) {
			t.Parallel()
			kills := hostile.Times(t, atOnce, 100)
			d := newDeployment(t)
			changes := recovering(unlimited("SLACK_LOOKUP", lookUp, "SLACK_SETTLE", "100ms", "CONCURRENCY", "1", "SLACK_RATE", "20/s")...) // one post at a time
			d.startFleet(1, changes...).stop()                                                                                             // it creates the streams
			ids := d.publishEvents([]string{"payments"}, 3*kills)                                                                          // a killed worker may have posted others too
			var killed atomic.Int32
			var killing sync.WaitGroup
			for range atOnce {
				killing.Go(func() {
					for int(killed.Add(1)) <= kills {
						startKillable(t, failpoint.AfterPost, 1, d.settings("HTTP_ADDR", freeAddress(t)).with(changes...)).awaitDoom()
					}
				})
			}
			killing.Wait()
			workers := d.startFleet(2, changes...)
			d.awaitEmpty()
			workers.stop()
			posts := d.slack.Accepted()
			testkit.Equal(t, len(count(posts, "id")), len(ids), "events that were posted")
			most := 0
			if lookUp == "off" {
				most = kills
			}
			testkit.AtMost(t, repeats(posts), most, "posts that repeat another one")
		})
	}
}

// TestPostedOnceThoughRedisForgets kills a worker between a post and its record, and has Redis lose all data. The redelivery of the message
// is reason enough to look the event up.
func TestPostedOnceThoughRedisForgets(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	changes := recovering(unlimited()...)
	doomed := d.startDoomed(failpoint.AfterPost, 1, changes...)
	d.publish("notify.payments", eventBody("order-1"))
	doomed.awaitDoom()
	d.redis.CLI("flushall")
	workers := d.startFleet(2, changes...)
	workers.awaitEvents(1, "outcome", "sent")
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), "order-1")
}
