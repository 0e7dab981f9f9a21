package slacktest_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reply is what a client saw.
type reply struct {
	status int
	header http.Header
	body   string
}

func do(t *testing.T, request *http.Request) (reply, error) {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(body)}, err
}

func post(t *testing.T, address, contentType, body string) (reply, error) {
	t.Helper()
	request := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(body)))(t)
	request.Header.Set("Content-Type", contentType)
	return do(t, request)
}

func postForm(t *testing.T, s *slacktest.Server, method string, values url.Values) (reply, error) {
	t.Helper()
	return post(t, s.APIURL()+method, "application/x-www-form-urlencoded", values.Encode())
}

func message(text string) url.Values {
	return url.Values{"token": {slacktest.DefaultToken}, "channel": {"C0000001"}, "text": {text}}
}

func TestPostMessage(t *testing.T) {
	t.Parallel()
	block := func(text string) string {
		return `[{"type":"section","text":{"type":"plain_text","text":"` + text + `"}}]`
	}
	tests := []struct {
		name   string
		change func(url.Values)
		fault  string
	}{
		{"taken", func(url.Values) {}, ""},
		{"blocks", func(v url.Values) { v.Set("blocks", block("hello")); v.Del("text") }, ""},
		{"no token", func(v url.Values) { v.Del("token") }, "not_authed"},
		{"wrong token", func(v url.Values) { v.Set("token", "xoxb-other") }, "invalid_auth"},
		{"no channel", func(v url.Values) { v.Del("channel") }, "channel_not_found"},
		{"no text", func(v url.Values) { v.Del("text") }, "no_text"},
		{"long text", func(v url.Values) { v.Set("text", strings.Repeat("x", 40001)) }, "msg_too_long"},
		{"blocks not JSON", func(v url.Values) { v.Set("blocks", "[") }, "invalid_blocks_format"},
		{"long section", func(v url.Values) { v.Set("blocks", block(strings.Repeat("x", 3001))) }, "invalid_blocks"},
		{"empty section", func(v url.Values) { v.Set("blocks", block("")) }, "invalid_blocks"},
		{"unknown block", func(v url.Values) { v.Set("blocks", `[{"type":"hologram"}]`) }, "invalid_blocks"},
		{"attachments not JSON", func(v url.Values) { v.Set("attachments", "{") }, "invalid_attachments"},
		{
			"long section in an attachment",
			func(v url.Values) { v.Set("attachments", `[{"blocks":`+block(strings.Repeat("x", 3001))+`}]`) },
			"invalid_attachments",
		},
		{
			"blocks too long together",
			func(v url.Values) {
				one := strings.Trim(block(strings.Repeat("x", 3000)), "[]")
				v.Set("blocks", "["+strings.Repeat(one+",", 4)+one+"]")
			},
			"msg_blocks_too_long",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := slacktest.New(t)
			values := message("hello")
			test.change(values)
			got := testkit.Must(postForm(t, s, "chat.postMessage", values))(t)
			var answer struct {
				OK    bool   `json:"ok"`
				TS    string `json:"ts"`
				Error string `json:"error"`
			}
			if err := json.Unmarshal([]byte(got.body), &answer); err != nil {
				t.Fatalf("answer %q: %v", got.body, err)
			}
			posts := s.Posts()
			if len(posts) != 1 {
				t.Fatalf("recorded %d posts, want 1", len(posts))
			}
			taken := test.fault == ""
			if answer.OK != taken || (answer.TS != "") != taken || answer.Error != test.fault {
				t.Errorf("answer %q, want fault %q", got.body, test.fault)
			}
			if posts[0].Accepted != taken || posts[0].Fault != test.fault || len(s.Accepted()) == 1 != taken {
				t.Errorf("recorded accepted %t, fault %q, want fault %q", posts[0].Accepted, posts[0].Fault, test.fault)
			}
		})
	}
}

