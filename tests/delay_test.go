package tests

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
)

// delaying are settings under which events of some categories wait for a slot.
func delaying(categoryLimit, delay string, more ...string) []string {
	return append([]string{"GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", categoryLimit, "DELAY", delay}, more...)
}

// postedIn are the IDs of a category's events in the order of their posts.
func postedIn(posts []slacktest.Post, category string) []string {
	var ids []string
	for _, post := range posts {
		if origin(post, "category") == category {
			ids = append(ids, origin(post, "id"))
		}
	}
	return ids
}

// pending is how many messages the consumer has delivered that are not settled.
func (d *deployment) pending() (int, error) {
	consumer, err := d.js.Consumer(d.t.Context(), streamName, consumerName)
	if err != nil {
		return 0, err
	}
	return consumer.CachedInfo().NumAckPending, nil
}

func (d *deployment) awaitNothingPending() {
	d.t.Helper()
	await(d.t, "no message that is not settled", func() error {
		pending, err := d.pending()
		if err == nil && pending > 0 {
			err = fmt.Errorf("%d", pending)
		}
		return err
	})
}

// TestDelay has events wait for their slots in some categories, and drops them in the others.
func TestDelay(t *testing.T) {
	t.Parallel()
	const events, slots, window = 6, 2, 3 * time.Second
	d := newDeployment(t)
	workers := d.startFleet(3, delaying("2/3s", "payments.>=1m,security=1m,orders.>=1m")...)
	waiting := []string{"payments.refunds", "security"}
	ids := d.publishEvents(waiting, events)
	dropping := []string{"orders", "errors"} // orders is not below orders
	d.publishEvents(dropping, events)
	most := len(waiting) * (events - slots)
	workers.awaitEvents(len(dropping)*(events-slots), "outcome", "dropped")
	workers[0].awaitStatus("/metrics", 200, fmt.Sprintf("notifier_delayed_pending %d\n", most))
	workers.awaitEvents(len(ids)+len(dropping)*slots, "outcome", "sent")
	workers.awaitEvents((len(waiting) + len(dropping)) * events)
	d.awaitEmpty()
	workers.awaitSum(0, "notifier_delayed_pending")
	workers.awaitSum(0, "notifier_delays_refused_total")
	if n := workers.sum("notifier_delayed_total"); n < most {
		t.Errorf("%d events were put off, want %d", n, most)
	}

	posts := d.slack.Accepted()
	waited := slices.DeleteFunc(slices.Clone(posts), func(post slacktest.Post) bool {
		return !slices.Contains(waiting, origin(post, "category"))
	})
	wantPostedOnce(t, waited, ids)
	for _, category := range waiting {
		var taken []time.Time
		for _, post := range posts {
			if origin(post, "category") == category {
				taken = append(taken, post.Received)
			}
		}
		for i := slots; i < len(taken); i++ {
			// Slots are counted when they are given; how long a post takes after that differs.
			if gap := taken[i].Sub(taken[i-slots]); gap < window-time.Second {
				t.Errorf("%d events of %s were posted within %v", slots+1, category, gap)
			}
		}
	}
}

// TestDelayOrder has one worker, so that the order of the stream is the one in which events are judged, and one slot in each
// window.
func TestDelayOrder(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", delaying("1/2s", "payments=1m")...)
	ids := d.publishEvents([]string{"payments"}, 5)
	w.alone().awaitEvents(len(ids), "outcome", "sent")
	if got := postedIn(d.slack.Posts(), "payments"); !slices.Equal(got, ids) {
		t.Errorf("the events were posted in the order %v, want %v", got, ids)
	}
}

// TestDelayEnds drops what cannot have its slot in time.
func TestDelayEnds(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, delaying("1/3s", "payments=5s")...)
	ids := d.publishEvents([]string{"payments"}, 6)
	workers.awaitEvents(len(ids))
	workers.awaitEvents(2, "outcome", "sent")
	workers.awaitSum(4, "notifier_dropped_total", "category", "payments", "level", "category")
	workers.awaitSum(0, "notifier_delays_refused_total")
	d.awaitEmpty()
	if posts := d.slack.Posts(); len(posts) != 2 || repeats(posts) != 0 {
		t.Errorf("%d posts, want 2", len(posts))
	}
}

