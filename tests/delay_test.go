package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// delaying returns settings under which events of some categories wait for a slot.
func delaying(categoryLimit, delay string, more ...string) []string {
	return append([]string{"GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", categoryLimit, "DELAY", delay}, more...)
}

// postedIn returns the IDs of a category's events in the order of their posts.
func postedIn(posts []slacktest.Post, category string) []string {
	var ids []string
	for _, post := range posts {
		if post.Origin("category") == category {
			ids = append(ids, post.Origin("id"))
		}
	}
	return ids
}

// TestDelay wants the events of some categories to wait for slots, in the order of the stream, and drops of the others.
func TestDelay(t *testing.T) {
	t.Parallel()
	const events, slots, window = 6, 2, 6 * time.Second
	d := newDeployment(t)
	// The last events wait for longer than events may be old elsewhere.
	workers := d.startFleet(3, delaying("2/6s", "payments.>=1m,security=1m,orders.>=1m", "EVENT_MAX_AGE", "8s")...)
	waiting := []string{"payments.refunds", "security"}
	ids := d.publishEvents(waiting, events)
	dropping := []string{"orders", "errors"} // orders is not below orders
	d.publishEvents(dropping, events)
	workers.awaitOutcomes(map[string]int{"sent": len(ids) + len(dropping)*slots, "dropped": len(dropping) * (events - slots)})
	d.awaitEmpty()
	workers.awaitSum(0, "notifier_room_pending", "reason", "slot")
	workers.awaitSum(0, "notifier_room_refused_total", "reason", "slot")
	least := len(waiting) * (events - slots)
	testkit.Eventually(t, "a count of the events that were put off", func() bool { return workers.sum("notifier_delayed_total", "level", "category") >= least })

	var waited []slacktest.Post
	for _, category := range waiting {
		var taken []time.Time
		for _, post := range d.slack.Accepted() {
			if post.Origin("category") == category {
				waited, taken = append(waited, post), append(taken, post.Received)
			}
		}
		for i := slots; i < len(taken); i++ {
			// The limit counts admissions. The time from an admission to its post differs.
			testkit.AtLeast(t, taken[i].Sub(taken[i-slots]), window-time.Second, "time between %d posts of %s", slots+1, category)
		}
	}
	wantPostedOnce(t, waited, ids...)
	for _, category := range waiting {
		posted := postedIn(d.slack.Accepted(), category)
		for opened := range slices.Chunk(posted, slots) { // the workers race for slots that open together
			slices.Sort(opened)
		}
		testkit.Equal(t, slices.IsSorted(posted[slots:]), true, "the events of %s are posted in order: %v", category, posted)
	}
}

// TestRoomMax wants at most ROOM_MAX events to wait, and drops of the others. Each event counts twice for its size.
func TestRoomMax(t *testing.T) {
	t.Parallel()
	const events, most = 10, 3
	d := newDeployment(t)
	workers := d.startFleet(2, delaying("1/4s", "payments=1m", "ROOM_MAX", fmt.Sprint(2*most))...)
	for i := range events {
		d.publish("notify.payments", fmt.Sprintf(`{"id":"%d","title":"large","text":%q}`, i, strings.Repeat("a", 20<<10)))
	}
	workers.awaitOutcomes(map[string]int{"sent": 1 + most, "dropped": events - 1 - most})
	workers.awaitSum(events-1-most, "notifier_dropped_total", "level", "category")
	workers.awaitSum(events-1-most, "notifier_room_refused_total", "reason", "slot")
	d.awaitEmpty()
	testkit.Equal(t, len(d.slack.Posts()), 1+most, "posts")
}

// TestDelayOverRestarts kills workers, NATS and Redis while events wait.
func TestDelayOverRestarts(t *testing.T) {
	t.Parallel()
	const events, slots = 4, 2
	d := newDurableDeployment(t)
	changes := quick(delaying("2/8s", "payments=2m")...)
	workers := d.startFleet(2, changes...)
	ids := d.publishEvents([]string{"payments"}, events)
	workers.awaitEvents(slots, "outcome", "sent")
	workers.awaitSum(events-slots, "notifier_delayed_total")
	d.awaitConsumer("without unsettled messages", func(c *jetstream.ConsumerInfo) bool { return c.NumAckPending == 0 })
	for _, w := range workers {
		w.kill()
	}
	d.nats.Kill()
	d.redis.Kill()
	d.nats.Restart()
	d.redis.Restart()
	workers = d.startFleet(2, changes...)
	workers.awaitOutcomes(map[string]int{"sent": events - slots})
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Posts(), ids...)
	workers.awaitSum(0, "notifier_room_pending", "reason", "slot")
}
