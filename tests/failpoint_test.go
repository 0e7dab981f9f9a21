package tests

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// startDoomed starts a worker that kills itself when it reaches a point for the n-th time, and waits until it is ready.
func (d *deployment) startDoomed(point failpoint.Point, n int, changes ...string) *worker {
	d.t.Helper()
	w := d.doom(point, n, changes...)
	w.awaitReady()
	return w
}

// doom starts a worker that kills itself when it reaches a point for the n-th time, perhaps before anybody has seen it ready.
func (d *deployment) doom(point failpoint.Point, n int, changes ...string) *worker {
	d.t.Helper()
	address := freeAddress(d.t)
	return &worker{startKillable(d.t, point, n, d.settings("HTTP_ADDR", address).with(changes...)), address}
}

// killings are kills between two steps of a delivery.
var killings = []struct {
	point   failpoint.Point
	counted int // outcomes of the event, counted by the workers started later
}{
	{failpoint.BeforePost, 1},
	{failpoint.AfterPost, 1},   // the look-up finds the post
	{failpoint.AfterRecord, 0}, // the killed worker had counted the outcome
}

// TestKilledBetweenSteps kills a worker between two steps of a delivery, and starts others.
func TestKilledBetweenSteps(t *testing.T) {
	t.Parallel()
	for _, test := range killings {
		t.Run(string(test.point), func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			doomed := d.startDoomed(test.point, 1, quick(unlimited()...)...)
			d.publish("notify.disks", firing("fired", "a"))
			if test.point == failpoint.AfterRecord { // else the doomed worker may be posting what resolves it as it ends
				doomed.awaitDoom()
			}
			d.publish("notify.disks", resolved("ended", "a"))
			doomed.awaitDoom()
			workers := d.startFleet(2, quick(unlimited()...)...)
			workers.awaitEvents(1+test.counted, "outcome", "sent")
			d.awaitEmpty()
			workers.awaitSum(1, "notifier_resolved_total", "result", "paired")
			workers.awaitEvents(1 + test.counted)
			wantPostedOnce(t, d.slack.Accepted(), "fired", "ended")
			d.wantResolved("fired", "ended")
		})
	}
}

// TestKilledWhileMoving kills a worker while it moves events to the room, for each reason to do so: a group of alerts, events that wait for
// their slot, and events that wait for their channel. Each event is posted once.
func TestKilledWhileMoving(t *testing.T) {
	t.Parallel()
	for _, point := range []failpoint.Point{failpoint.AfterSplit, failpoint.AfterPlan, failpoint.AfterMove, failpoint.AfterRelease} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			alerts, waiting := numbered("alert", 12), 3
			d := newDeployment(t)
			changes := unlimited(quick("LIMITS", "waiting=1/1s", "DELAY", "waiting=1m")...)
			doomed := d.startDoomed(point, 1, append(changes, "SLACK_RATE", "2/s")...)
			d.publish("notify.alerts", groupOf(alerts...))
			d.publishEvents([]string{"waiting"}, waiting)
			doomed.awaitDoom()
			d.startFleet(2, changes...)
			d.awaitEmpty()
			testkit.Equal(t, len(d.slack.Accepted()), len(alerts)+waiting, "posts")
			testkit.Equal(t, len(countTexts(d.slack.Accepted())), len(alerts)+waiting, "events that were posted")
		})
	}
}

func countTexts(posts []slacktest.Post) map[string]int {
	counts := make(map[string]int)
	for _, post := range posts {
		counts[post.Text]++
	}
	return counts
}

// lapseDigest ends the lease of the claimed digest of the default channel, and waits until a worker marks the digest as in doubt.
func (d *deployment) lapseDigest() {
	d.t.Helper()
	const counts, due = "{notifier}:drops:counts:" + defaultChannel, "{notifier}:drops:due"
	lapsed := d.redis.CLI("eval", `
		local text, found = redis.call('HGET', KEYS[1], '\nclaimed'), 0
		if text then
			text, found = string.gsub(text, '^(%w+ posting) %d+', '%1 1')
			redis.call('HSET', KEYS[1], '\nclaimed', text)
			redis.call('ZADD', KEYS[2], 1, ARGV[1])
		end
		return found`, "2", counts, due, defaultChannel)
	testkit.Equal(d.t, lapsed, "1", "digests that are claimed")
	testkit.Eventually(d.t, "somebody sees it", func() bool { return !strings.Contains(d.redis.CLI("hget", counts, "\nclaimed"), " posting 1 ") })
}

