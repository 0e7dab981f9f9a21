package tests

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/slacktest"
)

// TestReplay sends dead letters on again: once each, through the limits, as often as the command is run.
func TestReplay(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, "GLOBAL_LIMIT", "2/30m")
	d.slack.Script(slacktest.Code("msg_too_long"))
	d.publish("notify.disks", firing("refused", "a"), "Nats-Msg-Id", "refused")
	workers.awaitEvents(1, "outcome", "dead")
	d.publish("notify.disks", "{broken", "Content-Type", "application/json")
	workers.awaitEvents(2, "outcome", "dead")
	run(t, d.settings(), "dlq", "list").want(0, "slack_rejected", "msg_too_long", "disk of a is full", "bad_json")
	run(t, d.settings(), "dlq", "replay", "--reason", "slack_rejected", "--dry-run").want(0, "would replay 1 letter")
	d.wantNotPosted("refused")

	for range 2 {
		run(t, d.settings(), "dlq", "replay", "--reason", "slack_rejected").want(0)
		workers.awaitEvents(1, "outcome", "sent")
		d.awaitEmpty()
	}
	wantPostedOnce(t, d.slack.Accepted(), []string{"refused"})
	if left, err := d.left(deadStreamName); err != nil || left != 1 {
		t.Errorf("%d dead letters are left, error %v, want the other one", left, err)
	}
	if got := len(d.log(rootLog)); got != 1 {
		t.Errorf("%d slots are taken, want 1", got)
	}

	// What was replayed is an event like any other: it can be resolved, and is denied by a full limit.
	d.publish("notify.disks", resolved("ended", "a"))
	workers.awaitEvents(2, "outcome", "sent")
	d.wantResolved("refused", "ended")
	run(t, d.settings(), "dlq", "replay", "--all").want(0)
	workers.awaitEvents(3, "outcome", "dead") // nothing was mended
	d.awaitEmpty()
	workers.awaitEvents(5)
}

// TestReplayOfDelivered has a dead letter whose event was delivered after all: it does not go out twice.
func TestReplayOfDelivered(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2)
	d.slack.Script(slacktest.Code("msg_too_long"))
	d.publish("notify.errors", eventBody("first"))
	workers.awaitEvents(1, "outcome", "dead")
	d.publish("notify.errors", eventBody("first")) // its producer tries again
	workers.awaitEvents(1, "outcome", "sent")
	run(t, d.settings(), "dlq", "replay", "first").want(0)
	workers.awaitEvents(1, "outcome", "duplicate")
	d.awaitEmpty()
	workers.awaitEvents(3)
	wantPostedOnce(t, d.slack.Accepted(), []string{"first"})
	if left, err := d.left(deadStreamName); err != nil || left != 0 {
		t.Errorf("%d dead letters are left, error %v, want none", left, err)
	}
}
