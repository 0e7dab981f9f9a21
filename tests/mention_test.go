package tests

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// commands matches the markup of mentions and links to channels, but not of dates.
var commands = regexp.MustCompile(`<(?:[@#]|!(?:[^d]|d[^a]))[^>]*>`)

func mentioned(message slacktest.Message) string {
	return strings.Join(commands.FindAllString(text(message), -1), " ")
}

// mentions returns the mentions in the posts of a category, and the times of these posts.
func (d *deployment) mentions(category string) (whom []string, at []time.Time) {
	for _, post := range d.slack.Accepted() {
		if found := mentioned(post.Message); found != "" && post.Origin("category") == category {
			whom, at = append(whom, found), append(at, post.Received)
		}
	}
	return whom, at
}

// TestMentions wants one mention of each category in an interval. Markup in titles and texts mentions nobody.
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
	const each = 9
	wants := map[string]string{
		"security": "<!subteam^S0000001> <!here>", "security.doors": "<!subteam^S0000001> <!here>", "payments": "<@U0123ABCD>",
		"orders": "", "errors": "",
	}
	for i := range each {
		for category := range wants {
			publish(category, i)
		}
	}
	workers.awaitEvents(each*len(wants), "outcome", "sent")
	posts := count(d.slack.Accepted(), "category")
	for category, want := range wants {
		whom, at := d.mentions(category)
		for i, by := range whom {
			testkit.Equal(t, by, want, "a mention of %s", category)
			if i > 0 { // the posts of a busy machine last for longer than an interval
				testkit.AtLeast(t, at[i].Sub(at[i-1]), interval-time.Second, "time between mentions of %s", category)
			}
		}
		testkit.Equal(t, len(whom) > 0, want != "", "a mention of %s", category)
		testkit.Equal(t, posts[category], each, "posts of %s", category)
	}
	// The line is of the one worker, or of each that made the message.
	testkit.Eventually(t, "a line that @nobody is left out", func() bool { return workers.logLines("omitted a mention") > 0 })
	for _, w := range workers {
		testkit.AtMost(t, w.logLines("omitted a mention"), 1, "lines of %s that a omitted a mention", w.name)
	}
	testkit.AtMost(t, d.slack.Calls("usergroups.list"), 2*len(workers), "calls to look up the groups")

	next := each
	testkit.Eventually(t, "the mention of the next interval", func() bool {
		publish("security", next)
		next++
		whom, _ := d.mentions("security")
		return len(whom) >= 2
	})
	_, at := d.mentions("security")
	testkit.AtLeast(t, at[1].Sub(at[0]), interval-time.Second, "time between mentions")
}
