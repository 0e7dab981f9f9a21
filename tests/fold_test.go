package tests

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// folds returns settings that fold repeats in the category disks, with one slot in 30 minutes.
func folds(more ...string) []string {
	return append([]string{"FOLD", ">=off,disks=1h", "GLOBAL_LIMIT", "1/30m", "CATEGORY_LIMIT", "1/30m"}, more...)
}

// awaitSeen waits until the newest update of a message shows the number of its events, and returns the update.
func (d *deployment) awaitSeen(of slacktest.Post, times int) slacktest.Update {
	d.t.Helper()
	var newest slacktest.Update
	testkit.Eventually(d.t, fmt.Sprintf("the message to say that it was seen %d times", times), func() bool {
		changes := d.updates(of)
		if len(changes) == 0 {
			return false
		}
		newest = changes[len(changes)-1]
		return strings.Contains(text(newest.Message), fmt.Sprintf("seen %d times, last ", times))
	})
	return newest
}

// lapseCount lets the message of a key of the category disks show its count at once, and not only 31 seconds after it last did.
func (d *deployment) lapseCount() {
	d.t.Helper()
	lapsed := d.redis.CLI("eval", `
		local lapsed = 0
		for i, value in ipairs(redis.call('HGETALL', KEYS[1])) do
			if i % 2 == 0 then
				local text, found = string.gsub(value, '^(=%d+ %d+ %d+ %d+ %d+ %d+ %d+) %d+', '%1 1')
				if found > 0 then
					redis.call('HSET', KEYS[1], redis.call('HGETALL', KEYS[1])[i - 1], text)
				end
				lapsed = lapsed + found
			end
		end
		return lapsed`, "1", "{notifier}:pairs:disks")
	testkit.Equal(d.t, lapsed, "1", "messages of keys")
}

// TestRepeatsAreFolded publishes 1,000 firing events of one key at once, and kills two of four workers. The events get one message and one slot.
// At most two updates in any minute count them.
func TestRepeatsAreFolded(t *testing.T) {
	t.Parallel()
	const events = 1000
	d := newDeployment(t)
	d.createStream()
	for i := range events {
		d.publish("notify.disks", firing(fmt.Sprint("fired-", i), "a"))
	}
	stalls := measureStalls(t)
	workers := d.startFleet(4, folds(quick()...)...)
	d.awaitPosts(1)
	workers[0].kill()
	testkit.Eventually(t, "half of the events are folded", func() bool {
		left, err := d.left(streamName)
		return err == nil && left < events/2
	})
	workers[1].kill()
	first := d.slack.Accepted()[0]
	shown := d.awaitSeen(first, events)
	testkit.Contains(t, "message", text(shown.Message), "worst: error", "FIRING ERROR")
	testkit.Equal(t, colour(shown.Message), errorColour, "colour of the message")
	d.awaitEmpty()
	testkit.Equal(t, len(d.slack.Accepted()), 1, "posts")
	testkit.Equal(t, len(d.log(rootLog)), 1, "slots")
	changes := d.updates(first)
	for i := 2; i < len(changes); i++ {
		testkit.AtLeast(t, changes[i].Received.Sub(changes[i-2].Received), time.Minute-stalls.delay(), "time between updates %d and %d", i-1, i+1)
	}
}

// TestRepeatsOfADeletedMessage has a person delete the message that counts the repeats of a key. A later repeat is posted again, and counts the
// next ones. The resolved event updates it, although the first message of the key is gone.
func TestRepeatsOfADeletedMessage(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(1, unlimited("FOLD", ">=off,disks=1h")...)
	d.publish("notify.disks", firing("first", "a"))
	d.awaitPosts(1)
	d.slack.Delete(d.post("first").Timestamp)
	d.publish("notify.disks", firing("second", "a"))
	workers.awaitLog(1, "a message cannot be updated")
	d.publish("notify.disks", firing("third", "a"))
	d.awaitPosts(2)
	d.publish("notify.disks", firing("fourth", "a"))
	d.awaitSeen(d.post("third"), 2)
	d.publish("notify.disks", resolved("resolved", "a"))
	d.awaitEmpty()
	d.wantNotPosted("second")
	testkit.Equal(t, d.post("resolved").Thread, "", "thread of the resolved event")
	changes := d.updates(d.post("third"))
	testkit.Equal(t, colour(changes[len(changes)-1].Message), resolvedColour, "colour of the message that is left")
}

