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
	changes := recovering(unlimited(
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
		d.wantUpdated(d.post(fmt.Sprint("fired-", c)), 2)
		testkit.Equal(t, d.post(fmt.Sprint("ended-", c)).Thread, d.post(fmt.Sprint("fired-", c)).Timestamp, "thread of a reply")
	}
	for _, method := range []string{slacktest.MethodPost, slacktest.MethodUpdate, slacktest.MethodHistory, slacktest.MethodReplies} {
		testkit.Equal(t, d.slack.Limited(method), 0, "refused requests of %s", method)
	}
}

// storming are the settings of workers that share a workspace's budget among channels, each of which alone could use it up.
func storming() []string {
	return unlimited("SLACK_ROUTES", "c0=#c0,c1=#c1,c2=#c2,c3=#c3,c4=#c4,c5=#c5,flood=#flood", "SLACK_RATE", "5/s", "SLACK_WORKSPACE_RATE", "5/s")
}

func isOfFlood(post slacktest.Post) bool { return strings.HasPrefix(post.Origin("id"), "flood") }

// TestFloodedChannelShares has thousands of events wait for one channel when other channels get events. Until these are posted, the channel
// gets no more posts than each of the others, apart from what its workers had reserved.
func TestFloodedChannelShares(t *testing.T) {
	t.Parallel()
	const channels, each, reserved = 6, 4, 4
	d := newDeployment(t)
	workers := d.startFleet(4, storming()...)
	d.publishEvents([]string{"flood"}, 3000)
	d.awaitStorm(3 * len(workers)) // all workers post
	var others []string
	for c := range channels {
		others = append(others, d.publishEvents([]string{fmt.Sprint("c", c)}, each)...)
	}
	posted := func() (others, flood int) { // of the flood, those since the first other post
		for _, post := range d.slack.Accepted() {
			switch {
			case !isOfFlood(post):
				others++
			case others > 0:
				flood++
			}
		}
		return others, flood
	}
	var flood int
	await(t, time.Minute, "posts of the other channels", func() bool {
		n, of := posted()
		flood = of
		return n == len(others)
	})
	testkit.AtMost(t, flood, each+reserved, "posts of the channel for which most events wait")
}

// TestPausedChannelDelaysNoOther has Slack pause one of several channels. The events of the other channels are posted as soon as without the
// pause.
func TestPausedChannelDelaysNoOther(t *testing.T) {
	t.Parallel()
	const channels, each = 6, 3
	stalls := measureStalls(t)
	run := func(pauses bool) time.Duration {
		d := newDeployment(t)
		if pauses {
			d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
				if isOfFlood(post) {
					return slacktest.RateLimited(time.Hour)
				}
				return slacktest.OK()
			})
		}
		d.startFleet(4, storming()...)
		d.publishEvents([]string{"flood"}, 2*each)
		testkit.Eventually(t, "the first post", func() bool { return len(d.slack.Posts()) > 0 })
		began := time.Now()
		for c := range channels {
			d.publishEvents([]string{fmt.Sprint("c", c)}, each)
		}
		others := func() (n int) {
			for _, post := range d.slack.Accepted() {
				if !isOfFlood(post) {
					n++
				}
			}
			return n
		}
		await(t, time.Minute, "posts of the other channels", func() bool { return others() == channels*each })
		return time.Since(began)
	}
	undisturbed, disturbed := run(false), run(true)
	t.Logf("the other channels were done after %v, beside a paused channel after %v", undisturbed, disturbed)
	testkit.AtMost(t, disturbed, undisturbed+stalls.delay(), "time of the other channels beside a paused channel")
}

// await waits up to a time for a condition.
func await(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within + testkit.Patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not all %s within %v", what, within)
		}
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
