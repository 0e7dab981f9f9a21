package tests

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
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

// TestPostedOnceThroughLostReplies has a proxy lose replies of Slack: one reply of a post at a time, and then all replies for a while. Slack
// shows a post in the history only later. No event is posted twice.
func TestPostedOnceThroughLostReplies(t *testing.T) {
	t.Parallel()
	const single, silent = 3, 8
	d := newDeployment(t)
	d.slack = slacktest.New(t, slacktest.WithHistoryDelay(1500*time.Millisecond))
	proxy := servertest.StartProxy(t, d.slack.Address())
	workers := d.startFleet(2, recovering(unlimited("SLACK_API_URL", "http://"+proxy.Addr+"/api/")...)...)
	var ids []string
	for i := range single {
		lost := proxy.CutAfterRequest(slacktest.MethodPost)
		ids = append(ids, d.publishEvents([]string{fmt.Sprint("payments-", i)}, 1)...)
		testkit.Eventually(t, "a reply is lost", func() bool {
			select {
			case <-lost:
				return true
			default:
				return false
			}
		})
	}
	workers.awaitEvents(len(ids), "outcome", "sent")

	proxy.DropReplies(true)
	posted, looked := len(d.slack.Accepted()), d.slack.Calls(slacktest.MethodHistory)
	ids = append(ids, d.publishEvents([]string{"refunds"}, silent)...)
	testkit.Eventually(t, "posts whose replies are lost", func() bool { return len(d.slack.Accepted()) == posted+silent })
	testkit.Eventually(t, "a look-up whose reply is lost", func() bool { return d.slack.Calls(slacktest.MethodHistory) > looked })
	proxy.Cut() // a connection whose reply was lost would pass later replies on as that reply
	proxy.DropReplies(false)
	workers.awaitEvents(len(ids), "outcome", "sent")
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), ids...)
}

// TestWorkersShareLookUps brings events of many channels in doubt, on four workers. All workers together keep the rate of look-ups, so Slack
// refuses no look-up. The rate is lower than Slack's, because a request may be a second late here.
func TestWorkersShareLookUps(t *testing.T) {
	t.Parallel()
	const channels = 12
	d := newDeployment(t)
	d.slack = slacktest.New(t, slacktest.WithLimits(slacktest.Limits{
		Methods: map[string]slacktest.Limit{slacktest.MethodHistory: {Count: 4, Window: 2 * time.Second}},
	}))
	var categories, routes []string
	for i := range channels {
		categories = append(categories, fmt.Sprint("c", i))
		routes = append(routes, fmt.Sprintf("c%d=#c%d", i, i))
	}
	var seen sync.Map
	d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if _, again := seen.LoadOrStore(post.Origin("id"), true); again {
			return slacktest.OK()
		}
		return slacktest.Stored(slacktest.Reset())
	})
	workers := d.startFleet(4, unlimited("SLACK_ROUTES", strings.Join(routes, ","), "SLACK_SETTLE", "100ms", "SLACK_LOOKUP_RATE", "4/3s")...)
	ids := d.publishEvents(categories, 1)
	workers.awaitEvents(len(ids), "outcome", "sent")
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), ids...)
	testkit.Equal(t, d.slack.Limited(slacktest.MethodHistory), 0, "look-ups that Slack refused")
}

// killed are the ways in which workers of TestPostedOnceThroughKills look posts up.
var killed = []struct {
	name, lookUp, settle string
	historyDelay         time.Duration
}{
	{"auto", "auto", "100ms", 0},
	{"late history", "auto", "2s", 1500 * time.Millisecond},
	{"off", "off", "100ms", 0},
}

// TestPostedOnceThroughKills kills workers between a post and its record, four at a time, as often as it publishes events. If the token may
// look posts up, every event is posted once, even if Slack shows a post late. Otherwise each kill repeats one post at most. The settings name the
// channel, and the token may not list channels: a worker learns the ID from the posts of the killed workers.
func TestPostedOnceThroughKills(t *testing.T) {
	t.Parallel()
	const atOnce = 4
	for _, test := range killed {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			kills := hostile.Times(t, atOnce, 100)
			d := newDeployment(t)
			d.slack = slacktest.New(t, slacktest.WithHistoryDelay(test.historyDelay), slacktest.WithScopes("chat:write", "channels:history"))
			changes := recovering(unlimited("SLACK_CHANNEL", "#payments",
				"SLACK_LOOKUP", test.lookUp, "SLACK_SETTLE", test.settle, "CONCURRENCY", "1", "SLACK_RATE", "20/s")...) // one post at a time
			d.startFleet(1, changes...).stop()                             // it creates the streams
			ids := d.publishEvents([]string{"payments"}, 2*kills+4*atOnce) // a killed worker may have begun another post
			var begun atomic.Int32
			var killing sync.WaitGroup
			for range atOnce {
				killing.Go(func() {
					for int(begun.Add(1)) <= kills {
						startKillable(t, failpoint.AfterPost, 1, d.settings("HTTP_ADDR", freeAddress(t)).with(changes...)).awaitDoom()
					}
				})
			}
			killing.Wait()
			workers := d.startFleet(2, append(changes, "SLACK_RATE", "none")...)
			d.awaitEmpty()
			workers.stop()
			posts := d.slack.Accepted()
			testkit.Equal(t, len(count(posts, "id")), len(ids), "events that were posted")
			most := 0
			if test.lookUp == "off" {
				most = kills
			}
			testkit.AtMost(t, repeats(posts), most, "posts that repeat another one")
			t.Logf("%d kills, %d events, %d posts that repeat another one, %d look-ups", kills, len(ids), repeats(posts), d.slack.Calls(slacktest.MethodHistory))
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
