package sink

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

type classified struct {
	status int
	body   string
	want   Class
	code   string
}

const taken = `{"ok":true,"channel":"C1","ts":"1700000000.000100"}`

var classifiedPosts = []classified{
	{200, taken, OK, ""},
	{201, taken, OK, ""},
	{200, `{"ok":true,"ts":"1.1","message":{"text":"cut sho`, OK, ""},
	{200, ` {"channel":"C1","ts":"1.1","warning":"w","ok":true}`, OK, ""},
	{200, "", Unknown, "200 OK"},
	{200, "{}", Unknown, "200 OK"},
	{200, "[]", Unknown, "200 OK"},
	{200, `{"ok":true}`, Unknown, "200 OK"},
	{200, `{"ok":true,"ts":17}`, Unknown, "200 OK"},
	{200, `{"ok":"true","ts":"1.1"}`, Unknown, "200 OK"},
	{200, `{"ok":false,"error":""}`, Unknown, "200 OK"},
	{200, `{"ok":false,"error":["x"]}`, Unknown, "200 OK"},
	{200, `{"ok":tr`, Unknown, "200 OK"},
	{204, "", Unknown, "204 No Content"},
	{101, "", Unknown, "101 Switching Protocols"},
	{999, "", Unknown, "999"},
	{429, "", RateLimited, "429 Too Many Requests"},
	{429, `{"ok":false,"error":"ratelimited"}`, RateLimited, "ratelimited"},
	{400, "", Rejected, "400 Bad Request"},
	{400, `{"ok":false,"error":"invalid_auth"}`, Misconfigured, "invalid_auth"},
	{400, `{"ok":false,"error":"invalid_form_data"}`, Rejected, "invalid_form_data"},
	{401, "", Misconfigured, "401 Unauthorized"},
	{403, "<html>", Misconfigured, "403 Forbidden"},
	{404, "", Misconfigured, "404 Not Found"},
	{408, "", Transient, "408 Request Timeout"},
	{410, "", Misconfigured, "410 Gone"},
	{413, "", Rejected, "413 Request Entity Too Large"},
	{500, taken, Transient, "500 Internal Server Error"},
	{503, `{"ok":false,"error":"invalid_auth"}`, Transient, "invalid_auth"},
	{599, "", Transient, "599"},
}

// classifiedCodes are the codes of answers with status 200.
var classifiedCodes = map[Class]string{
	RateLimited: "ratelimited rate_limited",
	Transient:   "service_unavailable internal_error fatal_error request_timeout",
	Rejected:    "msg_too_long no_text invalid_blocks msg_blocks_too_long invalid_attachments an_unknown_code",
	Misconfigured: "invalid_auth token_revoked account_inactive missing_scope channel_not_found not_in_channel " +
		"is_archived not_authed token_expired",
}

func TestClassifyPost(t *testing.T) {
	t.Parallel()
	tests := classifiedPosts
	for _, status := range []int{300, 301, 302, 303, 304, 307, 308} {
		tests = append(tests, classified{status, taken, Misconfigured, fmt.Sprintf("%d %s", status, http.StatusText(status))})
	}
	for class, list := range classifiedCodes {
		for code := range strings.FieldsSeq(list) {
			tests = append(tests, classified{200, `{"ok":false,"error":"` + code + `"}`, class, code})
		}
	}
	wantVerdicts(t, classifyPost, tests)
}

func wantVerdicts(t *testing.T, classify func(reply) verdict, tests []classified) {
	t.Helper()
	for _, test := range tests {
		got := classify(reply{status: test.status, body: []byte(test.body)})
		if got.class != test.want || got.code != test.code {
			t.Errorf("%d %q: got %s %q, want %s %q", test.status, test.body, got.class, got.code, test.want, test.code)
		}
		testkit.Equal(t, got.retryAfter > 0, test.want == RateLimited, "%d %q: waits", test.status, test.body)
	}
}

