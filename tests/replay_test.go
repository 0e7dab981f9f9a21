package tests

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestReplay replays dead letters twice. Each event is posted once, through the limits.
func TestReplay(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, "GLOBAL_LIMIT", "2/30m")
	d.slack.Script(slacktest.Code("msg_too_long"))
	d.publishUntil(workers, "dead", "notify.disks", firing("refused", "a"), "Nats-Msg-Id", "refused")
	d.publishUntil(workers, "dead", "notify.disks", "{broken", "Content-Type", "application/json")
	run(t, d.settings(), "dlq", "list").want(0, "rejected", "msg_too_long", "disk of a is full", "bad_json")
	run(t, d.settings(), "dlq", "replay", "--reason", "rejected", "--dry-run").want(0, "would replay 1 letter")
	d.wantNotPosted("refused")

	for range 2 {
		run(t, d.settings(), "dlq", "replay", "--reason", "rejected").want(0)
		workers.awaitEvents(1, "outcome", "sent")
		d.awaitEmpty()
	}
	wantPostedOnce(t, d.slack.Accepted(), "refused")
	d.awaitLeft(deadStreamName, 1)
	testkit.Equal(t, len(d.log(rootLog)), 1, "slots taken, after the first one was returned")
	workers.awaitSum(1, "notifier_refunds_total")

	// A replayed event can be resolved.
	d.publishUntil(workers, "sent", "notify.disks", resolved("ended", "a"))
	d.wantResolved("refused", "ended")
	run(t, d.settings(), "dlq", "replay", "--all").want(0)
	workers.awaitEvents(3, "outcome", "dead") // nothing was mended
	d.awaitEmpty()
	workers.awaitEvents(5)
}

// TestReplayAfterAKillInDoubt kills a worker between the post and its record, and has Slack reject the next attempt. A replay of the dead
// letter does not post the event again.
func TestReplayAfterAKillInDoubt(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.slack.Script(slacktest.OK(), slacktest.Code("msg_too_long"))
	changes := quick(unlimited("SLACK_LOOKUP", "off")...)
	doomed := d.startDoomed(failpoint.AfterPost, 1, changes...)
	d.publish("notify.errors", eventBody("taken"))
	doomed.awaitDoom()
	workers := d.startFleet(2, changes...)
	workers.awaitEvents(1, "outcome", "dead")
	run(t, d.settings(), "dlq", "replay", "--all").want(0, "replayed 1 letter")
	workers.awaitOutcomes(map[string]int{"dead": 1, "duplicate": 1})
	d.awaitEmpty()
	d.awaitLeft(deadStreamName, 0)
	wantPostedOnce(t, d.slack.Accepted(), "taken")
}

// TestReplayKilled kills a replay before it removes the dead letter, and runs the replay again after NATS has lost its duplicate window. The
// event is posted once.
func TestReplayKilled(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, quick(unlimited()...)...)
	d.slack.Script(slacktest.Code("msg_too_long"))
	d.publishUntil(workers, "dead", "notify.errors", eventBody("rejected"))
	startKillable(t, failpoint.AfterReplay, 1, d.settings(), "dlq", "replay", "--all").awaitDoom() // the letter is not removed
	workers.awaitEvents(1, "outcome", "sent")

	d.nats.Kill()
	d.nats.Restart()
	workers.awaitReady()
	run(t, d.settings(), "dlq", "replay", "--all").want(0, "replayed 1 letter")
	workers.awaitOutcomes(map[string]int{"dead": 1, "sent": 1, "duplicate": 1})
	d.awaitEmpty()
	d.awaitLeft(deadStreamName, 0)
	wantPostedOnce(t, d.slack.Accepted(), "rejected")
}
