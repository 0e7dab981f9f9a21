package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestParseMention(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"@here", "@channel", "@everyone", "@U0123ABCD", "@W0123ABCD", "@S0123ABCD", "@oncall-security", "@on.call_2", "@7x24",
	} {
		if got, err := ParseMention(text); err != nil || got != text[1:] {
			t.Errorf("%s: got %q, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "@", "here", "U0123ABCD", "<!here>", "@<!here>", "@here ", "@ here", "@Here", "@HERE", "@u0123ABCD", "@C0123ABCD", "@B0123ABCD",
		"@on call", "@oncall,", "@@here", "@oncall>", "@oncall|x", "@été", "@x\n", "@\u202ex", "@" + strings.Repeat("x", 81),
	} {
		got, err := ParseMention(text)
		if err == nil || got != "" {
			t.Errorf("%q: got %q", text, got)
			continue
		}
		if message := err.Error(); strings.ContainsAny(message, "\n\u202e") || len(message) > 400 || !strings.HasPrefix(message, "mention ") {
			t.Errorf("%q: got %q", text, message)
		}
	}
}

func FuzzParseMention(f *testing.F) {
	for _, text := range []string{"@here", "@U0123ABCD", "@S0123ABCD", "@oncall", "@<!here>", "@a|b", "@\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := ParseMention(text)
		if err != nil {
			return
		}
		markup, err := mentionMarkup(name)
		if err != nil || strings.ContainsAny(name, "<>|&! \n") || markup != "" && strings.Count(markup, "<") != 1 {
			t.Errorf("%q: got %q, %q, %v", text, name, markup, err)
		}
	})
}

// mentioned makes a table of path, then mentions joined by "+".
func mentioned(t *testing.T, pairs ...string) event.Table[[]string] {
	t.Helper()
	var entries []event.Entry[[]string]
	for _, entry := range routes(t, pairs...).Entries() {
		entries = append(entries, event.Entry[[]string]{Pattern: entry.Pattern, Value: strings.Split(entry.Value, "+")})
	}
	return testkit.Must(event.NewTable(entries))(t)
}

func TestMention(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t, slacktest.WithUserGroups(
		slacktest.UserGroup{ID: "S0000001", Handle: "oncall-security"}, slacktest.UserGroup{ID: "S0000002", Handle: "former", Disabled: true},
	))
	o := byToken(server)
	o.Mentions = mentioned(t, "security", "oncall-security", "security.audit", "here+U0000001+W0000001+S0000009", "payments.*", "channel",
		"old", "former", "mixed", "former+everyone+oncall-security")
	s := newTestSlack(t, o)
	testkit.Equal(t, server.Calls("usergroups.list"), 0, "look-ups before anything was mentioned")
	for _, test := range []struct{ category, want string }{
		{"errors", ""},
		{"payments", ""},
		{"payments.refunds", "<!channel>"},
		{"payments.refunds.failed", "<!channel>"},
		{"security.audit", "<!here> <@U0000001> <@W0000001> <!subteam^S0000009>"},
		{"security", "<!subteam^S0000001>"},
		{"security.login", "<!subteam^S0000001>"},
		{"old", ""},
		{"mixed", "<!everyone> <!subteam^S0000001>"},
	} {
		if got, ok := s.Mention(event.Event{Category: test.category}); got != test.want || ok != (test.want != "") {
			t.Errorf("%s: got %q, %t, want %q", test.category, got, ok, test.want)
		}
	}
	for _, sink := range []*Slack{newTestSlack(t, byToken(server)), newTestSlack(t, byWebhook(server))} {
		if got, ok := sink.Mention(sample); got != "" || ok {
			t.Errorf("no table: got %q", got)
		}
	}
}

// A mention is shown as it stands.
func TestMentionIsPosted(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	testkit.Must(newTestSlack(t, byToken(server)).Send(t.Context(), Delivery{Event: sample, Mention: "<!subteam^S0000001>"}))(t)
	if got := textOf(server.Accepted()[0].Message); !strings.Contains(got, "<!subteam^S0000001>") {
		t.Errorf("posted %q", got)
	}
}

// lookUps counts the look-ups of handles, and what was told of them.
type lookUps struct {
	mu     sync.Mutex
	told   []string
	asked  int
	groups map[string]string
	fault  *Error
}

func (l *lookUps) list(context.Context) (map[string]string, *Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if l.fault != nil {
		return nil, l.fault
	}
	return l.groups, nil
}

func (l *lookUps) failed(handle string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, fmt.Sprintf("%s: %v", handle, err))
}

func TestHandlesAreLookedUpAgain(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	l := &lookUps{fault: &Error{Class: Transient, Channel: "usergroups.list", Err: errors.New("not sent")}}
	m := &mentions{table: mentioned(t, "a", "one", "b", "two"), list: l.list, failed: l.failed, now: clock.Read}
	expect := func(step, category, want string, asked, told int) {
		t.Helper()
		if got, _ := m.of(category); got != want || l.asked != asked || len(l.told) != told {
			t.Errorf("%s: got %q after %d look-ups, told %q; want %q, %d, %d", step, got, l.asked, l.told, want, asked, told)
		}
	}
	expect("fails", "a", "", 1, 1)
	expect("told once", "a", "", 1, 1)
	expect("no other look-up for another handle", "b", "", 1, 2)
	clock.Advance(lookUpPause - time.Second)
	expect("still within the minute", "a", "", 1, 2)
	clock.Advance(time.Second)
	expect("fails again, told once", "a", "", 2, 2)
	clock.Advance(lookUpPause)
	l.fault, l.groups = nil, map[string]string{"one": "S1"}
	expect("found", "a", "<!subteam^S1>", 3, 2)
	expect("there is no other one", "b", "", 4, 2)
	clock.Advance(lookUpPause)
	l.fault = &Error{Class: Transient, Err: errors.New("not sent")}
	expect("what was found stays", "a", "<!subteam^S1>", 4, 2)
	expect("the other one fails", "b", "", 5, 2)
	expect("what was found still stays", "a", "<!subteam^S1>", 5, 2)
	clock.Advance(lookUpPause)
	l.fault, l.groups = nil, map[string]string{"one": "S1", "two": "S2"}
	expect("created meanwhile", "b", "<!subteam^S2>", 6, 2)
	if !strings.Contains(l.told[0], "one: list the user groups") || !strings.Contains(l.told[0], "not sent") {
		t.Errorf("told %q", l.told)
	}
}

