package tests

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// pace is the pace of a channel: one post each interval, and a burst after a pause.
type pace struct {
	interval time.Duration
	burst    int
}

// settings returns settings without limits, with the pace.
func (p pace) settings(more ...string) []string {
	return unlimited(append([]string{"SLACK_RATE", "1/" + p.interval.String(), "SLACK_BURST", strconv.Itoa(p.burst)}, more...)...)
}

// tolerance bounds how far a post is from its reservation on an idle machine.
const tolerance = 100 * time.Millisecond

// stalls measures the longest time that a process waits for the CPU.
type stalls struct{ longest atomic.Int64 }

// measureStalls measures until the test ends.
func measureStalls(t testing.TB) *stalls {
	var s stalls
	go func() {
		const nap = 5 * time.Millisecond
		for t.Context().Err() == nil {
			began := time.Now()
			time.Sleep(nap) // how late the sleep ends is what is measured
			s.longest.Store(max(s.longest.Load(), int64(time.Since(began)-nap)))
		}
	}()
	return &s
}

// tolerance adds the stalls between a reservation and its post.
func (s *stalls) tolerance() time.Duration { return tolerance + s.delay() }

// delay bounds the stalls of a post. It waits for the CPU four times: in the worker, in Redis, in the worker again, and in Slack.
func (s *stalls) delay() time.Duration { return 4 * time.Duration(s.longest.Load()) }

// wantPaced checks the number of posts between each two posts.
func (p pace) wantPaced(t testing.TB, posts []slacktest.Post, tolerance time.Duration) {
	t.Helper()
	slices.SortFunc(posts, func(a, b slacktest.Post) int { return a.Received.Compare(b.Received) })
	for first := range posts {
		for last := first; last < len(posts); last++ {
			took := posts[last].Received.Sub(posts[first].Received)
			most := p.burst + int((took+tolerance)/p.interval)
			if got := last - first + 1; got > most {
				t.Errorf("%d posts within %v, want %d at most: of a burst of %d and one each %v, give or take %v",
					got, took, most, p.burst, p.interval, tolerance)
				return
			}
		}
	}
}

// byConnection groups posts by connection. All posts of a connection are of one worker.
func byConnection(posts []slacktest.Post) map[string][]slacktest.Post {
	connections := make(map[string][]slacktest.Post)
	for _, post := range posts {
		connections[post.Remote] = append(connections[post.Remote], post)
	}
	return connections
}

// wantInOrder wants posts in the order of the stream. Posts of a burst begin together, so posts within the time together may be swapped.
func wantInOrder(t testing.TB, posts []slacktest.Post, ids []string, together time.Duration) {
	t.Helper()
	latest := -1
	var arrived time.Time
	for _, post := range posts {
		place := slices.Index(ids, post.Origin("id"))
		if place > latest {
			latest, arrived = place, post.Received
		} else if after := post.Received.Sub(arrived); after > together {
			t.Errorf("%s was posted %v after %s, which was stored later", ids[place], after, ids[latest])
		}
	}
}

// TestPacing has workers share the pace of one channel. Each worker posts its events in the order of the stream.
func TestPacing(t *testing.T) {
	t.Parallel()
	p := pace{200 * time.Millisecond, 3}
	d := newDeployment(t)
	stalls := measureStalls(t)
	workers := d.startFleet(3, p.settings()...)
	ids := d.publishEvents([]string{"errors", "payments", "security"}, 10)
	d.awaitEmpty()

	posts := d.slack.Posts()
	wantPostedOnce(t, posts, ids...)
	for _, ofOneWorker := range byConnection(posts) {
		wantInOrder(t, ofOneWorker, ids, stalls.delay())
	}
	p.wantPaced(t, posts, stalls.tolerance())
	workers.awaitSum(0, "notifier_held")
}

// TestSlowChannelDelaysNoOther measures the latency of one channel while another channel hangs or is paused, with more events for the slow
// channel than workers hold in memory.
func TestSlowChannelDelaysNoOther(t *testing.T) {
	t.Parallel()
	const slow = 240
	for _, test := range []struct {
		name   string
		goesOn bool
	}{{"hangs", true}, {"rests", false}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			release := make(chan struct{})
			toSlow := func() []slacktest.Post { return postsTo(d.slack.Posts(), "#slow") }
			d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
				switch {
				case post.Channel != "#slow":
					return slacktest.OK()
				case test.goesOn:
					return slacktest.Hold(release, slacktest.OK())
				default:
					return slacktest.RateLimited(5 * time.Minute)
				}
			})
			changes := pace{10 * time.Millisecond, 10}.settings("SLACK_ROUTES", "slow=#slow", "SLACK_TIMEOUT", "25s", "NATS_ACK_WAIT", "2m")
			workers := d.startFleet(3, changes...)
			usual := d.latency("before", 40)
			ids := d.publishEvents([]string{"slow"}, slow)
			testkit.Eventually(t, "the slow channel to be slow", func() bool { return len(toSlow()) > 0 })
			meanwhile := d.latency("meanwhile", 40)
			testkit.AtMost(t, meanwhile, 3*usual+time.Second, "what 95 of 100 events took, before %v", usual)
			// At this pace a channel has several posts at once.
			testkit.AtMost(t, len(toSlow()), defaultSendings*len(workers), "posts to the slow channel")
			awaitNumber(t, slow, "events in the streams", func() (int, error) {
				left, err := d.left(streamName)
				inRoom, errOfRoom := d.onSubjects(roomStreamName, "notify-room.channel.*.slow")
				return left + inRoom, errors.Join(err, errOfRoom)
			})
			if !test.goesOn {
				return
			}
			close(release)
			d.awaitEmpty()
			wantPostedOnce(t, toSlow(), ids...)
		})
	}
}

// latency publishes events one after the other, and returns the 95th percentile of the time to Slack.
func (d *deployment) latency(category string, events int) time.Duration {
	d.t.Helper()
	published := make(map[string]time.Time)
	for i := range events {
		id := fmt.Sprintf("%s-%d", category, i)
		published[id] = time.Now()
		d.publish("notify."+category, eventBody(id))
		time.Sleep(15 * time.Millisecond) // the pace of a producer
	}
	var took []time.Duration
	awaitNumber(d.t, events, "posts of "+category, func() (int, error) {
		took = took[:0]
		for _, post := range d.slack.Accepted() {
			if at, of := published[post.Origin("id")]; of {
				took = append(took, post.Received.Sub(at))
			}
		}
		return len(took), nil
	})
	slices.Sort(took)
	return took[events*95/100-1]
}
