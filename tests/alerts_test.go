package tests

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestAlertGroups publishes bodies of webhooks. Slack gets a message for each alert, and an update and a reply when the alert is resolved.
func TestAlertGroups(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		file   string
		titles []string // of its alerts
		shown  []string // somewhere in the first one's message
	}{
		{
			"testdata/alertmanager.json",
			[]string{"[FIRING WARNING] Disk of db-1 will fill in 24 hours", "[FIRING WARNING] Disk of db-2 will fill in 24 hours",
				"[FIRING CRITICAL] Replica db-2 lags"},
			[]string{"fills up within 24 hours", "*mountpoint*\n/var/lib/postgresql", "https://prometheus.example.com/graph", "category alerts"},
		},
		{
			"testdata/grafana.json",
			[]string{"[FIRING CRITICAL] payments fails for 7.3 % of the requests", "[FIRING CRITICAL] basket fails for 5.6 % of the requests"},
			[]string{"More than 5 % of the requests to payments fail.", "*service*\npayments", "viewPanel=4", "category alerts"},
		},
	} {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(test.file, "testdata/"), ".json"), func(t *testing.T) {
			t.Parallel()
			body := testkit.Must(os.ReadFile(test.file))(t)
			d := newDeployment(t)
			workers := d.startFleet(2, unlimited("PAIR_TTL", "90m")...)
			alerts := len(test.titles)
			d.publish("notify.alerts", string(body))
			workers.awaitEvents(alerts, "outcome", "sent")
			testkit.AtMost(t, toInt(d.redis.CLI("ttl", "{notifier}:pairs:alerts")), 90*60, "seconds for which the pairs are kept")
			first := d.slack.Accepted()
			testkit.EqualSlices(t, slices.Sorted(maps.Keys(countTexts(first))), slices.Sorted(slices.Values(test.titles)), "messages")
			testkit.Equal(t, len(first), alerts, "posts")
			message := text(first[slices.IndexFunc(first, func(post slacktest.Post) bool { return post.Text == test.titles[0] })].Message)
			testkit.Contains(t, "shown", message, test.shown...)

			// The sender repeats the group with all alerts resolved.
			over := strings.NewReplacer(`"firing"`, `"resolved"`, `"0001-01-01T00:00:00Z"`, `"2026-01-02T05:10:00Z"`).Replace(string(body))
			d.publish("notify.alerts", over)
			workers.awaitEvents(2*alerts, "outcome", "sent")
			d.awaitEmpty()
			workers.awaitEvents(2 * alerts)
			workers.awaitSum(2, "notifier_split_total")
			workers.awaitSum(alerts, "notifier_resolved_total", "result", "paired")
			for _, post := range first {
				changes := d.updates(post)
				testkit.Check(t, len(changes) == 1 && colour(changes[0].Message) == resolvedColour && strings.Contains(changes[0].Message.Text, "RESOLVED"),
					"the message %q was not changed into a resolved one: %v", post.Text, changes)
				replies := slices.DeleteFunc(d.slack.Accepted(), func(p slacktest.Post) bool { return p.Thread != post.Timestamp })
				testkit.Equal(t, len(replies), 1, "replies to the message %q", post.Text)
			}
		})
	}
}

// alertIn is an alert of Alertmanager. Its fingerprint is its name.
func alertIn(name, status string) string {
	return fmt.Sprintf(`{"status":%q,"labels":{"alertname":%q,"severity":"warning"},"annotations":{},"startsAt":"2026-01-02T03:00:00.5Z",`+
		`"endsAt":"0001-01-01T00:00:00Z","generatorURL":"http://prometheus/graph","fingerprint":"f-%[2]s"}`, status, name)
}

// groupOf is a webhook body with alerts, such as "A" for a firing one and "-A" for a resolved one.
func groupOf(alerts ...string) string {
	bodies := make([]string, len(alerts))
	for i, name := range alerts {
		status := "firing"
		if over, isOver := strings.CutPrefix(name, "-"); isOver {
			name, status = over, "resolved"
		}
		bodies[i] = alertIn(name, status)
	}
	return `{"receiver":"notifier","status":"firing","alerts":[` + strings.Join(bodies, ",") + `],"externalURL":"http://alertmanager:9093","version":"4"}`
}

// posted counts the messages of an alert that say that it fires.
func (d *deployment) posted(name string) (messages []slacktest.Post) {
	return slices.DeleteFunc(d.slack.Accepted(), func(p slacktest.Post) bool {
		return !strings.Contains(p.Text, "FIRING") || !strings.HasSuffix(p.Text, "] "+name)
	})
}

