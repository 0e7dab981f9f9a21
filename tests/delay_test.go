package tests

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
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
	testkit.Await(d.t, "no message that is not settled", func() error {
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
	const events, slots, window = 6, 2, 6 * time.Second
	d := newDeployment(t)
	workers := d.startFleet(3, delaying("2/6s", "payments.>=1m,security=1m,orders.>=1m")...)
	waiting := []string{"payments.refunds", "security"}
	ids := d.publishEvents(waiting, events)
	dropping := []string{"orders", "errors"} // orders is not below orders
	d.publishEvents(dropping, events)
	most := len(waiting) * (events - slots)
	workers.awaitEvents(len(dropping)*(events-slots), "outcome", "dropped")
	workers.awaitEvents(len(ids)+len(dropping)*slots, "outcome", "sent")
	workers.awaitEvents((len(waiting) + len(dropping)) * events)
	d.awaitEmpty()
	workers.awaitSum(0, "notifier_room_pending", "reason", "slot")
	workers.awaitSum(0, "notifier_room_refused_total", "reason", "slot")
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

// TestDelayOrder has three workers, and more events at once than there are slots: those that wait are posted in the order in which
// they were stored. Which ones find the slots that are free at first is a matter of which worker is faster; so is the order of those
// whose slots open together.
func TestDelayOrder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limits                       string
		cost, events, free, together int
	}{
		{"4/2s", 4, 10, 1, 1},
		{"leaky:1/1s", 1, 16, 1, 1},
		{"3/3s", 1, 24, 3, 3},
		{"token:4/4s;burst=2", 1, 16, 2, 1},
	} {
		t.Run(test.limits, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			workers := d.startFleet(3, delaying(test.limits, "payments=2m", "SLACK_RATE", "none")...)
			var ids []string
			for i := range test.events {
				ids = append(ids, fmt.Sprintf("e-%02d", i))
				d.publish("notify.payments", fmt.Sprintf(`{"id":%q,"title":"an event","cost":%d}`, ids[i], test.cost))
			}
			workers.awaitEvents(test.events, "outcome", "sent")
			workers.awaitEvents(test.events)
			posts := d.slack.Posts()
			wantPostedOnce(t, posts, ids)
			got := postedIn(posts, "payments")
			for opened := range slices.Chunk(got[test.free:], test.together) {
				slices.Sort(opened)
			}
			if !slices.IsSorted(got[test.free:]) {
				t.Errorf("the events were posted in the order %v", got)
			}
		})
	}
}

// TestDelayEnds drops what cannot have its slot in time.
func TestDelayEnds(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, delaying("1/6s", "payments=10s")...)
	ids := d.publishEvents([]string{"payments"}, 6)
	workers.awaitEvents(len(ids))
	workers.awaitEvents(2, "outcome", "sent")
	workers.awaitSum(4, "notifier_dropped_total", "category", "payments", "level", "category")
	workers.awaitSum(0, "notifier_room_refused_total", "reason", "slot")
	d.awaitEmpty()
	if posts := d.slack.Posts(); len(posts) != 2 || repeats(posts) != 0 {
		t.Errorf("%d posts, want 2", len(posts))
	}
}

// TestRoomMax bounds how many events wait.
func TestRoomMax(t *testing.T) {
	t.Parallel()
	const events, most = 10, 3
	d := newDeployment(t)
	workers := d.startFleet(2, delaying("1/4s", "payments=1m", "ROOM_MAX", fmt.Sprint(most))...)
	d.publishEvents([]string{"payments"}, events)
	workers.awaitEvents(events)
	workers.awaitEvents(1+most, "outcome", "sent")
	workers.awaitSum(events-1-most, "notifier_dropped_total", "level", "category")
	workers.awaitSum(events-1-most, "notifier_room_refused_total", "reason", "slot")
	d.awaitEmpty()
	if posts := d.slack.Posts(); len(posts) != 1+most || repeats(posts) != 0 {
		t.Errorf("%d posts, want %d", len(posts), 1+most)
	}
}

