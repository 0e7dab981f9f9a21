package tests

import (
	"fmt"
	"strings"
	"testing"

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

// TestRepeatsAreFolded publishes 1,000 firing events of one key at once. They get one message and one slot. At most two updates in any minute
// count them.
func TestRepeatsAreFolded(t *testing.T) {
	t.Parallel()
	const events = 1000
	d := newDeployment(t)
	d.createStream()
	for i := range events {
		d.publish("notify.disks", firing(fmt.Sprint("fired-", i), "a"))
	}
	workers := d.startFleet(4, folds()...)
	workers.awaitOutcomes(map[string]int{"sent": 1, "folded": events - 1})
	d.awaitPosts(1)
	first := d.slack.Accepted()[0]
	shown := d.awaitSeen(first, events)
	if !strings.Contains(text(shown.Message), "worst: error") || !strings.Contains(shown.Message.Text, "FIRING ERROR") || colour(shown.Message) != errorColour {
		t.Errorf("the message shows %s, want the firing event with its worst severity", text(shown.Message))
	}
	d.awaitEmpty()
	testkit.Equal(t, len(d.slack.Accepted()), 1, "posts")
	testkit.AtMost(t, len(d.updates(first)), 2, "updates within a minute")
}

// TestFoldedOnceThroughKills kills workers that have folded an event and have not settled its message. Each event counts once, in the update
// that shows the resolved event too.
func TestFoldedOnceThroughKills(t *testing.T) {
	t.Parallel()
	const kills, each = 3, 10
	d := newDeployment(t)
	changes := folds(recovering()...)
	first := d.startReady("first", changes...)
	d.publishUntil(first.alone(), "sent", "notify.disks", firing("fired", "a"))
	first.stop()
	for n := range kills {
		doomed := d.doom(failpoint.AfterFold, n+1, changes...)
		for i := range each {
			d.publish("notify.disks", firing(fmt.Sprintf("fired-%d-%d", n, i), "a"))
		}
		doomed.awaitDoom()
	}
	workers := d.startFleet(4, changes...)
	d.awaitLeft(streamName, 0)
	d.publish("notify.disks", resolved("ended", "a"))
	workers.awaitEvents(1, "outcome", "sent")
	testkit.Eventually(t, "the message is resolved and counts all events", func() bool {
		return colour(d.awaitSeen(d.post("fired"), 1+kills*each).Message) == resolvedColour
	})
	d.awaitEmpty()
	wantPosts(t, d.slack.Accepted(), map[string]int{"fired": 1, "ended": 1})
	d.wantWhy("folded", "into the message of", "fired-0-0")
}

// TestWorseIsPosted publishes a worse event of a key that has a message. It is posted, and further events are folded into it.
func TestWorseIsPosted(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(4, unlimited("FOLD", ">=1h")...)
	critical := func(id string) string { return strings.Replace(firing(id, "a"), `"error"`, `"critical"`, 1) }
	for i, event := range []string{firing("error-1", "a"), critical("critical-1"), firing("error-2", "a"), critical("critical-2")} {
		d.publish("notify.disks", event)
		workers.awaitEvents(1 + i)
	}
	workers.awaitOutcomes(map[string]int{"sent": 2, "folded": 2})
	d.awaitSeen(d.post("critical-1"), 2)
	d.publish("notify.disks", resolved("ended", "a"))
	workers.awaitEvents(3, "outcome", "sent")
	d.awaitSeen(d.post("critical-1"), 3)
	wantPosts(t, d.slack.Accepted(), map[string]int{"error-1": 1, "critical-1": 1, "ended": 1})
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
