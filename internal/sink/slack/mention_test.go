package slack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

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
	for _, test := range []struct{ category, want, preview string }{
		{"errors", "", ""},
		{"payments", "", ""},
		{"payments.refunds", "<!channel>", "<!channel>"},
		{"payments.refunds.failed", "<!channel>", "<!channel>"},
		{
			"security.audit", "<!here> <@U0000001> <@W0000001> <!subteam^S0000009>",
			"<!here> <@U0000001> <@W0000001> <!subteam^S0000009>",
		},
		{"security", "<!subteam^S0000001>", "@oncall-security"},
		{"security.login", "<!subteam^S0000001>", "@oncall-security"},
		{"old", "", "@former"},
		{"mixed", "<!everyone> <!subteam^S0000001>", "@former <!everyone> @oncall-security"},
	} {
		testkit.Equal(t, s.Mention(event.Event{Category: test.category}), test.want, "%s", test.category)
		testkit.Equal(t, MentionPreview(o.Mentions, test.category), test.preview, "%s: preview", test.category)
	}
	for _, sink := range ways(t, server) {
		testkit.Equal(t, sink.Mention(hello), "", "mentions without a table")
	}
}

// lookUps counts the look-ups of handles and keeps the failures.
type lookUps struct {
	failures []string
	asked    int
	groups   map[string]string
	fault    *sink.Error
}

func (l *lookUps) list(context.Context) (map[string]string, *sink.Error) {
	l.asked++
	if l.fault != nil {
		return nil, l.fault
	}
	return l.groups, nil
}

func (l *lookUps) failed(handle string, err error) {
	l.failures = append(l.failures, fmt.Sprintf("%s: %v", handle, err))
}

func TestHandlesAreLookedUpAgain(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	l := &lookUps{fault: &sink.Error{Class: sink.Transient, Channel: "usergroups.list", Err: errors.New("not sent")}}
	m := &mentions{table: mentioned(t, "a", "one", "b", "two"), list: l.list, failed: l.failed, now: clock.Read}
	expect := func(step, category, want string, asked, failed int) {
		t.Helper()
		if got := m.of(category); got != want || l.asked != asked || len(l.failures) != failed {
			t.Errorf("%s: got %q after %d look-ups, failures %q; want %q, %d, %d", step, got, l.asked, l.failures, want, asked, failed)
		}
	}
	expect("fails", "a", "", 1, 1)
	expect("fails once", "a", "", 1, 1)
	expect("no other look-up for another handle", "b", "", 1, 2)
	clock.Advance(lookUpPause - time.Second)
	expect("still within the minute", "a", "", 1, 2)
	clock.Advance(time.Second)
	expect("fails again, logged once", "a", "", 2, 2)
	clock.Advance(lookUpPause)
	l.fault, l.groups = nil, map[string]string{"one": "S1"}
	expect("found", "a", "<!subteam^S1>", 3, 2)
	expect("there is no other one", "b", "", 4, 2)
	clock.Advance(lookUpPause)
	l.fault = &sink.Error{Class: sink.Transient, Err: errors.New("not sent")}
	expect("what was found stays", "a", "<!subteam^S1>", 4, 2)
	expect("the other one fails", "b", "", 5, 2)
	expect("what was found still stays", "a", "<!subteam^S1>", 5, 2)
	clock.Advance(lookUpPause)
	l.fault, l.groups = nil, map[string]string{"one": "S1", "two": "S2"}
	expect("created meanwhile", "b", "<!subteam^S2>", 6, 2)
	testkit.Contains(t, "failures", l.failures[0], "one: list the user groups", "not sent")

	limited := &lookUps{fault: &sink.Error{Class: sink.RateLimited, RetryAfter: time.Hour, Err: errors.New("slow down")}}
	m = &mentions{table: m.table, list: limited.list, failed: limited.failed, now: clock.Read}
	l = limited
	expect("limited", "a", "", 1, 1)
	clock.Advance(time.Hour - time.Second)
	expect("still limited", "a", "", 1, 1)
	clock.Advance(time.Second)
	expect("asks again", "a", "", 2, 1)
}

// TestKnownHandleWaitsForNoLookUp has the look-up of one handle hang. A category whose handle is known does not wait for it.
func TestKnownHandleWaitsForNoLookUp(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	m := &mentions{
		table: mentioned(t, "a", "one", "b", "two"), groups: map[string]string{"one": "S1"}, failed: func(string, error) {}, now: time.Now,
		list: func(context.Context) (map[string]string, *sink.Error) {
			close(begun)
			<-end
			return map[string]string{"one": "S1", "two": "S2"}, nil
		},
	}
	found := make(chan string)
	go func() { found <- m.of("b") }()
	<-begun
	testkit.Equal(t, m.of("a"), "<!subteam^S1>", "a known handle")
	close(end)
	testkit.Equal(t, <-found, "<!subteam^S2>", "the handle that was looked up")
}

// Deliveries that need the same handle share one request. None waits longer than the timeout.
func TestHandleLookUpBlocksBriefly(t *testing.T) {
	t.Parallel()
	var asked, failed atomic.Int64
	o := answeredBy(t, func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // the server sees the client leave only after the body
		<-r.Context().Done()
	})
	o.Timeout, o.Mentions = 50*time.Millisecond, mentioned(t, "security", "oncall")
	o.MentionFailed = func(handle string, err error) {
		failed.Add(1)
		testkit.Check(t, handle == "oncall" && errors.Is(err, context.DeadlineExceeded), "got %s: %v, want the timeout of oncall", handle, err)
	}
	s := newTestSlack(t, o)
	testkit.AtOnce(20, func(int) {
		testkit.Equal(t, s.Mention(event.Event{Category: "security"}), "", "mentions")
	})
	testkit.AtMost(t, asked.Load(), 1, "requests")
	testkit.Equal(t, failed.Load(), 1, "failures")
}

// Slack lists thousands of user groups in one answer.
func TestManyUserGroups(t *testing.T) {
	t.Parallel()
	var groups []slacktest.UserGroup
	for i := range 3000 {
		groups = append(groups, slacktest.UserGroup{ID: fmt.Sprintf("S%07d", i), Handle: fmt.Sprint("team-", i)})
	}
	o := byToken(slacktest.New(t, slacktest.WithUserGroups(groups...)))
	o.Mentions = mentioned(t, "a", "team-2999")
	s := newTestSlack(t, o)
	testkit.Equal(t, s.Mention(event.Event{Category: "a"}), "<!subteam^S0002999>", "mentions")
	checkProblems(t, s)
}

func TestOddUserGroups(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`{"ok":true,"usergroups":[{"id":"S0000001","handle":"oncall","date_delete":0}]}`:          "<!subteam^S0000001>",
		`{"ok":true,"usergroups":[{"id":"S0000001","handle":"oncall","date_delete":1446748865}]}`: "",
		`{"ok":true,"usergroups":[{"id":"x>|","handle":"oncall","date_delete":0}]}`:               "",
		`{"ok":true,"usergroups":"oncall"}`:                                                       "",
		`{"ok":true}`:                                                                             "",
		`{"ok":false,"error":"missing_scope","needed":"usergroups:read"}`:                         "",
		`<html>`: "",
	} {
		failed := 0
		o := alwaysAnswered(t, map[string]string{"usergroups.list": answer})
		o.Mentions, o.MentionFailed = mentioned(t, "a", "oncall"), func(string, error) { failed++ }
		got := newTestSlack(t, o).Mention(event.Event{Category: "a"})
		testkit.Check(t, got == want && (failed == 0) == (want != ""), "%s: got %q, %d failures, want %q", answer, got, failed, want)
	}
}