func TestPostIsRecorded(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t)
	const attachments = `[{"color":"#ffffff","fallback":"f","blocks":[{"type":"context","elements":[{"type":"mrkdwn","text":"e"}]}]}]`
	body := `{"channel":"#ops","text":"t","unfurl_links":false,"attachments":` + attachments + `}`
	request := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, s.APIURL()+"chat.postMessage", strings.NewReader(body)))(t)
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	request.Header.Set("Authorization", "Bearer "+slacktest.DefaultToken)
	request.Header.Set("User-Agent", "test/1")
	testkit.Must(do(t, request))(t)
	got := s.Accepted()
	if len(got) != 1 {
		t.Fatalf("accepted %d posts, want 1", len(got))
	}
	p := got[0]
	if p.Channel != "#ops" || p.Text != "t" || string(p.Attachments) != attachments || p.Webhook ||
		p.Options.Get("unfurl_links") != "false" || p.Header.Get("User-Agent") != "test/1" ||
		p.Remote == "" || p.Received.IsZero() || p.Timestamp == "" {
		t.Errorf("recorded %+v", p)
	}
	if texts := p.Message.Texts(); len(texts) != 1 || texts[0].Text != "e" || p.Message.Attachments[0].Color != "#ffffff" {
		t.Errorf("parsed %+v", p.Message)
	}
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t, slacktest.WithWebhookSecret("hush"))
	tests := []struct {
		name, address, body string
		status              int
		answer              string
	}{
		{"taken", s.WebhookURL(), `{"text":"hello"}`, 200, "ok"},
		{"not JSON", s.WebhookURL(), `{`, 400, "invalid_payload"},
		{"empty", s.WebhookURL(), `{}`, 400, "no_text"},
		{"wrong secret", strings.Replace(s.WebhookURL(), "hush", "shout", 1), `{"text":"hello"}`, 404, "no_service"},
	}
	for _, test := range tests {
		got, err := post(t, test.address, "application/json", test.body)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if got.status != test.status || got.body != test.answer {
			t.Errorf("%s: got %d %q, want %d %q", test.name, got.status, got.body, test.status, test.answer)
		}
	}
	if got := len(s.Accepted()); got != 1 {
		t.Errorf("accepted %d posts, want 1", got)
	}
	if got := s.Calls("webhook"); got != len(tests) {
		t.Errorf("counted %d calls, want %d", got, len(tests))
	}
}

func TestScript(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t)
	elsewhere := slacktest.New(t)
	tests := []struct {
		name     string
		answer   slacktest.Answer
		broken   bool // the client gets an error
		status   int
		holds    string // in the body
		accepted bool
	}{
		{"ok", slacktest.OK(), false, 200, `"ok":true`, true},
		{"zero", slacktest.Answer{}, false, 200, `"ok":true`, true},
		{"lost", slacktest.Lost(), true, 0, "", true},
		{"reset", slacktest.Reset(), true, 0, "", false},
		{"truncated", slacktest.Truncated(100, `{"ok":`), true, 0, "", false},
		{"code", slacktest.Code("is_archived"), false, 200, `"is_archived"`, false},
		{"rate limited", slacktest.RateLimited(3 * time.Second), false, 429, "ratelimited", false},
		{"status", slacktest.Status(503, "busy"), false, 503, "busy", false},
		{"page", slacktest.HTML(200), false, 200, "<title>", false},
		{"redirect", slacktest.Redirect(elsewhere.APIURL()), false, 307, "", false},
		{"huge", slacktest.Huge(100 << 10), false, 200, `"ok":true`, false},
		{"delayed", slacktest.Delay(time.Millisecond, slacktest.OK()), false, 200, `"ok":true`, true},
	}
	for _, test := range tests {
		before := len(s.Accepted())
		s.Script(test.answer)
		got, err := postForm(t, s, "chat.postMessage", message("hello"))
		if (err != nil) != test.broken {
			t.Fatalf("%s: error %v, want one: %t", test.name, err, test.broken)
		}
		if !test.broken && (got.status != test.status || !strings.Contains(got.body, test.holds)) {
			t.Errorf("%s: got %d %.80q, want %d with %q", test.name, got.status, got.body, test.status, test.holds)
		}
		testkit.Equal(t, len(s.Accepted()) > before, test.accepted, "%s: accepted", test.name)
	}
	if got := elsewhere.Calls("chat.postMessage"); got != 0 {
		t.Errorf("the redirect was followed %d times", got)
	}
}

