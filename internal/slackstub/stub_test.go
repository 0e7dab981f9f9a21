package slackstub

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T) *slacktest.Server {
	t.Helper()
	s := testkit.Must(Listen("127.0.0.1:0"))(t)
	t.Cleanup(s.Close)
	return s
}

// answer is what the server answered.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request to the server, with another Host header unless that is "".
func do(t *testing.T, s *slacktest.Server, method, path, host, form string) answer {
	t.Helper()
	request := testkit.Must(http.NewRequestWithContext(t.Context(), method, "http://"+s.Address()+path, strings.NewReader(form)))(t)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Host = host
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	testkit.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text := testkit.Must(io.ReadAll(response.Body))(t)
	return answer{response.StatusCode, response.Header, string(text)}
}

// call calls a method of the Web API, and returns the answer.
func call(t *testing.T, s *slacktest.Server, method string, pairs ...string) string {
	t.Helper()
	form := url.Values{"token": {Token}, "channel": {"C0000001"}}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return do(t, s, http.MethodPost, "/api/"+method, "", form.Encode()).body
}

func page(t *testing.T, s *slacktest.Server) string {
	t.Helper()
	return do(t, s, http.MethodGet, "/", "", "").body
}

// TestPage posts a message with every kind of text, updates it, replies to it, and posts what is refused.
func TestPage(t *testing.T) {
	t.Parallel()
	s := start(t)
	testkit.Contains(t, "the page", page(t, s), "No message yet.")
	call(t, s, slacktest.MethodPost, "text", "f", "blocks", `[{"type":"header","text":{"type":"plain_text","text":"card &amp; declined"}}]`, "attachments",
		`[{"color":"#dc2626","blocks":[{"type":"section","text":{"type":"mrkdwn","text":"body"},"fields":[{"type":"mrkdwn","text":"order 4711"}]},{"type":"context","elements":[{"type":"plain_text","text":"id order-4711"}]}]}]`)
	ts := s.Accepted()[0].Timestamp
	call(t, s, slacktest.MethodPost, "text", "a reply of <!date^1767348121^{time}|10:02 UTC>", "thread_ts", ts)
	call(t, s, slacktest.MethodPost, "text", "newest", "channel", "#deploys")
	call(t, s, slacktest.MethodPost, "text", "never shown as taken", "token", "xoxb-other")
	shown := page(t, s)
	testkit.Contains(t, "the page", shown, "3 messages, 1 refused posts", "<b>C0000001</b>", `<p class="header">card &amp; declined</p>`, `fill="#dc2626"`,
		`<p class="section">body</p>`, `<p class="field">order 4711</p>`, `<p class="context">id order-4711</p>`, "a reply of 10:02 UTC<", "refused: invalid_auth")
	testkit.Check(t, strings.Index(shown, "newest") <= strings.Index(shown, "declined") && strings.Index(shown, "a reply") >= strings.Index(shown, "declined"),
		"the newest message does not come first, or a reply before its message:\n%s", shown)
	testkit.Contains(t, "answer", call(t, s, slacktest.MethodUpdate, "ts", ts, "text", "it has ended"), `"ok":true`)
	shown = page(t, s)
	testkit.Contains(t, "the page", shown, "it has ended", ", updated ")
	testkit.Lacks(t, "page", shown, "declined")
}

// TestPageEscapes wants nothing of a message to become markup, and no script to be allowed.
func TestPageEscapes(t *testing.T) {
	t.Parallel()
	s := start(t)
	call(t, s, slacktest.MethodPost, "text", "<script>alert(1)</script> &lt;img src=x onerror=alert(1)&gt;", "channel", `"><b id=x>`)
	call(t, s, slacktest.MethodPost, "text", "t", "attachments", `[{"color":"red\" onload=\"alert(1)","blocks":[{"type":"section","text":{"type":"mrkdwn","text":"<i>"}}]}]`)
	shown := page(t, s)
	testkit.Lacks(t, "page", shown, "<script", "<img", "<b id", "onload", "<i>")
	testkit.Contains(t, "the page", shown, "&lt;img src=x")
	for path, status := range map[string]int{"/": 200, "/messages.css": 200, "/elsewhere": 404} {
		got := do(t, s, http.MethodGet, path, "", "")
		testkit.Equal(t, got.status, status, "status of %s", path)
		testkit.Equal(t, got.header.Get("Content-Security-Policy"), policy, "policy of %s", path)
	}
}

// TestPageIsReadOnlyAndLocal wants other methods and other names of the host refused.
func TestPageIsReadOnlyAndLocal(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		testkit.Equal(t, do(t, s, method, "/", "", "").status, http.StatusMethodNotAllowed, "status of %s", method)
	}
	for host, status := range map[string]int{"localhost:8085": 200, "[::1]:8085": 200, "rebound.example": 403} {
		testkit.Equal(t, do(t, s, http.MethodGet, "/", host, "").status, status, "status for the host %s", host)
	}
}

// TestMemoryIsBounded posts more messages than are kept. All of them count.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	s := start(t)
	call(t, s, slacktest.MethodPost, "text", "refused", "token", "xoxb-other")
	for range memory + 3 {
		call(t, s, slacktest.MethodPost, "text", "again")
	}
	testkit.Equal(t, len(s.Posts()), memory, "posts that are kept")
	testkit.Contains(t, "the page", page(t, s), "503 messages, 1 refused posts, the newest first, without the oldest 4.")
}

func TestAddressIsTaken(t *testing.T) {
	t.Parallel()
	if other, err := Listen(start(t).Address()); err == nil {
		other.Close()
		t.Error("got a second server on an address, want an error")
	}
}
