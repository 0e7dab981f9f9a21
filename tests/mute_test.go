package tests

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// notifier runs a command, wants success, and returns its output.
func (d *deployment) notifier(arguments ...string) string {
	d.t.Helper()
	p := run(d.t, d.settings("HTTP_ADDR", "off"), arguments...)
	p.want(0)
	return p.stdout.String()
}

func (d *deployment) awaitPosted(category string, least int) {
	d.t.Helper()
	testkit.Eventually(d.t, fmt.Sprintf("%d posts of %s", least, category), func() bool {
		return count(d.slack.Accepted(), "category")[category] >= least
	})
}

// TestMuteIsExact mutes a path of which hundreds of admitted events wait for their channel in four workers and in the room. One worker is
// suspended meanwhile, and one is killed. No event of the path is posted after the command has returned. All others are dropped with the level
// mute, and their slots are free again. Other paths and critical events go out.
func TestMuteIsExact(t *testing.T) {
	t.Parallel()
	const events = 300
	d := newDurableDeployment(t)
	p := pace{300 * time.Millisecond, 1}
	changes := p.settings("LIMITS", "payments=1000/1h", "SLACK_ROUTES", "other=#other", "SUMMARY_INTERVAL", "0")
	workers := d.startFleet(4, changes...)
	d.publishEvents([]string{"payments.refunds"}, events)
	d.awaitPosted("payments.refunds", 3)
	workers[0].signal(syscall.SIGSTOP)
	shown := d.notifier("mute", "payments", "--for", "1h", "--reason", "ledger migration", "--except", "critical", "--as", "ann")
	posted := count(d.slack.Accepted(), "category")["payments.refunds"]
	testkit.Contains(t, "shown", shown, "payments is muted until ", ", except critical events\n")
	for _, other := range [][]string{{"--for", "5s", "--except", "critical"}, {"--for", "2h"}} {
		arguments := append([]string{"mute", "payments", "--reason", "in a hurry"}, other...)
		run(t, d.settings("HTTP_ADDR", "off"), arguments...).want(2, ", by ann: ledger migration; to end this mute earlier, or to change its exception, confirm with --yes")
	}
	workers[1].kill()
	workers[0].signal(syscall.SIGCONT)
	workers[1] = d.startReady("worker 2 again", changes...)

	d.publish(subjectPrefix+".payments", `{"id":"critical","severity":"critical","title":"vault is open"}`)
	d.publish(subjectPrefix+".payments", eventBody("muted"))
	d.publish(subjectPrefix+".other", eventBody("other"))
	d.awaitEmpty()
	testkit.Equal(t, count(d.slack.Accepted(), "category")["payments.refunds"], posted, "posts of the muted path after the command")
	d.post("critical")
	d.post("other")
	testkit.Equal(t, len(d.posts("muted")), 0, "posts of a muted event")
	testkit.Equal(t, len(d.log(rootLog+":payments")), posted+1, "slots of the muted path that are taken")
	testkit.Contains(t, "shown", d.notifier("why", "muted"), "dropped", "by mute of payments until ", ", ann: ledger migration")
	testkit.Contains(t, "shown", d.notifier("why", "--category", "payments"), "payments is muted until ")
	testkit.Contains(t, "shown", d.notifier("mutes"), "payments", "until ", "ann", "critical", "ledger migration")
	testkit.Contains(t, "shown", d.notifier("status"), "MUTED", "payments", "ledger migration")
	testkit.Contains(t, "shown", d.notifier("limits", "history"), "ledger migration, except critical for 1h, until ")
	testkit.AtLeast(t, workers.sum("notifier_dropped_total", "level", "mute"), events/10, "events dropped with the level mute")

	testkit.Contains(t, "shown", d.notifier("unmute", "payments"), "the mute of payments is removed")
	d.publish(subjectPrefix+".payments", eventBody("again"))
	d.awaitEmpty()
	d.post("again")
	testkit.Contains(t, "shown", d.notifier("mutes"), "nothing is muted")
	run(t, d.settings("HTTP_ADDR", "off"), "unmute", "payments").want(1, "payments has no mute of its own in force; notifier mutes lists all mutes")
}

