package slack

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

var workspace = slacktest.WithChannels(
	slacktest.Channel{ID: "C0000001", Name: "in", Member: true},
	slacktest.Channel{ID: "C0000002", Name: "out"},
	slacktest.Channel{ID: "C0000003", Name: "old", Member: true, Archived: true},
	slacktest.Channel{ID: "G0000004", Name: "hidden", Private: true},
)

// findings are what Check reports about channels. Each text is the start of a problem. A warning has "warning: " in front.
var findings = []struct {
	name     string
	option   slacktest.Option
	channels string // the default one, then those of routes
	want     []string
}{
	{"fine", workspace, "C0000001", nil},
	{"fine by name", workspace, "#in", nil},
	{"twice", workspace, "C0000001 #in C0000001", []string{"warning: #in: is the same channel as C0000001: use one"}},
	{"wrong token", slacktest.WithToken("xoxb-other"), "C0000001", []string{"Slack token: auth.test: invalid_auth (check NOTIFIER_SLACK_TOKEN)"}},
	{
		"another server", slacktest.WithHandler("/api/auth.test", func(*slacktest.Server) http.Handler { return http.NotFoundHandler() }), "C0000001",
		[]string{"Slack token: auth.test: 404 Not Found (check NOTIFIER_SLACK_API_URL, "},
	},
	{"not in it", workspace, "C0000002 #out", []string{"C0000002: not_in_channel", "#out: not_in_channel", "warning: #out: is the same channel as C0000002"}},
	{"archived", workspace, "C0000003 #old", []string{"C0000003: is_archived", "#old: not_in_channel", "warning: #old: is the same channel as C0000003"}},
	{"hidden", workspace, "G0000004 #hidden", []string{"G0000004: channel_not_found", "#hidden: not_in_channel"}},
	{"absent", workspace, "C0000009 #absent", []string{"C0000009: channel_not_found", "#absent: not_in_channel"}},
	{
		"may post anywhere", slacktest.WithScopes("chat:write", "chat:write.public", "channels:read", "groups:read"), "C0000002 #out",
		[]string{"warning: #out: the bot is not in", "warning: #out: is the same channel as C0000002"},
	},
	{
		"limited", slacktest.WithHandler("/api/auth.test", func(*slacktest.Server) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "30")
				w.WriteHeader(http.StatusTooManyRequests)
			})
		}), "C0000001",
		[]string{"warning: Slack token: auth.test: 429 Too Many Requests (Slack limits the requests: check again in 30s)"},
	},
	{
		"may not ask", slacktest.WithScopes("chat:write"), "C0000001 #in",
		[]string{"warning: C0000001: could not be checked", "warning: #in: could not be checked"},
	},
	{
		"may not post", slacktest.WithScopes("channels:read", "groups:read"), "C0000001",
		[]string{"Slack token: lacks the scope chat:write: it has channels:read,groups:read"},
	},
	{"older token", slacktest.WithScopes("identify", "bot", "channels:read"), "C0000001", nil},
	{"scopes not shown", slacktest.WithScopes(), "C0000009", []string{"warning: C0000009: could not be checked"}},
	{"users", workspace, "U0000001 @someone", []string{"warning: U0000001: a direct message", "warning: @someone: a direct message"}},
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, test := range findings {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t, workspace, test.option)
			o := byToken(server)
			channels := strings.Fields(test.channels)
			o.Channel = channels[0]
			var pairs []string
			for i, channel := range channels[1:] {
				pairs = append(pairs, fmt.Sprint("route", i), channel)
			}
			o.Routes = routes(t, pairs...)
			checkProblems(t, newTestSlack(t, o), test.want...)
			testkit.Equal(t, len(server.Posts()), 0, "posts")
		})
	}
}

func checkProblems(t *testing.T, s *Sink, want ...string) {
	t.Helper()
	var got []string
	for _, problem := range s.Check(t.Context()) {
		text := strings.TrimPrefix(problem.Subject, "Slack channel ") + ": " + problem.Err.Error()
		if problem.Warning {
			text = "warning: " + text
		}
		got = append(got, text)
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got %q, want %q", got, want)
			return
		}
	}
}