// TestUpdateThroughKills kills one of two workers at each step of a folded event and of the update that shows it, and then the other one.
// New workers show the event, although no further event of its key comes, and then a later one. Each counts once.
func TestUpdateThroughKills(t *testing.T) {
	t.Parallel()
	for _, point := range []failpoint.Point{
		failpoint.AfterFold, failpoint.AfterKeep, failpoint.BeforeUpdate, failpoint.AfterShow, failpoint.AfterUpdate,
	} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			changes := folds(quick()...)
			doomed := make(fleet, 2)
			for i := range doomed {
				doomed[i] = d.doom(point, 1, changes...)
			}
			doomed.awaitReady()
			d.publishUntil(doomed, "sent", "notify.disks", firing("fired", "a"))
			d.publish("notify.disks", firing("again", "a"))
			testkit.Eventually(t, "a worker that has killed itself", func() bool { return slices.ContainsFunc(doomed, func(w *worker) bool { return w.hasExited() }) })
			for _, w := range doomed {
				w.kill()
			}
			d.lapseCount()

			d.startFleet(2, changes...)
			first := d.post("fired")
			d.awaitSeen(first, 2)
			d.awaitEmpty() // an update that is repeated is over
			d.lapseCount()
			d.publish("notify.disks", firing("last", "a"))
			d.awaitSeen(first, 3)
			d.awaitEmpty()
			testkit.Equal(t, len(d.slack.Accepted()), 1, "posts")
			testkit.Equal(t, len(d.log(rootLog)), 1, "slots")
			testkit.AtMost(t, len(d.updates(first)), 3, "updates, of which a kill may repeat one")
			d.wantWhy("folded", "as number 3", "last")
		})
	}
}

// TestResolvedBehindAFailedUpdate resolves an event whose count could not be shown: Slack gave an answer that leaves the update open. The message
// shows that it is resolved once the update must have ended, and nobody asks for it all the time until then.
func TestResolvedBehindAFailedUpdate(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, unlimited("FOLD", ">=1h")...)
	d.publishUntil(workers, "sent", "notify.disks", firing("fired", "a"))
	var updates atomic.Int32
	d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if post.Method == slacktest.MethodUpdate && updates.Add(1) == 1 {
			return slacktest.Status(503, "")
		}
		return slacktest.OK()
	})
	d.publishUntil(workers, "folded", "notify.disks", firing("again", "a"))
	testkit.Eventually(t, "the update that fails", func() bool { return updates.Load() > 0 })
	d.publishUntil(workers, "sent", "notify.disks", resolved("ended", "a"))
	first := d.post("fired")
	testkit.Eventually(t, "the resolved message", func() bool {
		changes := d.updates(first)
		return len(changes) > 0 && colour(changes[len(changes)-1].Message) == resolvedColour
	})
	d.awaitEmpty()
	testkit.AtMost(t, workers.sum("notifier_redeliveries_total"), 50, "redeliveries")
}

// TestReminderOfFolded repeats a folded event, which still fires, for longer than NOTIFIER_REMIND. One worker posts it, then posts it again, and the
// resolved event updates all messages.
func TestReminderOfFolded(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(3, unlimited("FOLD", ">=1h", "REMIND", "2s")...)
	d.publishUntil(workers, "sent", "notify.disks", firing("fired", "a"))
	d.publishUntil(workers, "folded", "notify.disks", firing("again", "a"))
	events := 2
	testkit.Eventually(t, "two reminders", func() bool {
		d.publish("notify.disks", firing("again", "a"))
		events++
		workers.awaitEvents(events)
		return len(d.posts("again")) == 2
	})
	workers.awaitOutcomes(map[string]int{"sent": 3, "folded": 1, "duplicate": events - 4})
	d.publish("notify.disks", resolved("ended", "a"))
	workers.awaitEvents(events + 1)
	d.awaitEmpty()
	for _, post := range append(d.posts("again"), d.post("fired")) {
		changes := d.updates(post)
		testkit.Check(t, len(changes) != 0 && colour(changes[len(changes)-1].Message) == resolvedColour,
			"the updates of the message %s are %+v, want that it is resolved", post.Timestamp, changes)
	}
}

// TestWebhookFoldsIntoDigests folds repeats with a webhook, whose messages cannot be updated. The digest counts them.
func TestWebhookFoldsIntoDigests(t *testing.T) {
	t.Parallel()
	const repeats = 5
	d := newDeployment(t)
	workers := d.startFleet(2, folds("SLACK_TOKEN", "", "SLACK_CHANNEL", "", "SLACK_WEBHOOK_URL", d.slack.WebhookURL(), "SUMMARY_INTERVAL", "2s")...)
	d.publishUntil(workers, "sent", "notify.disks", firing("fired", "a"))
	for i := range repeats {
		d.publish("notify.disks", firing(fmt.Sprint("again-", i), "a"))
	}
	workers.awaitEvents(repeats, "outcome", "folded")
	testkit.Eventually(t, "the digest", func() bool {
		digests := d.digests("")
		return len(digests) == 1 && digests[0].dropped == repeats
	})
	testkit.Equal(t, len(d.slack.Updates()), 0, "updates")
}
