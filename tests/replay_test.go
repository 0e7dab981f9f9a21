package tests

import (
	"net/http"
	"testing"
	"time"

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

// TestReplayOfWhatWaited replays an event that waited for its slot and was rejected. The event waits anew, from the replay on.
func TestReplayOfWhatWaited(t *testing.T) {
	t.Parallel()
	const window, delay = "3s", 6 * time.Second
	d := newDeployment(t)
	workers := d.startFleet(2, delaying("1/"+window, "payments="+delay.String())...)
	d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if post.Origin("id") == "waited" {
			return slacktest.Code("msg_too_long")
		}
		return slacktest.OK()
	})
	d.publishUntil(workers, "sent", "notify.payments", eventBody("first"))
	began := time.Now()
	d.publishUntil(workers, "dead", "notify.payments", eventBody("waited"))
	workers.awaitSum(1, "notifier_delayed_total")
	d.slack.Respond(nil)
	time.Sleep(time.Until(began.Add(delay + time.Second))) // the delay that the event may wait has to pass
	d.publishUntil(workers, "sent", "notify.payments", eventBody("other"))
	run(t, d.settings(), "dlq", "replay", "--all").want(0, "replayed 1 letter")
	workers.awaitEvents(3, "outcome", "sent")
	testkit.Eventually(t, "it has waited anew", func() bool { return workers.sum("notifier_delayed_total") > 1 }) // again, if it comes early
	d.awaitEmpty()
	workers.awaitEvents(4)
	wantPostedOnce(t, d.slack.Accepted(), "first", "waited", "other")
}

// wantReplayIsDuplicate replays the one dead letter, of an event that Slack has taken. Nothing is posted again.
func (d *deployment) wantReplayIsDuplicate(workers fleet, id string) {
	d.t.Helper()
	run(d.t, d.settings(), "dlq", "replay", "--all").want(0, "replayed 1 letter")
	workers.awaitEvents(1, "outcome", "duplicate")
	d.awaitEmpty()
	d.awaitLeft(deadStreamName, 0)
	wantPostedOnce(d.t, d.slack.Accepted(), id)
	workers.awaitOutcomes(map[string]int{"dead": 1, "duplicate": 1})
}

// TestReplayAfterAKillInDoubt kills a worker between the post and its record, and has Slack reject the next attempt. A replay of the dead
// letter does not post the event again.
func TestReplayAfterAKillInDoubt(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.slack.Script(slacktest.OK(), slacktest.Code("msg_too_long"))
	changes := recovering(unlimited("SLACK_LOOKUP", "off")...)
	doomed := d.startDoomed(failpoint.AfterPost, 1, changes...)
	d.publish("notify.errors", eventBody("taken"))
	doomed.awaitDoom()
	workers := d.startFleet(2, changes...)
	workers.awaitEvents(1, "outcome", "dead")
	d.wantReplayIsDuplicate(workers, "taken")
}

// TestReplayInDoubt has Slack take a post whose answer is lost, and reject a later attempt of the same or of another delivery. The
// token may not look the post up.
func TestReplayInDoubt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		later bool // the attempt that is rejected is of another delivery
	}{{"same delivery", false}, {"another delivery", true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			rejects := func(slacktest.Post) slacktest.Answer { return slacktest.Code("msg_too_long") }
			fails := func(slacktest.Post) slacktest.Answer {
				return slacktest.Status(http.StatusServiceUnavailable, "upstream")
			}
			d.slack.Script(slacktest.Stored(slacktest.Reset()))
			d.slack.Respond(rejects)
			if test.later {
				d.slack.Respond(fails)
			}
			workers := d.startFleet(2, quick(unlimited("SLACK_LOOKUP", "off")...)...)
			d.publish("notify.errors", eventBody("taken"))
			if test.later {
				d.awaitInRoom("notify-room.channel.*.errors", 1)
				d.slack.Respond(rejects)
			}
			workers.awaitEvents(1, "outcome", "dead")
			d.wantReplayIsDuplicate(workers, "taken")
		})
	}
}

// TestReplayKilled kills a replay before it removes the dead letter, and runs the replay again after NATS has lost its duplicate window. The
// event is posted once, whatever its state is by then.
func TestReplayKilled(t *testing.T) {
	t.Parallel()
	const queue = "notify-room.channel.*.errors"
	for _, test := range []struct {
		name     string
		first    slacktest.Answer         // to what the killed replay has posted
		rests    bool                     // that is the answer until both replays' events wait
		reached  func(*deployment, fleet) // returns when the killed replay's event is there
		replayed string
		dead     int // outcomes
	}{
		{"posted", slacktest.OK(), false, func(_ *deployment, w fleet) { w.awaitEvents(1, "outcome", "sent") }, "replayed 1 letter", 1},
		{
			"waits for its channel", slacktest.RateLimited(8 * time.Second), true, func(d *deployment, _ fleet) { d.awaitInRoom(queue, 1) },
			"replayed 1 letter", 1,
		},
		{
			"rejected again", slacktest.Code("msg_too_long"), false, func(_ *deployment, w fleet) { w.awaitEvents(2, "outcome", "dead") },
			"replayed 2 letters", 2,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			workers := d.startFleet(2, recovering(unlimited()...)...)
			d.slack.Respond(func(slacktest.Post) slacktest.Answer { return test.first })
			d.slack.Script(slacktest.Code("msg_too_long"))
			d.publishUntil(workers, "dead", "notify.errors", eventBody("rejected"))
			startKillable(t, failpoint.AfterReplay, 1, d.settings(), "dlq", "replay", "--all").awaitDoom() // the letter is not removed
			test.reached(d, workers)

			d.nats.Kill()
			d.nats.Restart()
			workers.awaitReady()
			if !test.rests {
				d.slack.Respond(nil)
			}
			run(t, d.settings(), "dlq", "replay", "--all").want(0, test.replayed)
			if test.rests {
				d.awaitInRoom(queue, 2)
				d.slack.Respond(nil)
			}
			workers.awaitEvents(1, "outcome", "duplicate")
			d.awaitEmpty()
			d.awaitLeft(deadStreamName, 0)
			workers.awaitOutcomes(map[string]int{"dead": test.dead, "sent": 1, "duplicate": 1})
			wantPostedOnce(t, d.slack.Accepted(), "rejected")
		})
	}
}
