package tests

import (
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// quick are settings under which an event whose worker is gone comes back soon, and more. On a busy machine a post may take
// more than a second.
func quick(more ...string) []string {
	return append([]string{"NATS_ACK_WAIT", "6s", "SLACK_TIMEOUT", "4s", "REDIS_TIMEOUT", "500ms"}, more...)
}

// slowPosts makes a post take long enough for something to happen meanwhile.
func slowPosts(slack *slacktest.Server, d time.Duration) {
	slack.Respond(func(slacktest.Post) slacktest.Answer { return slacktest.Delay(d, slacktest.OK()) })
}

// wantLogged checks that the root log holds exactly the events that were posted.
func wantLogged(t testing.TB, d *deployment) {
	t.Helper()
	got, want := slices.Sorted(maps.Keys(d.log(rootLog))), slices.Sorted(maps.Keys(count(d.slack.Posts(), "id")))
	if !slices.Equal(got, want) {
		t.Errorf("the root log holds %d events, %d were posted: %q and %q", len(got), len(want), got, want)
	}
}

func TestWorkersKilled(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	slowPosts(d.slack, 50*time.Millisecond)
	workers := d.startFleet(3, quick()...)
	d.publishEvents(twentyCategories(), 30)
	d.awaitPosts(10)
	workers[0].kill()
	d.awaitPosts(50)
	workers[1].kill()
	d.awaitEmpty()

	posts := d.slack.Accepted()
	wantWithinLimits(t, posts, 100, 10)
	testkit.Equal(t, len(count(posts, "id")), 100, "events were posted, want 100: an admitted one was lost")
	// Of each worker that was killed, as many posts may have been under way, and as many being recorded.
	if got := repeats(posts); got > 2*2*defaultSendings {
		t.Errorf("%d posts were repeated, of at most %d that were under way or being recorded", got, 2*2*defaultSendings)
	}
	wantLogged(t, d)
}

func TestRedisKilled(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		policy  string
		workers int
		during  func(t *testing.T, d *deployment, workers fleet)
	}{
		{"hold", 3, func(t *testing.T, d *deployment, workers fleet) {
			testkit.Await(t, "a worker that waits for redis", func() error {
				if workers.sum("notifier_degraded", "policy", "hold") == 0 {
					return errMissing
				}
				return nil
			})
			d.redis.Restart()
		}},
		{"local", 1, func(_ *testing.T, d *deployment, workers fleet) {
			workers.awaitSum(1, "notifier_degraded", "policy", "local")
			workers[0].awaitReady()
			d.awaitPosts(60)
			d.redis.Restart()
			workers.awaitSum(0, "notifier_degraded", "policy", "local")
		}},
	} {
		t.Run(test.policy, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, servertest.StartNATS(t), servertest.StartRedis(t, "--appendonly", "yes"))
			slowPosts(d.slack, 50*time.Millisecond)
			workers := d.startFleet(test.workers, quick("REDIS_FAILURE", test.policy, "REDIS_GRACE", "300ms")...)
			d.publishEvents(twentyCategories(), 30)
			d.awaitPosts(20)
			d.redis.Kill()
			test.during(t, d, workers)
			d.awaitEmpty()

			posts := d.slack.Accepted()
			wantWithinLimits(t, posts, 100, 10)
			wantPostedOnce(t, posts, slices.Collect(maps.Keys(count(posts, "id"))))
			testkit.Equal(t, len(posts), 100, "posts")
			wantLogged(t, d)
			workers.awaitEvents(600)
			for _, w := range workers {
				w.awaitReady()
				if n := w.logLines(`"msg":"redis is unavailable"`); n > 1 {
					t.Errorf("%s said %d times that redis is unavailable, want once", w.name, n)
				}
			}
		})
	}
}