// TestKilledWhileReporting kills a worker that has claimed a digest, before or after its post. If the token may look posts up, every drop is
// in one digest. Otherwise no worker posts the digest again, and the next digest includes its counts as doubtful.
func TestKilledWhileReporting(t *testing.T) {
	t.Parallel()
	const dropped, later = 20, 5
	for _, test := range []struct {
		point    failpoint.Point
		lookUp   string
		dropped  []int // by the digests
		doubtful int   // of the last digest
	}{
		{failpoint.AfterSummary, "auto", []int{dropped, later}, 0},
		{failpoint.AfterClaim, "off", []int{dropped + later}, dropped},
	} {
		t.Run(string(test.point)+" "+test.lookUp, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			changes := quick("CATEGORY_LIMIT", "1/30m", "SUMMARY_INTERVAL", "2s", "SLACK_LOOKUP", test.lookUp, "SLACK_SETTLE", "100ms")
			doomed := d.startDoomed(test.point, 1, changes...)
			d.publishEvents([]string{"errors"}, 1+dropped)
			doomed.awaitDoom()
			workers := d.startFleet(2, changes...)
			d.lapseDigest()
			if test.lookUp == "auto" {
				workers.awaitSum(1, "notifier_summaries_total", "result", "sent") // it was found, or it is posted now
			}
			d.flood("errors", "later", "later", later)
			testkit.Eventually(t, "the last digest", func() bool { return len(d.digests(defaultChannel)) == len(test.dropped) })
			workers.awaitSum(map[string]int{"auto": 2, "off": 1}[test.lookUp], "notifier_summaries_total")
			said := workers.logLines("digest may not have been posted")
			testkit.Equal(t, said, map[string]int{"auto": 0, "off": 1}[test.lookUp], "log lines about a digest in doubt")
			digests := d.digests(defaultChannel)
			var got []int
			for _, digest := range digests {
				got = append(got, digest.dropped)
			}
			testkit.EqualSlices(t, got, test.dropped, "drops of the digests")
			testkit.Equal(t, digests[len(digests)-1].doubtful, test.doubtful, "doubtful drops of the last digest")
			workers.stop()
		})
	}
}

// TestNoFailPoints looks for the names of fail points in the program, and in the program with fail points.
func TestNoFailPoints(t *testing.T) {
	t.Parallel()
	killable := testkit.Must(withFailPoints())(t)
	for file, want := range map[string]bool{program: false, killable: true} {
		code := testkit.Must(os.ReadFile(file))(t)
		for _, name := range []string{"FAILPOINT", string(failpoint.AfterRecord)} {
			if got := bytes.Contains(code, []byte(name)); got != want && (want || name == "FAILPOINT") {
				t.Errorf("%s contains %q: %t, want %t", file, name, got, want)
			}
		}
	}
}

// TestKilledWhileRejecting kills a worker that has stored a dead letter, before or after it returns the slots of the event.
func TestKilledWhileRejecting(t *testing.T) {
	t.Parallel()
	for _, point := range []failpoint.Point{failpoint.AfterLetter, failpoint.AfterReturn} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			changes := quick("GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "1/30m")
			d := newDeployment(t)
			rejectedPosts(d.slack)
			doomed := d.startDoomed(point, 1, changes...)
			d.publish("notify.others", eventBody("first"))
			d.awaitPosted("others", 1) // Slack has the channel now, so workers may look there
			d.awaitEmpty()             // otherwise another worker counts this event
			d.publish("notify.disks", eventBody("rejected-1"))
			doomed.awaitDoom()
			workers := d.startFleet(2, changes...)
			workers.awaitOutcomes(map[string]int{"dead": 1})
			d.awaitLeft(deadStreamName, 1)
			d.publish("notify.disks", eventBody("good")) // it takes the slot that the other event has returned
			workers.awaitOutcomes(map[string]int{"dead": 1, "sent": 1})
			d.awaitEmpty()
		})
	}
}