func TestClassifyWebhook(t *testing.T) {
	t.Parallel()
	wantVerdicts(t, classifyWebhook, []classified{
		{200, "ok", OK, ""},
		{200, "ok\n", OK, ""},
		{200, `{"ok":true}`, OK, ""},
		{200, "", Unknown, "200 OK"},
		{200, "<html>", Unknown, "200 OK"},
		{200, "{}", Unknown, "200 OK"},
		{200, `{"ok":false,"error":"internal_error"}`, Transient, "internal_error"},
		{400, "invalid_payload", Rejected, "invalid_payload"},
		{400, "", Rejected, "400 Bad Request"},
		{400, "<html>", Rejected, "400 Bad Request"},
		{400, `{"ok":false,"error":"invalid_workflow"}`, Rejected, "invalid_workflow"},
		{403, "action_prohibited", Misconfigured, "action_prohibited"},
		{418, "first line\nsecond line", Rejected, "first line"},
		{429, "rate_limited", RateLimited, "rate_limited"},
		{500, "rollup_error", Transient, "rollup_error"},
	})
}

func TestClassifyExplains(t *testing.T) {
	t.Parallel()
	tests := []struct{ body, want string }{
		{`{"ok":false,"error":"missing_scope","needed":"chat:write","provided":"users:read"}`, "the token lacks the scope chat:write"},
		{`{"ok":false,"error":"invalid_blocks","response_metadata":{"messages":["[ERROR] too long"]}}`, "[ERROR] too long"},
		{`{"ok":false,"error":"invalid_blocks","response_metadata":"odd"}`, ""},
	}
	for _, test := range tests {
		testkit.Equal(t, classifyPost(reply{status: 200, body: []byte(test.body)}).detail, test.want, "%s", test.body)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	tests := []struct {
		header string
		want   time.Duration
	}{
		{"", time.Second},
		{"1", time.Second},
		{" 30 ", 30 * time.Second},
		{"3600", time.Hour},
		{"3601", time.Hour},
		{"99999999999999999999999", time.Hour},
		{"-5", time.Second},
		{"1.5", time.Second},
		{"soon", time.Second},
		{"Wed, 21 Oct 2065 07:28:00 GMT", time.Second},
	}
	for _, test := range tests {
		header := http.Header{}
		if test.header != "" {
			header.Set("Retry-After", test.header)
		}
		testkit.Equal(t, retryAfter(header), test.want, "%q", test.header)
	}
}

func FuzzReply(f *testing.F) {
	for _, body := range []string{
		`{"ok":true,"ts":"1.1"}`, `{"ok":false,"error":"ratelimited"}`, `{"ok":true}`, "{}", "", "ok", "<html>",
		`{"ok":false,"error":"x","response_metadata":{"messages":["m"]},"needed":"s"}`, `{"ok":true,"ts":"1.1"`, "\x00\xff",
		`{"ok":false,"error":"` + "\n\u202e" + strings.Repeat("é", 30) + `"}`, strings.Repeat(`{"a":`, 20),
	} {
		for _, status := range []int{200, 302, 400, 404, 429, 503} {
			f.Add(status, "7", []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, status int, retry string, body []byte) {
		r := reply{status: status, header: http.Header{"Retry-After": {retry}}, body: body}
		for _, classify := range []func(reply) verdict{classifyPost, classifyMethod, classifyWebhook} {
			got := classify(r)
			if !slices.Contains(Classes(), got.class) {
				t.Errorf("got the class %q, want a known one", got.class)
			}
			if got.class == OK && (status < 200 || status > 299) {
				t.Errorf("got ok for the status %d, want another class", status)
			}
			if got.class != OK && got.code == "" {
				t.Error("got no code, want one")
			}
			limited := got.class == RateLimited
			if limited && (got.retryAfter < minRetryAfter || got.retryAfter > maxRetryAfter) || !limited && got.retryAfter != 0 {
				t.Errorf("%s: got a wait of %v, want one within the bounds for a limit, else none", got.class, got.retryAfter)
			}
		}
		if got := classifyPost(r); got.class == OK && decodeAnswer(body).ts == "" {
			t.Error("got ok for a post without a timestamp")
		}
	})
}