// TestDelayMax bounds how many events wait.
func TestDelayMax(t *testing.T) {
	t.Parallel()
	const events, most = 10, 3
	d := newDeployment(t)
	workers := d.startFleet(2, delaying("1/2s", "payments=1m", "DELAY_MAX", fmt.Sprint(most))...)
	d.publishEvents([]string{"payments"}, events)
	workers.awaitEvents(events)
	workers.awaitEvents(1+most, "outcome", "sent")
	workers.awaitSum(events-1-most, "notifier_dropped_total", "level", "category")
	workers.awaitSum(events-1-most, "notifier_delays_refused_total")
	d.awaitEmpty()
	if posts := d.slack.Posts(); len(posts) != 1+most || repeats(posts) != 0 {
		t.Errorf("%d posts, want %d", len(posts), 1+most)
	}
}

// TestDelayOverRestarts ends every part while events wait: workers and servers, with SIGKILL.
func TestDelayOverRestarts(t *testing.T) {
	t.Parallel()
	const events, slots = 8, 2
	d := deploy(t, servertest.StartNATSProcess(t, ""), servertest.StartRedis(t, "--appendonly", "yes"))
	changes := recovering(delaying("2/4s", "payments=2m")...)
	workers := d.startFleet(2, changes...)
	ids := d.publishEvents([]string{"payments"}, events)
	workers.awaitEvents(slots, "outcome", "sent")
	workers.awaitSum(events-slots, "notifier_delayed_total")
	d.awaitNothingPending()
	for _, w := range workers {
		w.kill()
	}
	d.nats.Kill()
	d.redis.Kill()
	d.nats.Restart()
	d.redis.Restart()
	workers = d.startFleet(2, changes...)
	workers.awaitEvents(events-slots, "outcome", "sent")
	workers.awaitEvents(events - slots)
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Posts(), ids)
	workers.awaitSum(0, "notifier_delayed_pending")
}

// TestResolvedWaitsForDelayed resolves an event that waits for its slot.
func TestResolvedWaitsForDelayed(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, longLeases(delaying("1/3s", "disks=1m")...)...)
	d.publish("notify.disks", eventBody("first"))
	workers.awaitEvents(1, "outcome", "sent")
	d.publish("notify.disks", firing("fired", "a"))
	workers.awaitSum(1, "notifier_delayed_total")
	d.publish("notify.disks", resolved("ended", "a"))
	workers.awaitEvents(3, "outcome", "sent")
	workers.awaitEvents(3)
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Posts(), []string{"first", "fired", "ended"})
	d.wantResolved("fired", "ended")
}

// TestManyWait has more events wait than should be in anybody's hands.
func TestManyWait(t *testing.T) {
	t.Parallel()
	const events, slots = 1000, 10
	d := newDeployment(t)
	workers := d.startFleet(2, delaying("10/1h", "payments=7d")...)
	d.publishEvents([]string{"payments"}, slots+events)
	workers.awaitEvents(slots, "outcome", "sent")
	workers.awaitSum(events, "notifier_delayed_total")
	d.awaitNothingPending()
	for _, w := range workers {
		w.awaitStatus("/metrics", 200, fmt.Sprintf("notifier_delayed_pending %d\n", events))
	}
	workers.awaitEvents(slots)
	workers.awaitSum(0, "notifier_inflight")
	if left, err := d.left(streamName); err != nil || left != events {
		t.Errorf("the stream holds %d messages, error %v, want the %d that wait", left, err, events)
	}
}

// TestDelayWithoutSchedules starts workers on streams and consumers that events cannot wait in.
func TestDelayWithoutSchedules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		stream   jetstream.StreamConfig
		consumer *jetstream.ConsumerConfig
		want     string
	}{
		{"no schedules",
			jetstream.StreamConfig{Subjects: []string{"notify", "notify.>"}}, nil, "does not allow message schedules (allow_msg_schedules)"},
		{"no subject for them",
			jetstream.StreamConfig{Subjects: []string{"notify", "notify.>"}, AllowMsgSchedules: true}, nil, "lacks the subject notify-delayed.>"},
		{"a consumer that takes what waits",
			jetstream.StreamConfig{Subjects: []string{"notify", "notify.>", "notify-delayed.>"}, AllowMsgSchedules: true},
			&jetstream.ConsumerConfig{Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy}, "takes the subject notify-delayed.> too"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			test.stream.Name, test.stream.Retention = streamName, jetstream.WorkQueuePolicy
			if _, err := d.js.CreateStream(t.Context(), test.stream); err != nil {
				t.Fatal(err)
			}
			if test.consumer != nil {
				if _, err := d.js.CreateConsumer(t.Context(), streamName, *test.consumer); err != nil {
					t.Fatal(err)
				}
			}
			delay := []string{"DELAY", "payments=1m"}
			run(t, d.settings(delay...), "check").want(1, "FAIL", test.want)
			d.startWorker("worker", delay...).want(1, "events cannot wait for a slot", test.want)
			run(t, d.settings(), "check").want(0)
		})
	}
}
