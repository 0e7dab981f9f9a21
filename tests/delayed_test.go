package tests

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// delayed runs `notifier delayed`, wants success, and returns the output.
func (d *deployment) delayed(arguments ...string) string {
	d.t.Helper()
	return d.notifier(append([]string{"delayed"}, arguments...)...)
}

// startDelaying starts four workers and stores events of payments, of which one is sent and the others wait for an hour.
func (d *deployment) startDelaying(events int, changes ...string) (workers fleet, ids []string) {
	d.t.Helper()
	workers = d.startFleet(4, delaying("1/10m", "payments=48h", changes...)...)
	ids = d.publishEvents([]string{"payments"}, events)
	d.awaitWaiting(events - 1)
	workers.awaitEvents(1, "outcome", "sent")
	return workers, ids
}

// awaitWaiting waits until a number of events wait for slots, and all other events have outcomes.
func (d *deployment) awaitWaiting(events int) {
	d.t.Helper()
	d.awaitLeft(streamName, 0)
	d.awaitInRoom("notify-room.>", events)
	d.awaitInRoom("notify-room.slot.>", events)
}

// wantNoPlaces wants no event of payments in the queues and counts of waiting events.
func (d *deployment) wantNoPlaces() {
	d.t.Helper()
	testkit.Equal(d.t, d.redis.CLI("zcount", "{notifier}:room:payments", fmt.Sprint(time.Now().UnixMicro()), "+inf"), "0", "events that count as waiting")
	for key := range strings.FieldsSeq(d.redis.CLI("keys", "{notifier}:line:*")) {
		testkit.Equal(d.t, d.redis.CLI("zrange", key, "0", "-1"), "", "events in the queue %s", key)
	}
}

// TestReplanned raises and removes a limit while events wait for their slots for an hour. The events are replanned, even if workers are
// killed.
func TestReplanned(t *testing.T) {
	t.Parallel()
	const events = 12
	d := newDeployment(t)
	workers := d.startFleet(4, delaying("3/1h", "payments=48h", quick()...)...)
	ids := d.publishEvents([]string{"payments"}, events)
	d.awaitWaiting(events - 3)
	workers.awaitEvents(3, "outcome", "sent")

	d.limits("set", "payments", "7/1h")
	workers.awaitEvents(7, "outcome", "sent")
	d.awaitWaiting(events - 7)

	for _, w := range workers[:3] {
		w.kill()
	}
	d.limits("set", "payments", "none")
	workers[3].kill()
	d.startFleet(2, delaying("3/1h", "payments=48h", quick()...)...)
	d.awaitPosts(events) // the killed worker may have posted some of them
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), ids...)
}

// TestDelayedOrders releases and drops events that wait for an hour.
func TestDelayedOrders(t *testing.T) {
	t.Parallel()
	const events = 7
	d := newDeployment(t)
	workers, _ := d.startDelaying(events, "JOURNAL_AGE", "1h")
	sent := postedIn(d.slack.Accepted(), "payments")
	waits := slices.DeleteFunc([]string{"payments-1", "payments-2", "payments-3", "payments-4"}, func(id string) bool { return slices.Contains(sent, id) })
	list := d.delayed("list", "payments")
	testkit.Contains(t, "shown", list, "slot", waits[0], waits[1])
	testkit.Equal(t, strings.Count(list, "\n"), events, "lines of %s", list)
	testkit.Contains(t, "shown", d.delayed("list", "orders"), "no event waits")
	run(t, d.settings(), "delayed", "drop", "payments").want(2, "confirm with --yes")
	run(t, d.settings("HTTP_ADDR", "off"), "delayed", "drop", "payments", "nosuch", "--yes").want(1, "nosuch: no such event waits")

	testkit.Contains(t, "shown", d.delayed("release", "payments", waits[0], "--as", "alice", "--yes"), "released 1 event")
	workers.awaitEvents(2, "outcome", "sent")
	testkit.Contains(t, "shown", d.delayed("drop", "payments", waits[1], "--as", "bob", "--yes"), "dropped 1 event")
	workers.awaitSum(1, "notifier_dropped_total", "level", "operator")
	d.wantWhy("sent", "released by alice", waits[0])
	d.wantWhy("dropped", "by bob with notifier delayed drop", waits[1])
	d.awaitWaiting(events - 3)
	testkit.Equal(t, len(d.log("{notifier}:log:payments")), 1, "slots taken")

	testkit.Contains(t, "shown", d.delayed("release", ">", "--yes"), fmt.Sprintf("released %d events", events-3))
	workers.awaitOutcomes(map[string]int{"sent": events - 1, "dropped": 1})
	d.awaitEmpty()
	testkit.Equal(t, len(d.log("{notifier}:log:payments")), 1, "slots taken in the end")
	testkit.Equal(t, len(d.slack.Accepted()), events-1, "posts")
	d.wantNoPlaces()
}