func TestRespondAndHold(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t)
	release := make(chan struct{})
	s.Respond(func(p slacktest.Post) slacktest.Answer {
		if p.Text == "slow" {
			return slacktest.Hold(release, slacktest.OK())
		}
		return slacktest.OK()
	})
	done := make(chan error, 1)
	go func() {
		_, err := postForm(t, s, "chat.postMessage", message("slow"))
		done <- err
	}()
	testkit.Must(postForm(t, s, "chat.postMessage", message("fast")))(t)
	for _, p := range s.Accepted() {
		if p.Text == "slow" {
			t.Error("the held post was accepted before its release")
		}
	}
	close(release)
	testkit.NoError(t, <-done)
	if err := s.Await(t.Context(), 2); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Await(ended, 3); !errors.Is(err, context.Canceled) {
		t.Errorf("Await returned %v, want context.Canceled", err)
	}
}

func TestCloseEndsHeldRequests(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	s := testkit.Must(slacktest.Start())(t)
	s.Respond(func(slacktest.Post) slacktest.Answer {
		close(arrived)
		return slacktest.Hold(nil, slacktest.OK())
	})
	done := make(chan error, 1)
	go func() {
		_, err := postForm(t, s, "chat.postMessage", message("held"))
		done <- err
	}()
	<-arrived
	s.Close()
	s.Close()
	if err := <-done; err == nil {
		t.Error("the held request was answered")
	}
	again, err := slacktest.Start(slacktest.WithAddress(s.Address()))
	if err != nil {
		t.Fatalf("start at the same address: %v", err)
	}
	again.Close()
}

func TestResetConnections(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t)
	s.ResetConnections(2)
	for i := range 3 {
		_, err := postForm(t, s, "chat.postMessage", message("hello"))
		if (err != nil) != (i < 2) {
			t.Errorf("request %d: error %v", i, err)
		}
	}
	if got := len(s.Posts()); got != 1 {
		t.Errorf("recorded %d posts, want 1", got)
	}
}

func TestChannels(t *testing.T) {
	t.Parallel()
	channels := slacktest.WithChannels(
		slacktest.Channel{ID: "C1", Name: "in", Member: true},
		slacktest.Channel{ID: "C2", Name: "out"},
		slacktest.Channel{ID: "C3", Name: "old", Member: true, Archived: true},
		slacktest.Channel{ID: "G4", Name: "hidden", Private: true},
	)
	s := slacktest.New(t, channels)
	anywhere := slacktest.New(t, channels, slacktest.WithScopes("chat:write", "chat:write.public"))
	tests := []struct {
		server        *slacktest.Server
		method        string
		channel, want string
	}{
		{s, "chat.postMessage", "C1", `"ok":true`},
		{s, "chat.postMessage", "#in", `"ok":true`},
		{s, "chat.postMessage", "C2", "not_in_channel"},
		{s, "chat.postMessage", "C3", "is_archived"},
		{s, "chat.postMessage", "G4", "channel_not_found"},
		{s, "chat.postMessage", "C5", "channel_not_found"},
		{anywhere, "chat.postMessage", "C2", `"ok":true`},
		{s, "conversations.info", "C2", `"is_member":false`},
		{s, "conversations.info", "#in", "channel_not_found"},
		{s, "conversations.info", "G4", "channel_not_found"},
		{anywhere, "conversations.info", "C1", "missing_scope"},
		{s, "users.conversations", "", `"name":"in"`},
		{s, "auth.test", "", `"ok":true`},
		{s, "chat.levitate", "", "unknown_method"},
	}
	for _, test := range tests {
		values := message("hello")
		values.Set("channel", test.channel)
		got, err := postForm(t, test.server, test.method, values)
		if err != nil || !strings.Contains(got.body, test.want) {
			t.Errorf("%s %s: got %q, %v, want %q", test.method, test.channel, got.body, err, test.want)
		}
	}
}

