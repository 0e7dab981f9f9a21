package sink

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

var workspace = slacktest.WithChannels(
	slacktest.Channel{ID: "C0000001", Name: "in", Member: true},
	slacktest.Channel{ID: "C0000002", Name: "out"},
	slacktest.Channel{ID: "C0000003", Name: "old", Member: true, Archived: true},
	slacktest.Channel{ID: "G0000004", Name: "hidden", Private: true},
)

func TestCheck(t *testing.T) {
	t.Parallel()
	public := slacktest.WithScopes("chat:write", "chat:write.public", "channels:read")
	blind := slacktest.WithScopes("chat:write")
	tests := []struct {
		name     string
		server   []slacktest.Option
		channels []string // the default one, then those of routes
		want     []string // a part of each problem, warnings with "warning: " before
	}{
		{"fine", nil, []string{"C0000001", "#in", "in", "C0000001"}, nil},
		{"wrong token", []slacktest.Option{slacktest.WithToken("xoxb-other")}, []string{"C0000001"}, []string{"Slack token: auth.test: invalid_auth"}},
		{"not in it", nil, []string{"C0000002", "#out"}, []string{"C0000002: not_in_channel", "#out: not_in_channel"}},
		{"archived", nil, []string{"C0000003", "#old"}, []string{"C0000003: is_archived", "#old: not_in_channel"}},
		{"hidden", nil, []string{"G0000004", "#hidden"}, []string{"G0000004: channel_not_found", "#hidden: not_in_channel"}},
		{"absent", nil, []string{"C0000009", "#absent"}, []string{"C0000009: channel_not_found", "#absent: not_in_channel"}},
		{"may post anywhere", []slacktest.Option{public}, []string{"C0000002", "#out"}, []string{"warning: #out: the bot is not in"}},
		{
			"may not ask", []slacktest.Option{blind}, []string{"C0000001", "#in"},
			[]string{"warning: C0000001: could not be checked", "warning: #in: could not be checked"},
		},
		{"users", nil, []string{"U0000001", "@someone"}, []string{"warning: U0000001: a direct message", "warning: @someone: a direct message"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t, append([]slacktest.Option{workspace}, test.server...)...)
			o := byToken(server)
			o.Channel = test.channels[0]
			var pairs []string
			for i, channel := range test.channels[1:] {
				pairs = append(pairs, "route"+string(rune('a'+i)), channel)
			}
			o.Routes = routes(t, pairs...)
			checkProblems(t, newTestSlack(t, o), test.want)
			if got := len(server.Posts()); got != 0 {
				t.Errorf("checking posted %d messages", got)
			}
		})
	}
}

func checkProblems(t *testing.T, s Sink, want []string) {
	t.Helper()
	problems := s.Check(t.Context())
	var got []string
	for _, problem := range problems {
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

func TestCheckWebhook(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	checkProblems(t, newTestSlack(t, byWebhook(server)), []string{"warning: Slack webhook: an incoming webhook cannot be checked"})
	if got := server.Calls("webhook"); got != 0 {
		t.Errorf("the webhook was called %d times", got)
	}
}

func TestCheckWhereNobodyListens(t *testing.T) {
	t.Parallel()
	server := testkit.Must(slacktest.Start())(t)
	server.Close()
	s := newTestSlack(t, byToken(server))
	checkProblems(t, s, []string{"Slack token: auth.test: not sent"})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if problems := s.Check(ended); len(problems) != 1 || !strings.Contains(problems[0].Err.Error(), "not sent") {
		t.Errorf("got %v", problems)
	}
}

// Answers of something that is Slack only nearly, or of a workspace that is very large.
func TestCheckOddAnswers(t *testing.T) {
	t.Parallel()
	const found = `{"ok":true,"channel":{"id":"C0000001"}}`
	const absent = `{"ok":false,"error":"channel_not_found"}`
	tests := []struct {
		name                string
		info, conversations string
		want                []string
	}{
		{"membership not told", found, "", nil},
		{"channel of another form", `{"ok":true,"channel":"C0000001"}`, "", []string{"warning: #ops: could not be checked"}},
		{"a page", "<html>", "", []string{"warning: #ops: could not be checked"}},
		{"no list", absent, `{"ok":false,"error":"unknown_method"}`, []string{"#ops: channel_not_found"}},
		{"list not allowed", absent, `{"ok":false,"error":"missing_scope","needed":"groups:read"}`, []string{"warning: #ops: channel_not_found"}},
		{"list is a page", absent, `<html>`, []string{"warning: #ops: channel_not_found"}},
		{"list of another form", absent, `{"ok":true,"channels":"ops"}`, []string{"warning: #ops: channel_not_found"}},
		{"list without end", absent, `{"ok":true,"channels":[],"response_metadata":{"next_cursor":"more"}}`, []string{"warning: #ops: channel_not_found"}},
		{"in the list", absent, `{"ok":true,"channels":[{"name":"ops"}]}`, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			answers := map[string]string{
				"/auth.test":           `{"ok":true}`,
				"/conversations.info":  test.info,
				"/users.conversations": test.conversations,
			}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, answers[r.URL.Path])
			}))
			t.Cleanup(server.Close)
			s := newTestSlack(t, SlackOptions{Token: "xoxb-1", Channel: "#ops", APIURL: server.URL})
			t.Cleanup(s.Close)
			checkProblems(t, s, test.want)
		})
	}
}