func (d *deployment) wantAlerts(messages int, names ...string) {
	d.t.Helper()
	for _, name := range names {
		testkit.Equal(d.t, len(d.posted(name)), messages, "messages of alert %s", name)
	}
}

// wantOver wants each message of alerts to be updated once, to one that does not say that the alert fires.
func (d *deployment) wantOver(names ...string) {
	d.t.Helper()
	for _, name := range names {
		for _, post := range d.posted(name) {
			changes := d.updates(post)
			if len(changes) != 1 || strings.Contains(changes[0].Message.Text, "FIRING") || !strings.Contains(changes[0].Message.Text, "RESOLVED") {
				d.t.Errorf("a message of alert %s: got updates %v, want one that says resolved", name, changes)
			}
		}
	}
}

// TestGroupChanges sends a group again whenever one of its alerts changes, over HTTP and over NATS in turns. Each alert is posted once, and
// updated when it ends.
func TestGroupChanges(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2) // with the default limits
	_, url := d.startIngest()
	url = strings.Replace(url, "/v1/events/", "/v1/alertmanager/", 1)
	outcomes := map[string]int{}
	settle := func(sent, duplicate int) {
		t.Helper()
		outcomes["sent"] += sent
		outcomes["duplicate"] += duplicate
		workers.awaitOutcomes(outcomes)
	}
	overNATS := func(body string, sent, duplicate int) {
		t.Helper()
		d.publish("notify.alerts", body)
		settle(sent, duplicate)
	}
	overHTTP := func(body string, sent, duplicate int) {
		t.Helper()
		status, _ := post(url+"alerts", "", "", body)
		testkit.Equal(t, status, http.StatusAccepted, "status")
		settle(sent, duplicate)
	}
	overHTTP(groupOf("A"), 1, 0)
	overHTTP(groupOf("A"), 0, 0) // JetStream has A under its ID
	overNATS(groupOf("A"), 0, 1)
	overNATS(groupOf("A", "B"), 1, 1)
	overNATS(groupOf("-A", "B"), 1, 1)
	d.wantAlerts(1, "A", "B")
	d.wantOver("A")
	testkit.Equal(t, len(d.updates(d.posted("B")[0])), 0, "updates of the alert that goes on")
	overNATS(groupOf("-A", "B"), 0, 2)
	overNATS(groupOf("A", "-B"), 1, 1) // a body that comes late reports A before its end
	overHTTP(groupOf("C"), 1, 0)
	overHTTP(groupOf("-C"), 1, 0)
	d.wantAlerts(1, "A", "B", "C")
	d.wantOver("A", "B", "C")
	status, _ := post(url+"alerts", "", "", strings.Repeat(" ", 16<<20+1))
	testkit.Equal(t, status, http.StatusRequestEntityTooLarge, "status of a body above NOTIFIER_INGEST_MAX_BYTES")
	testkit.Contains(t, "why, of an alert that was sent", run(t, d.settings(), "why", "f-A firing 2026-01-02T03:00:00.5Z").all(), "sent at")
	d.awaitEmpty()
}

// TestReminder repeats a group for longer than NOTIFIER_REMIND. One worker posts the alert again. When the alert ends, both messages
// are updated.
func TestReminder(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(3, unlimited("REMIND", "2s")...)
	d.publish("notify.alerts", groupOf("A", "B"))
	workers.awaitOutcomes(map[string]int{"sent": 2})
	bodies := 1
	testkit.Eventually(t, "the reminders", func() bool {
		d.publish("notify.alerts", groupOf("A", "B"))
		d.publish("notify.alerts", groupOf("A", "B"))
		bodies += 2
		workers.awaitEvents(2 * bodies)
		return len(d.posted("A")) > 1 && len(d.posted("B")) > 1
	})
	posts := len(d.slack.Accepted())
	workers.awaitOutcomes(map[string]int{"sent": posts, "duplicate": 2*bodies - posts})
	first, second := d.posted("A")[0], d.posted("A")[1]
	testkit.AtLeast(t, second.Received.Sub(first.Received), 2*time.Second, "time between the first message and the reminder")
	d.publish("notify.alerts", groupOf("-A", "-B"))
	workers.awaitEvents(2*bodies + 2)
	d.wantOver("A", "B")
	d.awaitEmpty()
}