// postTo posts a message, and returns the channel and the ts that the answer names.
func postTo(t *testing.T, s *slacktest.Server, channel, thread string) (id, timestamp string) {
	t.Helper()
	values := message("hello")
	values.Set("channel", channel)
	if thread != "" {
		values.Set("thread_ts", thread)
	}
	got := testkit.Must(postForm(t, s, "chat.postMessage", values))(t)
	var answer struct {
		Channel string `json:"channel"`
		TS      string `json:"ts"`
		Message struct {
			Thread string `json:"thread_ts"`
		} `json:"message"`
	}
	if err := json.Unmarshal([]byte(got.body), &answer); err != nil || answer.TS == "" {
		t.Fatalf("answer %q: %v", got.body, err)
	}
	posts := s.Accepted()
	last := posts[len(posts)-1]
	if last.ChannelID != answer.Channel || last.Timestamp != answer.TS || last.Thread != answer.Message.Thread {
		t.Errorf("recorded channel %s, ts %s, thread %q; answered %s", last.ChannelID, last.Timestamp, last.Thread, got.body)
	}
	return answer.Channel, answer.TS
}

func TestAnswersNameTheChannelByItsID(t *testing.T) {
	t.Parallel()
	known := slacktest.New(t, slacktest.WithChannels(slacktest.Channel{ID: "C1", Name: "in", Member: true}))
	anything := slacktest.New(t)
	for _, named := range []string{"C1", "in", "#in"} {
		if id, _ := postTo(t, known, named, ""); id != "C1" {
			t.Errorf("%s: answered %s, want C1", named, id)
		}
	}
	if id, _ := postTo(t, anything, "C0000001", ""); id != "C0000001" {
		t.Errorf("answered %s for C0000001", id)
	}
	one, _ := postTo(t, anything, "#one", "")
	same, _ := postTo(t, anything, "one", "")
	other, _ := postTo(t, anything, "#other", "")
	if one == "#one" || one != same || one == other {
		t.Errorf("answered %s, %s, %s for #one, one, #other", one, same, other)
	}
}

