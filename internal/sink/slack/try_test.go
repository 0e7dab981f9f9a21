package slack

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestTry posts, updates and looks up a message, as far as Slack lets it.
func TestTry(t *testing.T) {
	t.Parallel()
	const posted, updated = "Slack post to #ops: taken as message TS of channel C0000002", "Slack update: taken"
	for name, test := range map[string]struct {
		option  slacktest.Option
		answers []slacktest.Answer
		history func() slacktest.Answer
		want    []string
	}{
		"all works": {want: []string{posted, updated, "Slack look-up: found the message TS"}},
		"post refused": {
			answers: []slacktest.Answer{slacktest.Code("not_in_channel")},
			want:    []string{"Slack post to #ops: ! misconfigured: not_in_channel"},
		},
		"update refused": {
			answers: []slacktest.Answer{slacktest.OK(), slacktest.Code("edit_window_closed")},
			want:    []string{posted, "Slack update: ! rejected: update of a message: edit_window_closed", "Slack look-up: found the message TS"},
		},
		"no scope": {option: slacktest.WithScopes("chat:write", "channels:read"), want: []string{
			posted, updated, "Slack look-up: warning: not possible: missing_scope: the token lacks the scope channels:history; an event may be posted a second time",
		}},
		"look-up failed": {history: func() slacktest.Answer { return slacktest.Status(500, "") }, want: []string{posted, updated, "Slack look-up: ! unknown: 500 Internal Server Error"}},
		"late history": {option: slacktest.WithHistoryDelay(time.Hour), want: []string{
			posted, updated, "Slack look-up: ! the message is not in the history 0s after its post: raise NOTIFIER_SLACK_SETTLE",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := []slacktest.Option{slacktest.WithChannels(slacktest.Channel{ID: "C0000002", Name: "ops", Member: true})}
			if test.option != nil {
				options = append(options, test.option)
			}
			server := slacktest.New(t, options...)
			server.Script(test.answers...)
			server.RespondTo(slacktest.MethodHistory, test.history)
			testkit.EqualSlices(t, tried(t, lookingUp(server), "#ops"), test.want, "reported")
		})
	}
}

func TestTryWebhook(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	testkit.EqualSlices(t, tried(t, byWebhook(server), "#ops"), []string{
		"Slack post to webhook: taken", "Slack update and look-up: warning: a webhook cannot update messages or look them up: " +
			"a resolved event is a message of its own, and an event may be posted a second time",
	}, "reported")
	server.Script(slacktest.Code("no_service"))
	testkit.EqualSlices(t, tried(t, byWebhook(server), "#ops"), []string{"Slack post to webhook: ! misconfigured: no_service"}, "reported")
}

var anyTimestamp = regexp.MustCompile(`\d+\.\d{6}`)

// tried returns what Try reports, with TS for each timestamp.
func tried(t *testing.T, o Options, channel string) (reported []string) {
	t.Helper()
	for _, checked := range newTestSlack(t, o).Try(t.Context(), channel) {
		text := checked.Note
		switch {
		case checked.Warning:
			text = fmt.Sprint("warning: ", checked.Err)
		case checked.Err != nil:
			text = fmt.Sprint("! ", checked.Err)
		}
		reported = append(reported, anyTimestamp.ReplaceAllString(checked.Subject+": "+text, "TS"))
	}
	return reported
}
