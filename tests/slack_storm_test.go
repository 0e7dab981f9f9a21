package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestSlackStorm has four workers post to many channels and update messages there, with the default budgets, against a server that counts as
// Slack does. Two of the workers are killed, and replaced. The server refuses nothing, the budget of the workspace is used up, and the channels
// share it.
func TestSlackStorm(t *testing.T) {
	t.Parallel()
	channels := hostile.Times(t, 30, 20)
	d := newDeployment(t)
	d.slack = slacktest.New(t, slacktest.WithLimits(slacktest.SlackLimits()))
	var routes []string
	for c := range channels {
		routes = append(routes, fmt.Sprintf("c%d=#c%d", c, c))
	}
	changes := quick(unlimited(
		"SLACK_ROUTES", strings.Join(routes, ","), "SLACK_RATE", "1/s", "SLACK_WORKSPACE_RATE", "5/s", "SLACK_UPDATE_RATE", "50/1m", "SLACK_LOOKUP_RATE", "50/1m")...)
	stalls := measureStalls(t)
	workers := d.startFleet(4, changes...)
	for c := range channels {
		d.publish(fmt.Sprint("notify.c", c), firing(fmt.Sprint("fired-", c), "disk"))
	}
	d.awaitStorm(channels)

	for c := range channels {
		d.publish(fmt.Sprint("notify.c", c), resolved(fmt.Sprint("ended-", c), "disk"))
		d.publish(fmt.Sprint("notify.c", c), eventBody(fmt.Sprint("other-", c)))
	}
	const kills = 2
	for i := range kills {
		d.awaitStorm(channels + (i+1)*channels/2)
		workers[i].kill()
		d.startWorker(fmt.Sprint("successor of worker ", i+1), changes...)
	}
	d.awaitStorm(3 * channels)
	wantShared(t, d.slack.Accepted()[channels:], kills, stalls.delay())

	await(t, time.Duration(channels)*2*time.Second, "updates", func() bool { return len(d.slack.Updates()) >= channels })
	d.awaitEmpty()
	for c := range channels {
		first, reply := d.post(fmt.Sprint("fired-", c)), d.post(fmt.Sprint("ended-", c))
		testkit.Equal(t, reply.Thread, first.Timestamp, "thread of a reply")
		changes := d.updates(first)
		testkit.Equal(t, len(changes) == 1 || len(changes) == 2, true, "one update of a message, which a kill may repeat")
		testkit.Contains(t, "an update", changes[0].Message.Text, "RESOLVED")
	}
	for _, method := range []string{slacktest.MethodPost, slacktest.MethodUpdate, slacktest.MethodHistory, slacktest.MethodReplies} {
		testkit.Equal(t, d.slack.Limited(method), 0, "refused requests of %s", method)
	}
}

// await waits up to a time for a condition.
func await(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within + testkit.Patience); !holds(); time.Sleep(50 * time.Millisecond) {
		testkit.Require(t, !time.Now().After(deadline), "not all %s within %v", what, within)
	}
}

// awaitStorm waits until Slack has accepted a number of posts, at half of the default budget or faster.
func (d *deployment) awaitStorm(want int) {
	d.t.Helper()
	await(d.t, time.Duration(want)*2*time.Second/5, "posts", func() bool { return len(d.slack.Accepted()) >= want })
}

// wantShared wants posts to use 0.95 of the default budget of the workspace, and the channels to be done at about the same time. A kill
// costs what its worker had reserved: the posts of a second.
func wantShared(t testing.TB, posts []slacktest.Post, kills int, stalls time.Duration) {
	t.Helper()
	const rate = 5
	slices.SortFunc(posts, func(a, b slacktest.Post) int { return a.Received.Compare(b.Received) })
	began, done := posts[0].Received, make(map[string]time.Duration)
	for _, post := range posts {
		done[post.ChannelID] = post.Received.Sub(began)
	}
	longest, sum := time.Duration(0), time.Duration(0)
	for _, d := range done {
		longest, sum = max(longest, d), sum+d
	}
	mean := sum / time.Duration(len(done))
	lost := time.Duration(kills)*time.Second + stalls
	t.Logf("%d posts in %v, %.3f of the budget; the mean channel was done after %v", len(posts), longest, float64(len(posts)-1)/rate/longest.Seconds(), mean)
	testkit.AtMost(t, longest, time.Duration(float64(len(posts)-1)/rate/0.95*float64(time.Second))+lost, "the time of the storm")
	testkit.AtMost(t, longest, mean*3/2+lost, "the time of the slowest channel, with a mean of %v", mean)
}
