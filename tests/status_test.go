package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func (d *deployment) status() status.Status {
	d.t.Helper()
	asked := run(d.t, d.settings(), "status", "--json")
	asked.want(0)
	var shown status.Status
	testkit.NoError(d.t, json.Unmarshal([]byte(asked.stdout.String()), &shown))
	return shown
}

// TestStatus has three workers send, drop and bury events, and compares the status with the published events.
func TestStatus(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	before := run(t, d.settings(), "status")
	before.want(1, "no worker answers", "backlog", "redis", "primary", "nats")

	workers := d.startFleet(3, "CATEGORY_LIMIT", "4/30m", "LIMITS", "payments=none", "SLACK_RATE", "none")
	run(t, d.settings(), "limits", "set", "security", "2/1h", "--as", "ada").want(0)
	workers.awaitLog(2, "limits in force") // before and after the change
	for i := range 6 {
		d.publish("notify.search", eventBody(fmt.Sprint("search-", i)))
		d.publish("notify.security", eventBody(fmt.Sprint("security-", i)))
		d.publish("notify.payments", eventBody(fmt.Sprint("payments-", i)))
	}
	d.publish("notify.payments", "{") // no JSON; of a full limit it would be dropped unread
	workers.awaitOutcomes(map[string]int{"sent": 4 + 2 + 6, "dropped": 2 + 4, "dead": 1})
	d.awaitEmpty()

	var shown status.Status
	testkit.Await(t, "limits as they are used", func() error { // workers read them each second
		shown = d.status()
		used, denied := 0, 0
		for _, limit := range shown.Limits {
			used, denied = used+int(limit.Used), denied+int(limit.PerMinute)
		}
		if used != 12+4+2 || denied != 2+4 || len(shown.Workers) != 3 {
			return fmt.Errorf("limits %v, workers %v", shown.Limits, shown.Workers)
		}
		return nil
	})
	wantWorkers(t, shown)
	wantLimitsAndRest(t, shown)
	d.wantScreen("search", "4 of 4", "security", "2 of 2", "ada", "1 bad_json", defaultChannel)
	// The command shows the limits of the workers, and not those of its own settings.
	run(t, d.settings(), "limits").want(0, "4/30m", "these are the limits of 3 running workers")
	run(t, d.settings(), "limits", "search").want(0, "4 of 4", "denied now by category 4/30m")
	workers.stop()
	run(t, d.settings(), "status", "--json").want(1, `"workers":null`, `"by":"ada"`, "no worker answers")
}

// TestStatusOfALimitThatBecameFree drops an event of a limit whose only slot is free a moment later. The status says so while it shows the drop.
func TestStatusOfALimitThatBecameFree(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(1, "CATEGORY_LIMIT", "1/2s")
	d.publish("notify.search", eventBody("sent"))
	d.publish("notify.search", eventBody("dropped"))
	workers.awaitOutcomes(map[string]int{"sent": 1, "dropped": 1})
	testkit.Await(t, "a suppressed category with free slots", func() error {
		shown := d.status()
		if len(shown.Suppressed) != 1 || !shown.Suppressed[0].Open {
			return fmt.Errorf("suppressed %+v, limits %+v", shown.Suppressed, shown.Limits)
		}
		return nil
	})
	d.wantScreen("0 of 1")
}

// wantWorkers checks the workers in the status of TestStatus.
func wantWorkers(t *testing.T, shown status.Status) {
	t.Helper()
	host := testkit.Must(os.Hostname())(t)
	var sum status.Rates
	instances := make(map[string]bool)
	for _, w := range shown.Workers {
		if !w.Ready || w.Name != host || w.InHand != 0 || w.Degraded != "" || w.NotReady != "" || time.Since(w.Started) > 2*patience || w.Up <= 0 || w.Up > 2*patience {
			t.Errorf("a worker reports %+v", w)
		}
		testkit.Equal(t, w.Settings["NOTIFIER_CATEGORY_LIMIT"], "4/30m", "a worker's limit of each category")
		instances[w.Instance] = true
		sum.Sent += w.PerMinute.Sent
		sum.Dropped += w.PerMinute.Dropped
		sum.Other += w.PerMinute.Other
	}
	testkit.Equal(t, len(instances), 3, "instances")
	testkit.Equal(t, sum, status.Rates{Sent: 12, Dropped: 6, Other: 1}, "events of the last minute")
	sum = status.Rates{}
	for _, minute := range shown.Minutes {
		sum.Sent += minute.Sent
		sum.Dropped += minute.Dropped
	}
	testkit.Equal(t, sum, status.Rates{Sent: 12, Dropped: 6}, "events of the last hour")
}

