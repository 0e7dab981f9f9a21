package tests

import (
	"fmt"
	"net/http"
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
var lostAnswers = []slacktest.Answer{
	slacktest.Status(http.StatusInternalServerError, "oops"), slacktest.Code("fatal_error"), slacktest.Code("internal_error"),
	slacktest.Truncated(1000, `{"ok":true`), slacktest.Reset(),
}

// faulty is a deployment that posts events while the answers to the posts are lost.
type faulty struct {
	*deployment
	proxy   *servertest.Proxy // between the workers and Slack
	changes []string
	workers fleet
	events  int
}

// publish publishes the events, and returns when Slack has taken a number of posts.
func (f *faulty) publish(posts int) {
	f.publishEvents([]string{"payments", "orders"}, f.events/2)
	await(f.t, time.Duration(f.events)*time.Second, "posts", func() bool { return len(f.slack.Accepted()) >= posts })
}

// faults lists what goes wrong while the answer to the first post of each event is lost.
var faults = map[string]struct {
	inflict    func(f *faulty)
	mayNotLook bool // then each lost answer may repeat a post
}{
	"answers are lost":               {inflict: func(f *faulty) { f.publish(f.events) }},
	"answers are lost, may not look": {inflict: func(f *faulty) { f.publish(f.events) }, mayNotLook: true},
	"a proxy drops replies": {inflict: func(f *faulty) { // to look-ups too, so an event that was redelivered before its first post is not posted meanwhile
		f.proxy.DropReplies(true)
		f.publish(f.events / 4)
		f.proxy.Cut() // a connection whose reply was lost would pass later replies on as that reply
		f.proxy.DropReplies(false)
	}},
	"redis restarts without its data": {inflict: func(f *faulty) {
		f.publish(f.events)
		f.redis.Restart()
	}},
	"redis restarts and workers die": {inflict: func(f *faulty) {
		f.publish(f.events)
		for _, w := range f.workers {
			w.kill()
		}
		f.redis.Restart()
		f.workers = f.startFleet(len(f.workers), f.changes...)
	}},
}

// TestPostedOnceThroughFaults loses the answer to the first post of each event, in different ways, and shows a post in the history only later.
// If the token may look posts up, no event is posted twice, whatever else goes wrong during the doubt.
func TestPostedOnceThroughFaults(t *testing.T) {
	t.Parallel()
	workers := 2
	if hostile.Forced() {
		workers = 4
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &faulty{deployment: newDeployment(t), events: hostile.Times(t, 2*len(lostAnswers), 100)}
			options, most := []slacktest.Option{slacktest.WithHistoryDelay(1500 * time.Millisecond)}, 0
			if fault.mayNotLook {
				options, most = append(options, slacktest.WithScopes("chat:write")), f.events
			}
			f.slack = slacktest.New(t, options...)
			f.proxy = servertest.StartProxy(t, f.slack.Address())
			var lost sync.Map
			var posts atomic.Int32
			f.slack.Respond(func(post slacktest.Post) slacktest.Answer {
				if _, again := lost.LoadOrStore(post.Origin("id"), true); again {
					return slacktest.OK()
				}
				return slacktest.Stored(lostAnswers[int(posts.Add(1))%len(lostAnswers)])
			})
			f.changes = quick(unlimited("SLACK_API_URL", "http://"+f.proxy.Addr+"/api/", "SLACK_ROUTES", "orders=#orders",
				"SLACK_SETTLE", "5s")...) // the server may take a post seconds after the worker gave up, if the machine is busy
			f.workers = f.startFleet(workers, f.changes...)
			fault.inflict(f)
			await(t, time.Duration(f.events)*time.Second, "events have ended", func() bool {
				inStream, err := f.left(streamName)
				inRoom, failed := f.left(roomStreamName)
				return err == nil && failed == nil && inStream+inRoom == 0
			})
			accepted := f.slack.Accepted()
			testkit.Equal(t, len(count(accepted, "id")), f.events, "events that were posted")
			testkit.AtMost(t, repeats(accepted), most, "posts that repeat another one")
			t.Logf("%d events, %d posts that repeat another one, %d look-ups", f.events, repeats(accepted), f.slack.Calls(slacktest.MethodHistory))
		})
	}
}

// TestPostedOnceThroughKills kills workers between a post and its record, four at a time, as often as it publishes events. If the token may
// look posts up, every event is posted once, even if Slack shows a post late. Otherwise each kill repeats one post at most. The settings name the
// channel, and the token may not list channels: a worker learns the ID from the posts of the killed workers.
func TestPostedOnceThroughKills(t *testing.T) {
	t.Parallel()
	const atOnce = 4
	kills := hostile.Times(t, atOnce, 100)
	for lookUp, most := range map[string]int{"auto": 0, "off": kills} {
		t.Run(lookUp, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			d.slack = slacktest.New(t, slacktest.WithHistoryDelay(1500*time.Millisecond), slacktest.WithScopes("chat:write", "channels:history"))
			changes := quick(unlimited("SLACK_CHANNEL", "#payments",
				"SLACK_LOOKUP", lookUp, "SLACK_SETTLE", "2s", "CONCURRENCY", "1", "SLACK_RATE", "20/s")...) // one post at a time
			d.startFleet(1, changes...).stop() // it creates the streams
			var begun atomic.Int32
			testkit.AtOnce(atOnce, func(int) {
				for kill := begun.Add(1); int(kill) <= kills; kill = begun.Add(1) {
					// A worker takes all events that are stored, so each gets its own. A killed worker may have begun another post.
					d.publishEvents([]string{fmt.Sprint("payments.", kill)}, 2)
					d.doom(failpoint.AfterPost, 1, changes...).awaitDoom()
				}
			})
			workers := d.startFleet(2, append(changes, "SLACK_RATE", "none")...)
			d.awaitEmpty()
			workers.stop()
			posts := d.slack.Accepted()
			testkit.Equal(t, len(count(posts, "id")), 2*kills, "events that were posted")
			testkit.AtMost(t, repeats(posts), most, "posts that repeat another one")
			t.Logf("%d kills, %d events, %d posts that repeat another one, %d look-ups", kills, 2*kills, repeats(posts), d.slack.Calls(slacktest.MethodHistory))
		})
	}
}
