package tests

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// commands are what Slack takes for more than text, but for times.
var commands = regexp.MustCompile(`<(?:[@#]|!(?:[^d]|d[^a]))[^>]*>`)

// mentioned lists whom a message mentions.
func mentioned(message slacktest.Message) string {
	texts := []string{message.Text}
	for _, text := range message.Texts() {
		texts = append(texts, text.Text)
	}
	return strings.Join(commands.FindAllString(strings.Join(texts, "\n"), -1), " ")
}

// mentions are the mentions of a category's posts, each with the time of its post.
func (d *deployment) mentions(category string) (whom []string, at []time.Time) {
	for _, post := range d.slack.Accepted() {
		if found := mentioned(post.Message); found != "" && origin(post, "category") == category {
			whom, at = append(whom, found), append(at, post.Received)
		}
	}
	return whom, at
}

// TestMentions publishes events that try to mention people themselves.
func TestMentions(t *testing.T) {
	t.Parallel()
	const interval = 3 * time.Second
	d := newDeployment(t)
	d.slack = slacktest.New(t, slacktest.WithUserGroups(slacktest.UserGroup{ID: "S0000001", Handle: "oncall-security"}))
	workers := d.startFleet(3, unlimited("SUMMARY_INTERVAL", interval.String(),
		"SLACK_MENTIONS", "security=@oncall-security+@here,payments=@U0123ABCD,orders=@nobody")...)
	publish := func(category string, n int) {
		d.publish("notify."+category, fmt.Sprintf(`{"id":"%s-%d","title":"<!channel> <@U1> & co","text":"<!here>\n<!subteam^S0000001>"}`, category, n))
	}
	wants := map[string]string{
		"security": "<!subteam^S0000001> <!here>", "security.doors": "<!subteam^S0000001> <!here>", "payments": "<@U0123ABCD>",
		"orders": "", "errors": "",
	}
	for i := range 9 {
		for category := range wants {
			publish(category, i)
		}
	}
	workers.awaitEvents(9*len(wants), "outcome", "sent")
	posts := d.slack.Accepted()
	for category, want := range wants {
		whom, _ := d.mentions(category)
		if got := strings.Join(whom, ", "); got != want {
			t.Errorf("%s: mentions %q, want %q once", category, got, want)
		}
		if n := count(posts, "category")[category]; n != 9 {
			t.Errorf("%s: %d posts, want 9", category, n)
		}
	}
	testkit.Await(t, "a line that @nobody is left out", func() error { // of the one worker, or of each that made the message
		leftOut := 0
		for _, w := range workers {
			n := w.logLines("mention is left out")
			if leftOut += n; n > 1 {
				t.Fatalf("%s says %d times that a mention is left out, want once", w.name, n)
			}
		}
		if leftOut == 0 {
			return errMissing
		}
		return nil
	})
	if calls := d.slack.Calls("usergroups.list"); calls > 2*len(workers) {
		t.Errorf("the groups were looked up %d times by %d workers", calls, len(workers))
	}

	n := 9
	testkit.Await(t, "the mention of the next interval", func() error {
		publish("security", n)
		n++
		if whom, _ := d.mentions("security"); len(whom) < 2 {
			time.Sleep(100 * time.Millisecond) // the pace of a producer
			return errMissing
		}
		return nil
	})
	_, at := d.mentions("security")
	if apart := at[1].Sub(at[0]); apart < interval-time.Second {
		t.Errorf("mentions came %v apart, want %v", apart, interval)
	}
}

// TestMentionOfWhatIsRejected has Slack reject the first messages of a category: the next one mentions.
func TestMentionOfWhatIsRejected(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if strings.HasPrefix(origin(post, "id"), "rejected") {
			return slacktest.Code("invalid_blocks")
		}
		return slacktest.OK()
	})
	workers := d.startFleet(2, unlimited("SUMMARY_INTERVAL", "1h", "SLACK_MENTIONS", "security=@here")...)
	for i, step := range []struct{ id, outcome, mentions string }{
		{"rejected-1", "dead", ""}, {"rejected-2", "dead", ""}, {"next", "sent", "<!here>"}, {"last", "sent", ""},
	} {
		d.publish("notify.security", eventBody(step.id))
		workers.awaitEvents(i%2+1, "outcome", step.outcome)
		for _, post := range d.slack.Accepted() {
			if got := mentioned(post.Message); origin(post, "id") == step.id && got != step.mentions {
				t.Errorf("%s mentions %q, want %q", step.id, got, step.mentions)
			}
		}
	}
}
