package tests

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Colours of a message's bar.
const (
	errorColour    = "#dc2626"
	resolvedColour = "#16a34a"
)

// firing and resolved make events of one key, 25 minutes apart.
func firing(id, key string) string   { return ofKey(id, key, "firing", "2026-01-02T03:00:00Z") }
func resolved(id, key string) string { return ofKey(id, key, "resolved", "2026-01-02T03:25:00Z") }

func ofKey(id, key, status, at string) string {
	return fmt.Sprintf(`{"id":%q,"title":"disk of %s is full","severity":"error","status":%q,"key":%[2]q,"time":%[4]q}`, id, key, status, at)
}

func colour(message slacktest.Message) string {
	if len(message.Attachments) == 0 {
		return ""
	}
	return message.Attachments[0].Color
}

func (d *deployment) updates(of slacktest.Post) []slacktest.Update {
	return slices.DeleteFunc(d.slack.Updates(), func(u slacktest.Update) bool {
		return u.Channel != of.ChannelID || u.Timestamp != of.Timestamp
	})
}

// wantResolved wants one update of the message of a firing event, and the message of the resolved event as a reply to it.
func (d *deployment) wantResolved(firing, resolved string) {
	d.t.Helper()
	first, reply := d.post(firing), d.post(resolved)
	testkit.Equal(d.t, first.Thread, "", "thread of the message of %s", firing)
	testkit.Check(d.t, reply.Thread == first.Timestamp && reply.ChannelID == first.ChannelID,
		"%s stands in the thread %q of %s, want in that of %s: %q of %s", resolved, reply.Thread, reply.ChannelID, firing, first.Timestamp, first.ChannelID)
	testkit.Eventually(d.t, "an update of the message of "+firing, func() bool { return len(d.updates(first)) > 0 })
	changes := d.updates(first)
	testkit.Equal(d.t, len(changes), 1, "updates of the message of %s", firing)
	for name, shown := range map[string]slacktest.Message{"update": changes[0].Message, "reply": reply.Message} {
		testkit.Equal(d.t, colour(shown), resolvedColour, "colour of the %s by %s", name, resolved)
		testkit.Contains(d.t, name+" by "+resolved, text(shown), "RESOLVED", "after 25m")
	}
	testkit.Equal(d.t, colour(first.Message), errorColour, "colour of the message of %s", firing)
	testkit.Contains(d.t, "message of "+firing, first.Text, "FIRING")
}

func (d *deployment) wantNotPosted(id string) {
	d.t.Helper()
	testkit.Equal(d.t, len(d.posts(id)), 0, "posts of %s", id)
}

// pairs are firing and resolved events of one category each, in several orders.
var pairs = []struct {
	category string
	events   []string          // each is published once those before have their outcomes
	pairs    map[string]string // firing -> resolved
	level    string            // that drops one of the events, if any
	dropped  string
}{
	{"pair", []string{firing("pair-1", "a"), resolved("pair-2", "a")}, map[string]string{"pair-1": "pair-2"}, "", ""},
	{"again", []string{firing("again-1", "a"), resolved("again-2", "a"), firing("again-3", "a"), resolved("again-4", "a")},
		map[string]string{"again-1": "again-2", "again-3": "again-4"}, "", ""},
	{"twice", []string{firing("twice-1", "a"), resolved("twice-2", "a"), resolved("twice-3", "a")},
		map[string]string{"twice-1": "twice-2"}, "unpaired", "twice-3"},
	{"backwards", []string{resolved("backwards-1", "a"), firing("backwards-2", "a"), resolved("backwards-3", "a")},
		map[string]string{"backwards-2": "backwards-3"}, "unpaired", "backwards-1"},
	{"others", []string{firing("others-1", "a"), resolved("others-2", "b"), firing("others-3", "b"), resolved("others-4", "a"), resolved("others-5", "b")},
		map[string]string{"others-1": "others-4", "others-3": "others-5"}, "unpaired", "others-2"},
	// A resolved event updates the first message of its key. Later firing events are ordinary events.
	{"limited", []string{firing("limited-1", "a"), firing("limited-2", "a"), firing("limited-3", "a"), resolved("limited-4", "a")},
		map[string]string{"limited-1": "limited-4"}, "limited", "limited-3"},
}

// TestPairs publishes the pairs side by side, each in its own category.
func TestPairs(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(3, unlimited("LIMITS", "limited=2/30m")...)
	for _, test := range pairs {
		t.Run(test.category, func(t *testing.T) {
			t.Parallel()
			d, workers := d.within(t), workers.within(t)
			for i, event := range test.events {
				d.publish("notify."+test.category, event)
				workers.awaitEvents(i+1, "category", test.category)
			}
			for fired, ended := range test.pairs {
				d.wantResolved(fired, ended)
			}
			drops := 0
			if test.dropped != "" {
				drops = 1
				d.wantNotPosted(test.dropped)
				workers.awaitSum(drops, "notifier_dropped_total", "category", test.category, "level", test.level)
			}
			workers.awaitEvents(drops, "category", test.category, "outcome", "dropped")
			workers.awaitEvents(len(test.events)-drops, "category", test.category, "outcome", "sent")
		})
	}
}

// within returns the deployment for a subtest.
func (d *deployment) within(t testing.TB) *deployment {
	seen := *d
	seen.t = t
	return &seen
}

// within returns the fleet for a subtest.
func (f fleet) within(t testing.TB) fleet {
	seen := make(fleet, len(f))
	for i, w := range f {
		seen[i] = &worker{&process{t: t, name: w.name, command: w.command, exited: w.exited}, w.address}
	}
	return seen
}

// TestDurationOfLateMessages resolves an event while Slack pauses the posts and the updates. The events have no time, so both messages show the
// time between them in JetStream, however late Slack takes the messages.
func TestDurationOfLateMessages(t *testing.T) {
	t.Parallel()
	const pause = 5 * time.Second
	d := newDeployment(t)
	workers := d.startFleet(2, unlimited()...)
	untimed := func(id, status string) string {
		return fmt.Sprintf(`{"id":%q,"title":"disk is full","status":%q,"key":"a"}`, id, status)
	}
	began := time.Now()
	d.publishUntil(workers, "sent", "notify.disks", untimed("fired", "firing"))
	var paused sync.Map // by methods
	d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if _, isPaused := paused.LoadOrStore(post.Method, true); isPaused {
			return slacktest.OK()
		}
		return slacktest.RateLimited(pause)
	})
	d.publish("notify.disks", untimed("ended", "resolved"))
	apart := max(time.Since(began), time.Second) // the shortest duration that is shown
	workers.awaitEvents(2, "outcome", "sent")
	d.awaitEmpty()
	changes := d.updates(d.post("fired"))
	for name, shown := range map[string]slacktest.Message{"update": changes[len(changes)-1].Message, "reply": d.post("ended").Message} {
		testkit.Equal(t, colour(shown), resolvedColour, "colour of the %s", name)
		_, after, _ := strings.Cut(text(shown), "after ")
		after, _, _ = strings.Cut(after, "\n")
		testkit.AtMost(t, testkit.Must(time.ParseDuration(strings.ReplaceAll(after, " ", "")))(t), apart, "duration in the %s", name)
	}
}