// wantLimitsAndRest checks limits, channels and servers in the status of TestStatus.
func wantLimitsAndRest(t *testing.T, shown status.Status) {
	t.Helper()
	used := make(map[string]status.Limit)
	for _, limit := range shown.Limits {
		testkit.Check(t, limit.Full() == (limit.Next != nil), "the next slot of %+v", limit)
		limit.Next = nil
		used[limit.Path] = limit
	}
	testkit.EqualMaps(t, used, map[string]status.Limit{
		"":         {Use: limits.Use{Level: "global", Limit: "100/30m", Used: 12, Size: 100}},
		"search":   {Use: limits.Use{Level: "category", Path: "search", Limit: "4/30m", Used: 4, Size: 4}, PerMinute: 2},
		"security": {Use: limits.Use{Level: "security", Path: "security", Limit: "2/1h", Used: 2, Size: 2}, PerMinute: 4},
	}, "limits")
	testkit.EqualSlices(t, shown.DeadLetters, []status.DeadLetter{{Reason: "bad_json", Count: 1}}, "dead letters")
	testkit.Check(t, len(shown.Changes) == 1 && shown.Changes[0].Path == "security" && shown.Changes[0].Limit == "2/1h" && shown.Changes[0].By == "ada",
		"the live limits are %+v", shown.Changes)
	if len(shown.Channels) != 1 || shown.Channels[0].Name != defaultChannel || shown.Channels[0].PerMinute != 12 || shown.Channels[0].Queued() != 0 {
		t.Errorf("the channels are %+v", shown.Channels)
	}
	b := shown.Backlog
	testkit.Check(t, b.Waiting == 0 && b.Unacked == 0 && b.Stream == 0 && b.InRoom["channel"] == 0, "the backlog is %+v", b)
	if shown.Redis.Role != "primary" || shown.Redis.SlowestCall == 0 || shown.NATS.Replicas != 1 ||
		!strings.HasPrefix(shown.NATS.Server, "127.0.0.1:") || len(shown.Unknown)+len(shown.Mismatches) > 0 {
		t.Errorf("shown of the servers: %+v %+v, not known: %q, settings: %v", shown.Redis, shown.NATS, shown.Unknown, shown.Mismatches)
	}
}

// wantScreen wants the printed status to show texts, in lines of at most 100 characters.
func (d *deployment) wantScreen(texts ...string) {
	d.t.Helper()
	var shown *process
	testkit.Await(d.t, "the status to show all", func() error { // it leaves out a worker of a busy machine that answers late
		shown = run(d.t, d.settings(), "status")
		for _, text := range texts {
			if !strings.Contains(shown.all(), text) {
				return fmt.Errorf("%q is not shown by %s", text, shown.all())
			}
		}
		return nil
	})
	shown.want(0)
	for line := range strings.Lines(shown.stdout.String()) {
		testkit.AtMost(d.t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 100, "characters of the line %q", line)
	}
}

// TestStatusOfPace has two workers share a slow channel. The status and the gauges of both show that it is at its pace, and what waits for it.
func TestStatusOfPace(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, "SLACK_RATE", "1/1m", "SLACK_UPDATE_RATE", "8/1m", "SLACK_LOOKUP_RATE", "9/1m")
	for i := range 5 {
		d.publish("notify.search", eventBody(fmt.Sprint("search-", i)))
	}
	testkit.Await(t, "a channel at its pace", func() error {
		shown := d.status()
		if len(shown.Channels) != 1 || shown.Channels[0].Held != 4 || shown.Channels[0].PacedUntil.Before(time.Now()) {
			return fmt.Errorf("the channels are %+v", shown.Channels)
		}
		return nil
	})
	d.wantScreen("at its pace for")
	budgets := make(map[string]string)
	for _, budget := range d.status().Budgets {
		budgets[budget.Name] = budget.Limit
	}
	testkit.Equal(t, budgets["updates"]+" "+budgets["lookups"], "8/1m 9/1m", "limits of updates and look-ups")
	workers.awaitSum(2, "notifier_pace_used", "budget", "channels")
	workers.awaitSum(2, "notifier_pace_waiting", "budget", "channels")
}

