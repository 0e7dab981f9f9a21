package tests

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// change publishes the n-th event of a key, which fires first, and waits until n events have their outcome.
func (d *deployment) change(workers fleet, n int) {
	d.t.Helper()
	event := firing(fmt.Sprint("event-", n), "a")
	if n%2 == 0 {
		event = resolved(fmt.Sprint("event-", n), "a")
	}
	d.publish("notify.disks", event)
	workers.awaitEvents(n)
}

// awaitSteady waits until the report that the key is steady replies to a message, and returns it. No other reply is one.
func (d *deployment) awaitSteady(of slacktest.Post, status string) slacktest.Post {
	d.t.Helper()
	var reports []slacktest.Post
	testkit.Eventually(d.t, "the report that the key is steady", func() bool {
		reports = nil
		for _, post := range d.slack.Accepted() {
			if strings.Contains(post.Message.Text, "steady since ") {
				reports = append(reports, post)
			}
		}
		return len(reports) > 0
	})
	d.awaitEmpty()
	testkit.Check(d.t, len(reports) == 1 && strings.HasSuffix(reports[0].Message.Text, " UTC: "+status) && reports[0].Thread == of.Timestamp,
		"the reports are %+v, want one in the thread of %s that says %s", reports, of.Timestamp, status)
	return reports[0]
}

// TestFlappingKey changes a key again and again. From the fourth change on the message says that the key is flapping, and further changes fold
// into it without a post or a slot, whichever of four workers gets them. One report says that the key is steady and resolved, and a new
// firing event is posted.
func TestFlappingKey(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(4, "FLAP", "4/30s", "GLOBAL_LIMIT", "4/1h", "CATEGORY_LIMIT", "none")
	for n := range 14 {
		d.change(workers, n+1)
	}
	workers.awaitOutcomes(map[string]int{"sent": 5, "folded": 9})
	flapping := d.post("event-5")
	testkit.Contains(t, "message of the fourth change", text(flapping.Message), "flapping, now firing")
	testkit.Eventually(t, "an update that says that the key is flapping", func() bool {
		changes := d.updates(flapping)
		return len(changes) > 0 && strings.Contains(text(changes[0].Message), "flapping, now ")
	})
	d.awaitSteady(flapping, "resolved")
	last := d.awaitSeen(flapping, 10)
	testkit.Equal(t, colour(last.Message), resolvedColour, "colour of the message at the end")
	testkit.Lacks(t, "message at the end", text(last.Message), "flapping")
	workers.awaitEvents(14) // the report is no event
	testkit.Eventually(t, "the end of all stays of updates in the room", func() bool {
		return d.redis.CLI("zcount", "{notifier}:room:disks updates", fmt.Sprint(time.Now().UnixMicro()), "+inf") == "0"
	})
	d.change(workers, 15)
	d.post("event-15")
	d.wantWhy("folded", "of a flapping key", "event-6")
}

// TestFlappingThroughKills kills workers after a change is folded, after its update is stored, before and after the report is posted, and after
// it is recorded. The message says that the key is flapping, and counts each change once. The key has one report, which says that it fires.
func TestFlappingThroughKills(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	changes := unlimited(quick("FLAP", "2/30s")...)
	doomed := d.startDoomed(failpoint.AfterFold, 1, changes...)
	for n := range 3 {
		d.change(doomed.alone(), n+1)
	}
	flapping := d.post("event-3")
	d.publish("notify.disks", resolved("event-4", "a"))
	d.publish("notify.disks", firing("event-5", "a"))
	doomed.awaitDoom()
	testkit.Contains(t, "shown", text(flapping.Message), "flapping, now firing")
	for _, point := range []failpoint.Point{failpoint.AfterKeep, failpoint.BeforePost, failpoint.AfterPost, failpoint.AfterRecord} {
		d.doom(point, 1, changes...).awaitDoom()
	}
	d.startFleet(4, changes...)
	d.awaitLeft(streamName, 0)
	d.awaitSteady(flapping, "firing")
	d.awaitSeen(flapping, 3)
	testkit.Equal(t, len(d.slack.Accepted()), 4, "posts, one of which is the report")
}

// TestWhyAfterSteadyReport pauses the updates of messages. Once the report about a flapping key is posted, the update that follows it waits, and no
// report does.
func TestWhyAfterSteadyReport(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if post.Method == slacktest.MethodUpdate {
			return slacktest.RateLimited(time.Hour)
		}
		return slacktest.OK()
	})
	workers := d.startFleet(2, unlimited("FLAP", "2/10s")...)
	for n := range 5 {
		d.change(workers, n+1)
	}
	d.awaitPosts(4) // the last one is the report
	report := d.slack.Accepted()[3]
	testkit.Contains(t, "shown", report.Message.Text, "steady since ")
	var shown string
	testkit.Eventually(t, "the report in the journal", func() bool {
		shown = d.notifier("why", "event-3")
		return strings.Contains(shown, "its key was reported as steady")
	})
	testkit.Contains(t, "shown", shown, "an update of a message of its key is in the room now")
	testkit.Lacks(t, "why, after the report was posted", shown, "the report that its key is steady waits")
}
