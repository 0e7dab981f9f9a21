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

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reply is the answer that a client received.
type reply struct {
	status int
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
	return reply{response.StatusCode, string(body)}, err
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

// message has the parameters of a post. pairs are more: name, value, … An empty value removes its parameter.
func message(text string, pairs ...string) url.Values {
	values := url.Values{"token": {slacktest.DefaultToken}, "channel": {"C0000001"}, "text": {text}}
	for i := 0; i < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
		if pairs[i+1] == "" {
			values.Del(pairs[i])
		}
	}
	return values
}

// wantAnswer checks that a method's answer has some text.
func wantAnswer(t *testing.T, s *slacktest.Server, method string, values url.Values, want string) {
	t.Helper()
	got, err := postForm(t, s, method, values)
	if err != nil || !strings.Contains(got.body, want) {
		t.Errorf("%s %v: got %q, %v, want %q", method, values, got.body, err, want)
	}
}

func sectionOf(text string) string {
	return `{"type":"section","text":{"type":"plain_text","text":"` + text + `"}}`
}

var (
	longSection = "[" + sectionOf(strings.Repeat("x", 3001)) + "]"
	five        = strings.Repeat(sectionOf(strings.Repeat("x", 3000))+",", 4) + sectionOf(strings.Repeat("x", 3000))
)

// postFaults are posts with the code of the refusal, "" for an accepted post.
var postFaults = []struct {
	name    string
	message url.Values
	fault   string
}{
	{"taken", message("hello"), ""},
	{"blocks", message("", "text", "", "blocks", "["+sectionOf("hello")+"]"), ""},
	{"no token", message("hello", "token", ""), "not_authed"},
	{"wrong token", message("hello", "token", "xoxb-other"), "invalid_auth"},
	{"no channel", message("hello", "channel", ""), "channel_not_found"},
	{"no text", message("", "text", ""), "no_text"},
	{"long text", message(strings.Repeat("x", 40001)), "msg_too_long"},
	{"blocks not JSON", message("hello", "blocks", "["), "invalid_blocks_format"},
	{"long section", message("hello", "blocks", longSection), "invalid_blocks"},
	{"empty section", message("hello", "blocks", "["+sectionOf("")+"]"), "invalid_blocks"},
	{"unknown block", message("hello", "blocks", `[{"type":"unknown"}]`), "invalid_blocks"},
	{"attachments not JSON", message("hello", "attachments", "{"), "invalid_attachments"},
	{"long section in an attachment", message("hello", "attachments", `[{"blocks":`+longSection+`}]`), "invalid_attachments"},
	{"blocks too long together", message("hello", "blocks", "["+five+"]"), "msg_blocks_too_long"},
}

func TestPostMessage(t *testing.T) {
	t.Parallel()
	for _, test := range postFaults {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := slacktest.New(t)
			got := testkit.Must(postForm(t, s, slacktest.MethodPost, test.message))(t)
			var answer struct {
				OK    bool   `json:"ok"`
				TS    string `json:"ts"`
				Error string `json:"error"`
			}
			testkit.NoError(t, json.Unmarshal([]byte(got.body), &answer))
			taken := test.fault == ""
			if answer.OK != taken || (answer.TS != "") != taken || answer.Error != test.fault {
				t.Errorf("answer %q, want fault %q", got.body, test.fault)
			}
			posts := s.Posts()
			if len(posts) != 1 || posts[0].Accepted != taken || posts[0].Fault != test.fault || len(s.Accepted()) == 1 != taken {
				t.Errorf("recorded %+v, want one with fault %q", posts, test.fault)
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
	if p.Channel != "#ops" || p.Text != "t" || string(p.Attachments) != attachments || p.Method != slacktest.MethodPost ||
		p.Options.Get("unfurl_links") != "false" || p.Header.Get("User-Agent") != "test/1" ||
		p.Remote == "" || p.Received.IsZero() || p.Timestamp == "" {
		t.Errorf("recorded %+v, want the members of the request", p)
	}
	if texts := p.Message.Texts(); len(texts) != 1 || texts[0].Text != "e" || p.Message.Attachments[0].Color != "#ffffff" {
		t.Errorf("parsed %+v, want one text beside a white bar", p.Message)
	}
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t, slacktest.WithWebhookSecret("first-secret"))
	tests := []struct {
		name, address, body string
		status              int
		answer              string
	}{
		{"taken", s.WebhookURL(), `{"text":"hello"}`, 200, "ok"},
		{"not JSON", s.WebhookURL(), `{`, 400, "invalid_payload"},
		{"empty", s.WebhookURL(), `{}`, 400, "no_text"},
		{"wrong secret", strings.Replace(s.WebhookURL(), "first-secret", "other-secret", 1), `{"text":"hello"}`, 404, "no_service"},
	}
	for _, test := range tests {
		got := testkit.Must(post(t, test.address, "application/json", test.body))(t)
		if got.status != test.status || got.body != test.answer {
			t.Errorf("%s: got %d %q, want %d %q", test.name, got.status, got.body, test.status, test.answer)
		}
	}
	testkit.Equal(t, len(s.Accepted()), 1, "accepted posts")
	testkit.Equal(t, s.Calls("webhook"), len(tests), "calls")
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
		{"lost", slacktest.Stored(slacktest.Reset()), true, 0, "", true},
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
	testkit.Equal(t, elsewhere.Calls("chat.postMessage"), 0, "times that the redirect was followed")
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
	testkit.Equal(t, len(s.Accepted()), 1, "accepted posts before the release of the held one")
	close(release)
	testkit.NoError(t, <-done)
	testkit.NoError(t, s.Await(t.Context(), 2))
	if err := s.Await(testkit.Ended(t), 3); !errors.Is(err, context.Canceled) {
		t.Errorf("Await returned %v, want context.Canceled", err)
	}
}

func TestCloseEndsHeldRequests(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	s := slacktest.New(t)
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
		t.Error("got an answer to the held request, want none")
	}
}