func TestUnknownHandleIsTold(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	l := &lookUps{}
	m := &mentions{table: mentioned(t, "a", "one"), list: l.list, failed: l.failed, now: clock.Read}
	m.of("a")
	if len(l.told) != 1 || l.told[0] != "one: "+errNoUserGroup.Error() {
		t.Errorf("told %q", l.told)
	}
	silent := &mentions{table: m.table, list: l.list, now: clock.Read}
	if got, ok := silent.of("a"); got != "" || ok {
		t.Errorf("nobody to tell: got %q", got)
	}
}

// Deliveries that need the same handle make one request, and none waits longer than the timeout.
func TestHandleLookUpBlocksBriefly(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // the server sees the client leave only after the body
		<-r.Context().Done()
	}))
	t.Cleanup(slow.Close)
	var told atomic.Int64
	s := newTestSlack(t, SlackOptions{
		Token: "xoxb-1", Channel: "#ops", APIURL: slow.URL, Timeout: 50 * time.Millisecond, Mentions: mentioned(t, "security", "oncall"),
		MentionFailed: func(handle string, err error) {
			told.Add(1)
			if handle != "oncall" || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("told %s: %v", handle, err)
			}
		},
	})
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if got, ok := s.Mention(event.Event{Category: "security"}); got != "" || ok {
				t.Errorf("got %q", got)
			}
		})
	}
	group.Wait()
	if asked.Load() > 1 || told.Load() != 1 {
		t.Errorf("asked %d times, told %d times, want once", asked.Load(), told.Load())
	}
}

// A workspace may have thousands of user groups, and Slack lists them in one piece.
func TestManyUserGroups(t *testing.T) {
	t.Parallel()
	var groups []slacktest.UserGroup
	for i := range 3000 {
		groups = append(groups, slacktest.UserGroup{ID: fmt.Sprintf("S%07d", i), Handle: fmt.Sprint("team-", i)})
	}
	server := slacktest.New(t, slacktest.WithUserGroups(groups...))
	o := byToken(server)
	o.Mentions = mentioned(t, "a", "team-2999")
	s := newTestSlack(t, o)
	if got, _ := s.Mention(event.Event{Category: "a"}); got != "<!subteam^S0002999>" {
		t.Errorf("got %q", got)
	}
	checkProblems(t, s, nil)
}

func TestOddUserGroups(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ answer, want string }{
		{`{"ok":true,"usergroups":[{"id":"S0000001","handle":"oncall","date_delete":0}]}`, "<!subteam^S0000001>"},
		{`{"ok":true,"usergroups":[{"id":"S0000001","handle":"oncall","date_delete":1446748865}]}`, ""},
		{`{"ok":true,"usergroups":[{"id":"x>|","handle":"oncall","date_delete":0}]}`, ""},
		{`{"ok":true,"usergroups":"oncall"}`, ""},
		{`{"ok":true}`, ""},
		{`{"ok":false,"error":"missing_scope","needed":"usergroups:read"}`, ""},
		{`<html>`, ""},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.answer) }))
		t.Cleanup(server.Close)
		told := 0
		s := newTestSlack(t, SlackOptions{
			Token: "xoxb-1", Channel: "#ops", APIURL: server.URL, Mentions: mentioned(t, "a", "oncall"),
			MentionFailed: func(string, error) { told++ },
		})
		t.Cleanup(s.Close)
		if got, _ := s.Mention(event.Event{Category: "a"}); got != test.want || (told == 0) != (test.want != "") {
			t.Errorf("%s: got %q, told %d times", test.answer, got, told)
		}
	}
}

func TestCheckMentions(t *testing.T) {
	t.Parallel()
	groups := slacktest.WithUserGroups(slacktest.UserGroup{ID: "S0000001", Handle: "oncall"})
	blind := slacktest.WithScopes("chat:write", "channels:read")
	for _, test := range []struct {
		name     string
		server   []slacktest.Option
		mentions []string
		want     []string
	}{
		{"found", nil, []string{"a", "oncall+here", "b", "oncall"}, nil},
		{"not found", nil, []string{"a", "nobody+oncall", "b", "nobody+noone"}, []string{"Slack mention @nobody: no user group", "Slack mention @noone: no user group"}},
		{"may not ask", []slacktest.Option{blind}, []string{"a", "oncall"}, []string{
			"Slack mention @oncall: could not be looked up with usergroups.list: missing_scope: the token lacks the scope usergroups:read",
		}},
		{"no need to ask", []slacktest.Option{blind}, []string{"a", "here+U0000001+S0000001"}, nil},
	} {
		o := byToken(slacktest.New(t, append([]slacktest.Option{groups}, test.server...)...))
		o.Mentions = mentioned(t, test.mentions...)
		t.Run(test.name, func(t *testing.T) { checkProblems(t, newTestSlack(t, o), test.want) })
	}
}
