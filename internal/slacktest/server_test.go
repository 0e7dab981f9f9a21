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
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
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
			got, err := postForm(t, s, "chat.postMessage", values)
			if err != nil {
				t.Fatal(err)
			}
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
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.APIURL()+"chat.postMessage", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	request.Header.Set("Authorization", "Bearer "+slacktest.DefaultToken)
	request.Header.Set("User-Agent", "test/1")
	if _, err := do(t, request); err != nil {
		t.Fatal(err)
	}
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
		if got := len(s.Accepted()) > before; got != test.accepted {
			t.Errorf("%s: accepted %t, want %t", test.name, got, test.accepted)
		}
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
	if _, err := postForm(t, s, "chat.postMessage", message("fast")); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Accepted() {
		if p.Text == "slow" {
			t.Error("the held post was accepted before its release")
		}
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
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
	s, err := slacktest.Start()
	if err != nil {
		t.Fatal(err)
	}
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