func TestResetConnections(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t)
	s.ResetConnections(2)
	for i := range 3 {
		_, err := postForm(t, s, "chat.postMessage", message("hello"))
		testkit.Equal(t, err != nil, i < 2, "whether the request %d fails (%v)", i, err)
	}
	testkit.Equal(t, len(s.Posts()), 1, "recorded posts")
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
		{s, "chat.unknown", "", "unknown_method"},
	}
	for _, test := range tests {
		wantAnswer(t, test.server, test.method, message("hello", "channel", test.channel), test.want)
	}
}

// postTo posts a message and returns the channel and the ts of the answer.
func postTo(t *testing.T, s *slacktest.Server, channel, thread string) (id, timestamp string) {
	t.Helper()
	got := testkit.Must(postForm(t, s, "chat.postMessage", message("hello", "channel", channel, "thread_ts", thread)))(t)
	var answer struct {
		Channel string `json:"channel"`
		TS      string `json:"ts"`
		Message struct {
			Thread string `json:"thread_ts"`
		} `json:"message"`
	}
	if err := json.Unmarshal([]byte(got.body), &answer); err != nil || answer.TS == "" {
		t.Fatalf("got the answer %q and %v, want a timestamp", got.body, err)
	}
	posts := s.Accepted()
	last := posts[len(posts)-1]
	if last.ChannelID != answer.Channel || last.Timestamp != answer.TS || last.Thread != answer.Message.Thread {
		t.Errorf("recorded channel %s, ts %s, thread %q, want those of the answer %s", last.ChannelID, last.Timestamp, last.Thread, got.body)
	}
	return answer.Channel, answer.TS
}

func TestThreads(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t)
	_, first := postTo(t, s, "#ops", "")
	expect := func(what, channel, thread, want string) {
		t.Helper()
		postTo(t, s, channel, thread)
		posts := s.Accepted()
		testkit.Equal(t, posts[len(posts)-1].Thread, want, "thread of %s", what)
	}
	expect("a reply", "#ops", first, first)
	expect("a reply in another channel", "#other", first, "")
	expect("a reply to nothing", "#ops", "1700000000.000001", "")
	s.Delete(first)
	expect("a reply to a deleted message", "#ops", first, "")
	wantAnswer(t, s, "chat.postMessage", message("hello", "thread_ts", "soon"), "invalid_thread_ts")
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	s := slacktest.New(t)
	id, ts := postTo(t, s, "#ops", "")
	_, gone := postTo(t, s, "#ops", "")
	s.Delete(gone)
	tests := []struct{ name, value, want string }{
		{"channel", id, `"ok":true`},
		{"token", "", "not_authed"},
		{"channel", "#ops", "channel_not_found"},
		{"channel", "C0000001", "message_not_found"},
		{"ts", "", "message_not_found"},
		{"ts", "1700000000.000001", "message_not_found"},
		{"ts", gone, "message_not_found"},
		{"text", "", "no_text"},
	}
	for _, test := range tests {
		wantAnswer(t, s, "chat.update", message("changed", "channel", id, "ts", ts, test.name, test.value), test.want)
	}
	updates := s.Updates()
	if len(updates) != 1 || updates[0].Channel != id || updates[0].Timestamp != ts || updates[0].Message.Text != "changed" ||
		updates[0].Received.IsZero() {
		t.Errorf("recorded %+v, want the one accepted update", updates)
	}
	testkit.Equal(t, len(s.Posts()), 2, "posts")
	testkit.Equal(t, s.Calls("chat.update"), len(tests), "calls")
}