// TestDelayOverRestarts ends every part while events wait: workers and servers, with SIGKILL.
func TestDelayOverRestarts(t *testing.T) {
	t.Parallel()
	const events, slots = 6, 2
	d := deploy(t, servertest.StartNATSProcess(t, ""), servertest.StartRedis(t, "--appendonly", "yes"))
	changes := recovering(delaying("2/8s", "payments=2m")...)
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
	workers.awaitSum(0, "notifier_room_pending", "reason", "slot")
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
		w.awaitStatus("/metrics", 200, fmt.Sprintf("notifier_room_pending{reason=\"slot\"} %d\n", events))
	}
	workers.awaitEvents(slots)
	workers.awaitSum(0, "notifier_inflight")
	if left, err := d.left(streamName); err != nil || left != 0 {
		t.Errorf("the producers' stream holds %d messages, error %v, want none: all wait in the room", left, err)
	}
	if n, err := d.inRoom("notify-room.slot.payments.>"); err != nil || n != events {
		t.Errorf("the room holds %d schedules, error %v, want the %d that wait", n, err, events)
	}
}

// TestStreamsUnfit starts workers on streams in which events are not safe, or cannot wait.
func TestStreamsUnfit(t *testing.T) {
	t.Parallel()
	producers := jetstream.StreamConfig{Name: streamName, Subjects: []string{"notify", "notify.>"}, Retention: jetstream.WorkQueuePolicy}
	room := jetstream.StreamConfig{
		Name: roomStreamName, Subjects: []string{"notify-room.>"}, Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true, AllowRollup: true,
	}
	for _, test := range []struct {
		name      string
		producers func(*jetstream.StreamConfig)
		room      func(*jetstream.StreamConfig)
		consumer  *jetstream.ConsumerConfig // of the room
		want      string
	}{
		{name: "producers may schedule", producers: func(c *jetstream.StreamConfig) { c.AllowMsgSchedules, c.AllowRollup = true, true },
			want: "allows message schedules (allow_msg_schedules)"},
		{name: "producers may roll up", producers: func(c *jetstream.StreamConfig) { c.AllowRollup = true }, want: "allows roll-ups (allow_rollup_hdrs)"},
		{name: "no schedules", room: func(c *jetstream.StreamConfig) { c.AllowMsgSchedules = false },
			want: "does not allow message schedules (allow_msg_schedules)"},
		{name: "another subject", room: func(c *jetstream.StreamConfig) { c.Subjects = []string{"notify-room.slot.>"} }, want: "lacks the subject notify-room.>"},
		{name: "no work queue", room: func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy }, want: "expected workqueue"},
		{name: "too short", room: func(c *jetstream.StreamConfig) { c.MaxAge, c.Duplicates = time.Second, time.Second }, want: "events may wait for 1m0s"},
		{name: "a consumer that takes what is not due", room: func(*jetstream.StreamConfig) {},
			consumer: &jetstream.ConsumerConfig{Durable: consumerName + "-room", AckPolicy: jetstream.AckExplicitPolicy}, want: "takes everything"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			for _, stream := range []struct {
				config jetstream.StreamConfig
				change func(*jetstream.StreamConfig)
			}{{producers, test.producers}, {room, test.room}} {
				if stream.change == nil {
					continue
				}
				stream.change(&stream.config)
				testkit.Must(d.js.CreateStream(t.Context(), stream.config))(t)
			}
			if test.consumer != nil {
				testkit.Must(d.js.CreateConsumer(t.Context(), roomStreamName, *test.consumer))(t)
			}
			delay := []string{"DELAY", "payments=1m"}
			run(t, d.settings(delay...), "check").want(1, "FAIL", test.want)
			d.startWorker("worker", delay...).want(1, "a stream is not fit for use", test.want)
		})
	}
}