// TestMuteEnds mutes a path for seconds, during a flood by which a worker is killed. The digest after the end has the number of drops, the
// mute and what still fires. Resolved events of posted messages go out meanwhile.
func TestMuteEnds(t *testing.T) {
	t.Parallel()
	d := newDurableDeployment(t)
	changes := quick("GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "1000/1h", "SUMMARY_INTERVAL", "2s")
	workers := d.startFleet(4, changes...)
	d.publish(subjectPrefix+".db", firing("before", "replica 1"))
	d.awaitPosted("db", 1)
	shown := d.notifier("mute", "db", "--for", "8s", "--reason", "weekly vacuum", "--as", "bob")
	testkit.Contains(t, "shown", shown, "db is muted until ")
	flood := d.flood("db.vacuum", "flood", "table is locked", 500)
	d.publish(subjectPrefix+".db", firing("fires", "replica 2"))
	d.publish(subjectPrefix+".db", firing("ended", "replica 3"))
	d.publish(subjectPrefix+".db", resolved("ended-2", "replica 3"))
	d.publish(subjectPrefix+".db", resolved("after", "replica 1"))
	d.awaitEmpty()
	d.wantResolved("before", "after")
	testkit.Equal(t, len(d.digests(defaultChannel)), 0, "digests during the mute")
	workers[3].kill()

	var reports []digest
	testkit.Eventually(t, "the digest of the mute", func() bool {
		reports = slices.DeleteFunc(d.digests(defaultChannel), func(d digest) bool { return !strings.Contains(d.Message.Text, "was muted") })
		return len(reports) > 0
	})
	report := reports[0]
	if !report.atLeast { // the killed worker had reported its counts
		testkit.Equal(t, report.paths["db.vacuum"], flood, "drops of the flood in the digest of the mute")
		testkit.Equal(t, report.paths["db"], 2, "drops of muted alerts in the digest of the mute")
		testkit.Contains(t, "shown", report.Message.Text, "still firing: ", "replica 2")
	}
	testkit.Contains(t, "shown", report.Message.Text, "db was muted by bob: weekly vacuum ", "such as table is locked")
	_, stillFiring, _ := strings.Cut(report.Message.Text, "still firing: ")
	testkit.Lacks(t, "keys that still fire", stillFiring, "replica 3", "replica 1")
	testkit.Eventually(t, "the report in the journal", func() bool { return strings.Contains(d.notifier("why", "fires"), " by the digest of ") })
	d.publish(subjectPrefix+".db", eventBody("later"))
	d.awaitEmpty()
	d.post("later")
	testkit.Equal(t, len(reports), 1, "digests of the mute")
}

// TestRecurringMute mutes a path by two schedules, one of which has a window now.
func TestRecurringMute(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(4, quick()...)
	now := time.Now().UTC()
	inForce := fmt.Sprintf("daily %02d:00-%02d:00 UTC", now.Hour(), (now.Hour()+2)%24)
	later := fmt.Sprintf("daily %02d:00-%02d:00 UTC", (now.Hour()+6)%24, (now.Hour()+7)%24)
	testkit.Contains(t, "shown", d.notifier("mute", "db", "--every", later, "--reason", "backup"), "db is muted "+later+", next at ")
	d.publish(subjectPrefix+".db", eventBody("before"))
	d.awaitEmpty()
	d.post("before")
	testkit.Contains(t, "shown", d.notifier("mute", "db", "--every", inForce, "--reason", "vacuum"), "db is muted "+inForce+", next at ", "db is muted until ")
	d.publish(subjectPrefix+".db", eventBody("muted"))
	d.awaitEmpty()
	testkit.Equal(t, len(d.posts("muted")), 0, "posts during the window")
	workers.awaitSum(1, "notifier_dropped_total", "level", "mute")
	testkit.Contains(t, "shown", d.notifier("mutes"), "backup", "vacuum", inForce, later)
	next := time.Date(now.Year(), now.Month(), now.Day()+1, now.Hour(), 0, 0, 0, time.UTC)
	testkit.Contains(t, "shown", d.notifier("mutes", "--json"), `"every":"`+inForce+`","next":"`+next.Format(time.RFC3339)+`"`)

	// What an operator ends stays ended until the next window.
	testkit.Contains(t, "shown", d.notifier("unmute", "db"), "db is still muted every", later)
	workers[0].stop()
	workers[0] = d.startReady("worker 1 again", quick()...)
	time.Sleep(5 * time.Second) // more than two looks of a worker at the schedules
	d.publish(subjectPrefix+".db", eventBody("unmuted"))
	d.awaitEmpty()
	d.post("unmuted")
	d.notifier("unmute", "db", "--every", inForce)
	d.notifier("unmute", "db", "--every", later)
	testkit.Contains(t, "shown", d.notifier("mutes"), "nothing is muted")
	testkit.Contains(t, "shown", d.notifier("limits", "history"), "backup, every "+later, "vacuum, every "+inForce)
	testkit.Contains(t, "shown", d.notifier("limits", "history", "--json"), `"every":"`+later+`"`)

	workers.stop() // nobody stores that a mute has ended
	d.notifier("mute", "db", "--for", "1s", "--reason", "a moment")
	testkit.Eventually(t, "the mute to have ended", func() bool {
		return strings.Contains(d.notifier("mutes"), "in force until a worker has stored its end")
	})
}