// TestReleasedFromAPair releases a resolved event that waits for its firing event, which waits for a slot.
func TestReleasedFromAPair(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, delaying("1/1h", "disks=3h")...)
	d.publishUntil(workers, "sent", "notify.disks", eventBody("first"))
	d.publish("notify.disks", firing("fired", "a"))
	d.awaitInRoom("notify-room.slot.>", 1)
	d.publish("notify.disks", resolved("ended", "a"))
	d.awaitInRoom("notify-room.pair.>", 1)
	testkit.Eventually(t, "the event to be released", func() bool { // status 1: a worker is deciding it, since it comes back now and then
		return run(t, d.settings("HTTP_ADDR", "off"), "delayed", "release", "disks", "ended", "--yes").wait() == 0
	})
	workers.awaitEvents(2, "outcome", "sent")
	wantPostedOnce(t, d.slack.Accepted(), "first", "ended")

	// A dropped firing event leaves nothing that a resolved event would wait for.
	d.delayed("drop", "disks", "--yes")
	workers.awaitSum(1, "notifier_dropped_total", "level", "operator")
	d.publishUntil(workers, "dropped", "notify.disks", resolved("later", "a"))
	d.awaitEmpty()
	d.wantNoPlaces()
}

// TestOrdersRace gives orders from several commands at once, while slots open all the time and a worker is killed. Each event has one
// outcome.
func TestOrdersRace(t *testing.T) {
	t.Parallel()
	const events = 60
	d := newDeployment(t)
	workers := d.startFleet(4, delaying("2/2s", "payments=10m", quick("JOURNAL_AGE", "1h", "SLACK_RATE", "none")...)...)
	ids := d.publishEvents([]string{"payments"}, events)
	workers.awaitEvents(2, "outcome", "sent")
	var ordering sync.WaitGroup
	for i, action := range []string{"release", "drop", "release", "drop"} {
		ordering.Go(func() {
			for _, tens := range []string{"1", "2", "3"} {
				id := fmt.Sprintf("payments-%s%d", tens, i)
				run(t, d.settings("HTTP_ADDR", "off"), "delayed", action, "payments", id, fmt.Sprintf("payments-%s%d", tens, i+1), "--yes").wait()
			}
		})
	}
	workers[0].kill()
	ordering.Wait()
	for _, action := range []string{"drop", "release"} {
		ordering.Go(func() { run(t, d.settings("HTTP_ADDR", "off"), "delayed", action, "payments", "--yes").wait() })
	}
	ordering.Wait()
	d.awaitEmpty()
	posted := postedIn(d.slack.Accepted(), "payments")
	var dropped []string
	testkit.Eventually(t, "an outcome of each event in the journal", func() bool {
		entries, err := d.entries(journal.Query{Category: "payments", Result: journal.Dropped})
		dropped = dropped[:0]
		for _, e := range entries {
			dropped = append(dropped, e.ID)
			testkit.Equal(t, e.Level, "operator", "level of %s", e.ID)
		}
		return err == nil && len(posted)+len(dropped) >= events-1 // the killed worker may have lost an entry
	})
	all := slices.Sorted(slices.Values(slices.Concat(posted, dropped)))
	testkit.Equal(t, len(slices.Compact(slices.Clone(all))), len(all), "events with one outcome, of %v", all)
	testkit.Equal(t, slices.ContainsFunc(all, func(id string) bool { return !slices.Contains(ids, id) }), false, "unknown events in %v", all)
	d.wantNoPlaces()
}

// TestReleaseKilled kills a release while it gives orders, and workers between two steps of the delivery of a released event.
func TestReleaseKilled(t *testing.T) {
	t.Parallel()
	const events = 60
	d := newDeployment(t)
	changes := quick("ROOM_MAX", "1000", "SLACK_RATE", "10/s") // most of them wait for the channel when the workers are killed
	workers, ids := d.startDelaying(events, changes...)
	releasing := start(t, "the release", d.settings("HTTP_ADDR", "off"), "delayed", "release", "payments", "--yes")
	testkit.Eventually(t, "some released events", func() bool { return len(d.slack.Accepted()) > 2 })
	releasing.kill()
	for _, w := range workers {
		w.kill()
	}
	doomed := startKillable(t, failpoint.AfterPost, 1, d.settings("HTTP_ADDR", "off").with(delaying("1/10m", "payments=48h", changes...)...))
	run(t, d.settings("HTTP_ADDR", "off"), "delayed", "release", "payments", "--yes").wait() // events in the hands of dead workers may be left
	doomed.awaitDoom()
	d.startFleet(4, delaying("1/10m", "payments=48h", changes...)...)
	run(t, d.settings("HTTP_ADDR", "off"), "delayed", "release", "payments", "--yes").want(0)
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), ids...)
	testkit.Equal(t, len(d.log("{notifier}:log:payments")), 1, "slots taken")
	d.wantNoPlaces()
}