// TestCheckLookUp reports in one line which scopes would let posts be looked up.
func TestCheckLookUp(t *testing.T) {
	t.Parallel()
	both := slacktest.WithChannels(slacktest.Channel{ID: "C0000001", Name: "ops", Member: true},
		slacktest.Channel{ID: "C0000002", Name: "secret", Member: true, Private: true})
	const read, repeats = " channels:read groups:read", ": an event may be posted a second time"
	noted := new(fakeIDs)
	noted.byName.Store("#ops", "C0000001")
	noted.byName.Store("#secret", "C0000002")
	for _, test := range []struct {
		scopes, channels string
		ids              IDs
		want             string // of the line; "" for none
	}{
		{"channels:history" + read, "C0000001 #ops", nil, ""},
		{read, "C0000001 #ops", nil, "channels:history" + repeats},
		{"channels:history groups:history" + read, "C0000002 #secret", nil, ""},
		{"channels:history" + read, "C0000002 #secret", nil, "groups:history" + repeats},
		{read, "C0000002 #secret", nil, "channels:history, groups:history" + repeats},
		{"channels:history", "C0000001", nil, ""},
		{"channels:history", "#ops", nil, "channels:read, groups:read" + repeats},
		{"channels:history channels:read", "#ops", nil, "groups:read" + repeats},
		{"", "#ops", nil, "channels:history, channels:read, groups:read" + repeats},
		{"channels:history", "#ops #secret", noted, ""},
	} {
		server := slacktest.New(t, both, slacktest.WithScopes(append(strings.Fields(test.scopes), "chat:write")...))
		for channel := range strings.FieldsSeq(test.channels) {
			o := lookingUp(server)
			o.Channel, o.IDs = channel, test.ids
			lookUp := func() (lines []string) {
				for _, problem := range newTestSlack(t, o).Check(t.Context()) {
					if problem.Subject == "Slack look-up" {
						testkit.Equal(t, problem.Warning, true, "a warning")
						lines = append(lines, strings.TrimPrefix(problem.Err.Error(), "the token lacks the scope "))
					}
				}
				return lines
			}
			got := lookUp()
			if len(got) > 1 || (len(got) == 1) != (test.want != "") || len(got) == 1 && !strings.HasPrefix(got[0], test.want) {
				t.Errorf("%s with %s: got %q, want %q", channel, test.scopes, got, test.want)
			}
			o.LookUp = false
			testkit.Equal(t, len(lookUp()), 0, "lines without look-ups")
		}
	}
}

func TestCheckWebhook(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	checkProblems(t, newTestSlack(t, byWebhook(server)), "warning: Slack webhook: an incoming webhook cannot be checked")
	testkit.Equal(t, server.Calls("webhook"), 0, "calls of the webhook")
}

func TestCheckWhereNobodyListens(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	server.Close()
	s := newTestSlack(t, byToken(server))
	checkProblems(t, s, "Slack token: auth.test: not sent")
	if problems := s.Check(testkit.Ended(t)); len(problems) != 1 || !strings.Contains(problems[0].Err.Error(), "not sent") ||
		!strings.Contains(problems[0].Err.Error(), "(check NOTIFIER_SLACK_API_URL") {
		t.Errorf("a cancelled check: got %v, want one request that was not sent", problems)
	}
}

// Check reads answers that Slack does not give, and a list of channels without an end.
func TestCheckOddAnswers(t *testing.T) {
	t.Parallel()
	const found = `{"ok":true,"channel":{"id":"C0000001"}}`
	const absent = `{"ok":false,"error":"channel_not_found"}`
	for _, test := range []struct {
		name                string
		info, conversations string
		want                []string
	}{
		{"membership not shown", found, "", nil},
		{"channel of another form", `{"ok":true,"channel":"C0000001"}`, "", []string{"warning: #ops: could not be checked"}},
		{"a page", "<html>", "", []string{"warning: #ops: could not be checked"}},
		{"no list", absent, `{"ok":false,"error":"unknown_method"}`, []string{"#ops: channel_not_found"}},
		{"list not allowed", absent, `{"ok":false,"error":"missing_scope","needed":"groups:read"}`, []string{"warning: #ops: channel_not_found"}},
		{"list is a page", absent, `<html>`, []string{"warning: #ops: channel_not_found"}},
		{"list of another form", absent, `{"ok":true,"channels":"ops"}`, []string{"warning: #ops: channel_not_found"}},
		{"list without end", absent, `{"ok":true,"channels":[],"response_metadata":{"next_cursor":"more"}}`, []string{"warning: #ops: channel_not_found"}},
		{"in the list", absent, `{"ok":true,"channels":[{"name":"ops"}]}`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			checkProblems(t, newTestSlack(t, alwaysAnswered(t, map[string]string{
				"auth.test": `{"ok":true}`, "conversations.info": test.info, "users.conversations": test.conversations,
			})), test.want...)
		})
	}
}

func TestCheckMentions(t *testing.T) {
	t.Parallel()
	groups := slacktest.WithUserGroups(slacktest.UserGroup{ID: "S0000001", Handle: "oncall"})
	blind := slacktest.WithScopes("chat:write", "channels:read")
	for name, test := range map[string]struct {
		option   slacktest.Option
		mentions []string
		want     []string
	}{
		"found": {groups, []string{"a", "oncall+here", "b", "oncall"}, nil},
		"not found": {groups, []string{"a", "nobody+oncall", "b", "nobody+noone"}, []string{
			"Slack mention @nobody: no user group", "Slack mention @noone: no user group",
		}},
		"may not ask": {blind, []string{"a", "oncall"}, []string{
			"Slack mention @oncall: could not be looked up with usergroups.list: missing_scope: the token lacks the scope usergroups:read",
		}},
		"no need to ask": {blind, []string{"a", "here+U0000001+S0000001"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := byToken(slacktest.New(t, groups, test.option))
			o.Mentions = mentioned(t, test.mentions...)
			checkProblems(t, newTestSlack(t, o), test.want...)
		})
	}
}