func TestThreads(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t)
	_, first := postTo(t, s, "#ops", "")
	thread := func() string {
		posts := s.Accepted()
		return posts[len(posts)-1].Thread
	}
	if postTo(t, s, "#ops", first); thread() != first {
		t.Errorf("the reply stands in the thread %q, want %s", thread(), first)
	}
	if postTo(t, s, "#other", first); thread() != "" {
		t.Errorf("a reply in another channel stands in the thread %s", thread())
	}
	if postTo(t, s, "#ops", "1700000000.000001"); thread() != "" {
		t.Errorf("a reply to nothing stands in the thread %s", thread())
	}
	s.Delete(first)
	if postTo(t, s, "#ops", first); thread() != "" {
		t.Errorf("a reply to a deleted message stands in the thread %s", thread())
	}
	values := message("hello")
	values.Set("thread_ts", "soon")
	if got, err := postForm(t, s, "chat.postMessage", values); err != nil || !strings.Contains(got.body, "invalid_thread_ts") {
		t.Errorf("got %q, %v", got.body, err)
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t)
	id, ts := postTo(t, s, "#ops", "")
	_, gone := postTo(t, s, "#ops", "")
	s.Delete(gone)
	tests := []struct {
		name   string
		change func(url.Values)
		want   string
	}{
		{"taken", func(url.Values) {}, `"ok":true`},
		{"no token", func(v url.Values) { v.Del("token") }, "not_authed"},
		{"by the channel's name", func(v url.Values) { v.Set("channel", "#ops") }, "channel_not_found"},
		{"another channel", func(v url.Values) { v.Set("channel", "C0000001") }, "message_not_found"},
		{"no ts", func(v url.Values) { v.Del("ts") }, "message_not_found"},
		{"unknown ts", func(v url.Values) { v.Set("ts", "1700000000.000001") }, "message_not_found"},
		{"deleted", func(v url.Values) { v.Set("ts", gone) }, "message_not_found"},
		{"no text", func(v url.Values) { v.Del("text") }, "no_text"},
	}
	for _, test := range tests {
		values := message("changed")
		values.Set("channel", id)
		values.Set("ts", ts)
		test.change(values)
		got, err := postForm(t, s, "chat.update", values)
		if err != nil || !strings.Contains(got.body, test.want) {
			t.Errorf("%s: got %q, %v, want %s", test.name, got.body, err, test.want)
		}
	}
	updates := s.Updates()
	if len(updates) != 1 || updates[0].Channel != id || updates[0].Timestamp != ts || updates[0].Message.Text != "changed" ||
		updates[0].Received.IsZero() {
		t.Errorf("recorded %+v", updates)
	}
	if posts, calls := len(s.Posts()), s.Calls("chat.update"); posts != 2 || calls != len(tests) {
		t.Errorf("recorded %d posts and %d calls, want 2 and %d", posts, calls, len(tests))
	}
	if err := s.AwaitUpdates(t.Context(), 1); err != nil {
		t.Error(err)
	}
}

func TestUpdatesAreScripted(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t)
	id, ts := postTo(t, s, "#ops", "")
	values := message("changed")
	values.Set("channel", id)
	values.Set("ts", ts)
	s.Respond(func(p slacktest.Post) slacktest.Answer {
		if p.Method != slacktest.MethodUpdate || p.Timestamp != ts || p.ChannelID != id || p.Text != "changed" {
			t.Errorf("asked for an answer to %+v", p)
		}
		return slacktest.Code("edit_window_closed")
	})
	s.Script(slacktest.Lost(), slacktest.RateLimited(time.Second))
	for i, want := range []string{"", "ratelimited", "edit_window_closed"} {
		got, err := postForm(t, s, "chat.update", values)
		if (err != nil) != (want == "") || !strings.Contains(got.body, want) {
			t.Errorf("update %d: got %q, %v, want %q", i, got.body, err, want)
		}
	}
	if got := len(s.Updates()); got != 1 {
		t.Errorf("took %d updates, want that whose answer was lost", got)
	}
}

func TestUserGroups(t *testing.T) {
	t.Parallel()
	groups := slacktest.WithUserGroups(
		slacktest.UserGroup{ID: "S0000001", Handle: "oncall"},
		slacktest.UserGroup{ID: "S0000002", Handle: "former", Disabled: true},
	)
	for _, test := range []struct {
		name   string
		server *slacktest.Server
		want   []string
	}{
		{"groups", slacktest.New(t, groups), []string{`"ok":true`, `"handle":"oncall"`, `"id":"S0000001"`}},
		{"no groups", slacktest.New(t), []string{`"ok":true`, `"usergroups":[]`}},
		{"no scope", slacktest.New(t, groups, slacktest.WithScopes("chat:write")), []string{"missing_scope", `"needed":"usergroups:read"`}},
	} {
		got, err := postForm(t, test.server, "usergroups.list", message(""))
		for _, want := range test.want {
			if err != nil || !strings.Contains(got.body, want) || strings.Contains(got.body, "former") {
				t.Errorf("%s: got %q, %v, want %s", test.name, got.body, err, want)
			}
		}
	}
}