// TestSettingsMismatch starts a worker with another limit. All workers log the difference once, and status and check show it.
func TestSettingsMismatch(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2)
	other := d.startReady("the other one", "GLOBAL_LIMIT", "50/30m", "SLACK_ROUTES", "search=#search")
	all := append(fleet{other}, workers...)
	all.awaitSum(3, "notifier_settings_mismatch")
	for _, w := range all {
		w.wantLogLines(1, "settings of the workers differ")
		testkit.Contains(t, "shown", w.stderr.String(), "NOTIFIER_GLOBAL_LIMIT is 100/30m on", "50/30m on", "NOTIFIER_SLACK_ROUTES is not set on", "search=#search on")
	}
	shown := d.status()
	if len(shown.Mismatches) != 2 || shown.Mismatches[0].Variable != "NOTIFIER_GLOBAL_LIMIT" || len(shown.Mismatches[0].Values["100/30m"]) != 2 ||
		len(shown.Mismatches[0].Values["50/30m"]) != 1 {
		t.Errorf("the mismatches are %v", shown.Mismatches)
	}
	d.wantScreen("settings differ: NOTIFIER_GLOBAL_LIMIT is")
	run(t, d.settings(), "check").want(0, "warn  settings of the workers", "NOTIFIER_GLOBAL_LIMIT", "50/30m")
	run(t, d.settings("CATEGORY_LIMIT", "7/1h"), "check").want(0, "NOTIFIER_CATEGORY_LIMIT is", "7/1h on your side")

	other.stop()
	workers.awaitSum(0, "notifier_settings_mismatch")
	for _, w := range workers {
		w.wantLogLines(1, "settings of the workers are equal again")
		w.wantLogLines(1, "settings of the workers differ")
	}
	run(t, d.settings(), "check").want(0, "ok    settings of the workers")
}

// TestStatusWatch wants changes in the output of `notifier status --watch`, until SIGTERM.
func TestStatusWatch(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	watching := start(t, "notifier status --watch", d.settings(), "status", "--watch")
	watching.awaitOutput("no worker answers")
	workers := d.startFleet(1)
	watching.awaitOutput("ready")
	d.publish("notify.search", eventBody("search"))
	watching.awaitOutput("1 of 100")
	workers.stop()
	testkit.Lacks(t, "output without a terminal", watching.stdout.String(), "\x1b")
	watching.stop()
}

// TestStatusWatchOnATerminal wants the status to fit a terminal, also after the terminal was resized. What is full stands first.
func TestStatusWatchOnATerminal(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, "CATEGORY_LIMIT", "1/30m")
	for i := range 30 {
		d.publish(fmt.Sprintf("notify.category%d", i), eventBody("the first"))
		d.publish(fmt.Sprintf("notify.category%d", i), eventBody("the second"))
	}
	workers.awaitEvents(30, "outcome", "dropped")
	s := startOnTerminal(t, d.settings(), 100, 30, []string{"status", "--watch"})
	host := testkit.Must(os.Hostname())(t)
	s.awaitShown(`\A\d{4}-`, `^LIMIT +SLOTS +USED +NEXT SLOT`, `^category\d+ +1/30m +1 of 1 +in 29m`, `^SUPPRESSED +EVENTS`, `^category\d+ +1 +\S+ ago +in 29m`,
		`^backlog +0 not delivered`, `^`+host+`/\d+ +ready`, `^not shown: limits: \d+, suppressed: \d+`)
	for _, size := range []struct{ width, height uint16 }{{60, 12}, {120, 50}} {
		s.resize(size.width, size.height)
		s.awaitShown(`\A\d{4}-`, `^category\d+ +1/30m +1 of 1`, `^not shown: `)
		frame := strings.TrimSuffix(s.shown(), "\n")
		testkit.AtMost(t, strings.Count(frame, "\n")+1, int(size.height)-1, "rows of a frame")
		for line := range strings.Lines(frame) {
			testkit.AtMost(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), int(size.width), "characters of the line %q", line)
		}
	}
	testkit.Must(s.keyboard.WriteString("\x03"))(t)
	testkit.Equal(t, s.wait(), 0, "status after Ctrl-C")
	s.wantAsBefore()
}