// TestServersHang stops servers for a while: connections stay open, and nothing is answered.
func TestServersHang(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		server string
		policy string
		pause  func(d *deployment)
		resume func(d *deployment)
		reason string // why no worker is ready meanwhile; none if they go on
	}{
		{"redis", "hold", func(d *deployment) { d.redis.Pause() }, func(d *deployment) { d.redis.Resume() }, "redis"},
		{"redis", "local", func(d *deployment) { d.redis.Pause() }, func(d *deployment) { d.redis.Resume() }, ""},
		{"nats", "local", func(d *deployment) { d.nats.Pause() }, func(d *deployment) { d.nats.Resume() }, "nats"},
	} {
		t.Run(test.server+" "+test.policy, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, servertest.StartNATSProcess(t, ""), servertest.StartRedis(t))
			slowPosts(d.slack, 50*time.Millisecond)
			w := d.startReady("worker", quick("REDIS_FAILURE", test.policy, "REDIS_GRACE", "300ms")...)
			d.publishEvents(twentyCategories(), 30)
			d.awaitPosts(20)
			test.pause(d)
			if test.reason != "" {
				w.awaitStatus("/readyz", 503, test.reason)
			} else {
				w.alone().awaitSum(1, "notifier_degraded", "policy", test.policy)
				d.awaitPosts(90)
			}
			test.resume(d)
			d.awaitEmpty()
			w.awaitReady()

			posts := d.slack.Accepted()
			wantWithinLimits(t, posts, 100, 10)
			testkit.Equal(t, repeats(posts), 0, "posts were repeated")
			testkit.Equal(t, len(posts), 100, "posts")
		})
	}
}

func TestNATSKilled(t *testing.T) {
	t.Parallel()
	d := deploy(t, servertest.StartNATSProcess(t, ""), servertest.StartRedis(t))
	slowPosts(d.slack, 50*time.Millisecond)
	workers := d.startFleet(3, quick()...)
	d.publishEvents(twentyCategories(), 30)
	d.awaitPosts(20)
	for range 2 {
		d.nats.Kill()
		for _, w := range workers {
			w.awaitStatus("/readyz", 503, "nats")
		}
		d.nats.Restart()
		for _, w := range workers {
			w.awaitReady()
		}
	}
	d.publishEvents([]string{"later"}, 5)
	d.awaitEmpty()

	posts := d.slack.Accepted()
	wantWithinLimits(t, posts, 100, 10)
	wantPostedOnce(t, posts, slices.Collect(maps.Keys(count(posts, "id"))))
	testkit.Equal(t, len(posts), 100, "posts")
	wantLogged(t, d)
}

// TestSentIsCountedOnce kills NATS while every event is posted, before it hears what became of those in hand: it delivers them again.
func TestSentIsCountedOnce(t *testing.T) {
	t.Parallel()
	const each = 30
	d := deploy(t, servertest.StartNATSProcess(t, ""), servertest.StartRedis(t))
	slowPosts(d.slack, 50*time.Millisecond)
	workers := d.startFleet(3, quick(unlimited()...)...)
	ids := d.publishEvents(twentyCategories(), each)
	for kill := range 3 {
		d.awaitPosts(len(ids) * (kill + 1) / 5)
		d.nats.Pause()
		time.Sleep(500 * time.Millisecond) // NATS cannot tell of the posts under way while it is paused: they end meanwhile
		d.nats.Kill()
		for _, w := range workers {
			w.awaitStatus("/readyz", 503, "nats")
		}
		d.nats.Restart()
		for _, w := range workers {
			w.awaitReady()
		}
	}
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), ids)
	workers.awaitEvents(len(ids), "outcome", "sent")
	workers.awaitEvents(len(ids))
}

// TestWorkerPausedPastItsLease stops a worker in the middle of its deliveries, lets another one do them, and wakes it: it must
// notice that they are no longer its own. Each of the two has a Slack of its own, so that it is known who posted what.
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
		switch byPaused[id] + count(slack.Posts(), "id")[id] {
		case 0:
			t.Errorf("%s was lost", id)
		case 1:
		case 2:
			twice++
			if byOther[id] == 0 {
				t.Errorf("%s was posted twice, and not because it was under way when the worker was paused", id)
			}
		default:
			t.Errorf("%s was posted more than twice", id)
		}
	}
	if twice > 2*concurrency {
		t.Errorf("%d events were posted twice, of at most %d that were under way or being recorded", twice, 2*concurrency)
	}
}
