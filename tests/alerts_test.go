package tests

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
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
			workers := d.startFleet(2, unlimited()...)
			alerts := len(test.titles)
			d.publish("notify.alerts", string(body))
			workers.awaitEvents(alerts, "outcome", "sent")
			first := d.slack.Accepted()
			testkit.EqualSlices(t, slices.Sorted(maps.Keys(countTexts(first))), slices.Sorted(slices.Values(test.titles)), "messages")
			testkit.Equal(t, len(first), alerts, "posts")
			message := text(first[slices.IndexFunc(first, func(post slacktest.Post) bool { return post.Text == test.titles[0] })].Message)
			wantShown(t, message, test.shown...)

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
				if len(changes) != 1 || colour(changes[0].Message) != resolvedColour || !strings.Contains(changes[0].Message.Text, "RESOLVED") {
					t.Errorf("the message %q was not changed into a resolved one: %v", post.Text, changes)
				}
				replies := slices.DeleteFunc(d.slack.Accepted(), func(p slacktest.Post) bool { return p.Thread != post.Timestamp })
				testkit.Equal(t, len(replies), 1, "replies to the message %q", post.Text)
			}
		})
	}
}
