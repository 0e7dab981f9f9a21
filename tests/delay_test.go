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

// TestDelay wants the events of some categories to wait for slots, and drops of the others.
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
	testkit.Eventually(t, "a count of the events that were put off", func() bool { return workers.sum("notifier_delayed_total") >= least })

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
			testkit.AtMost(t, window-time.Second, taken[i].Sub(taken[i-slots]), "the least time between %d posts of %s", slots+1, category)
		}
	}
	wantPostedOnce(t, waited, ids...)
}

// TestDelayOrder publishes more events than there are slots to three workers. Waiting events are posted in the order of the stream. The
// workers race for the slots that are free at first, and for slots that open together.
func TestDelayOrder(t *testing.T) {
	t.Parallel()
	limits := map[string]struct {
		limit                        string
		cost, events, free, together int
	}{
		"costly": {"4/2s", 4, 8, 1, 1},
		"leaky":  {"leaky:1/1s", 1, 12, 1, 1},
		"many":   {"3/3s", 1, 18, 3, 3},
		"token":  {"token:4/4s;burst=2", 1, 12, 2, 1},
	}
	var rules, delays []string
	for category, of := range limits {
		rules, delays = append(rules, category+"="+of.limit), append(delays, category+"=2m")
	}
	d := newDeployment(t)
	workers := d.startFleet(3, delaying("none", strings.Join(delays, ","), "LIMITS", strings.Join(rules, ","), "SLACK_RATE", "none")...)
	total := 0
	for category, of := range limits {
		for i := range of.events {
			d.publish("notify."+category, fmt.Sprintf(`{"id":"%s-%02d","title":"an event","cost":%d}`, category, i, of.cost))
		}
		total += of.events
	}
	workers.awaitOutcomes(map[string]int{"sent": total})
	testkit.Equal(t, repeats(d.slack.Posts()), 0, "repeated posts")
	for category, of := range limits {
		got := postedIn(d.slack.Posts(), category)
		testkit.Equal(t, len(got), of.events, "posts of %s", category)
		for opened := range slices.Chunk(got[of.free:], of.together) {
			slices.Sort(opened)
		}
		if !slices.IsSorted(got[of.free:]) {
			t.Errorf("the events were posted in the order %v", got)
		}
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
	changes := recovering(delaying("2/8s", "payments=2m")...)
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

// TestResolvedWaitsForDelayed resolves an event that waits for its slot.
func TestResolvedWaitsForDelayed(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, longLeases(delaying("1/3s", "disks=1m")...)...)
	d.publishUntil(workers, "sent", "notify.disks", eventBody("first"))
	d.publish("notify.disks", firing("fired", "a"))
	workers.awaitSum(1, "notifier_delayed_total")
	d.publish("notify.disks", resolved("ended", "a"))
	workers.awaitOutcomes(map[string]int{"sent": 3})
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Posts(), "first", "fired", "ended")
	d.wantResolved("fired", "ended")
}

// TestStreamsUnfit has a room in which no event can wait for a slot. The check and the worker name the fault.
func TestStreamsUnfit(t *testing.T) {
	t.Parallel()
	const fault = "does not allow message schedules (allow_msg_schedules)"
	d := newDeployment(t)
	d.createRoom(func(c *jetstream.StreamConfig) { c.AllowMsgSchedules = false })
	delay := []string{"DELAY", "payments=1m"}
	run(t, d.settings(delay...), "check").want(1, "FAIL", fault)
	d.startWorker("worker", delay...).want(1, "nats is not fit for use", fault)
}
