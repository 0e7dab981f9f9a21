package slack

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/client"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

type classified struct {
	status int
	body   string
	want   sink.Class
	code   string
}

const taken = `{"ok":true,"channel":"C1","ts":"1700000000.000100"}`

var classifiedPosts = []classified{
	{200, taken, sink.OK, ""},
	{201, taken, sink.OK, ""},
	{200, `{"ok":true,"ts":"1.1","message":{"text":"cut sho`, sink.OK, ""},
	{200, ` {"channel":"C1","ts":"1.1","warning":"w","ok":true}`, sink.OK, ""},
	{200, "", sink.Unknown, "200 OK"},
	{200, "{}", sink.Unknown, "200 OK"},
	{200, "[]", sink.Unknown, "200 OK"},
	{200, `{"ok":true}`, sink.Unknown, "200 OK"},
	{200, `{"ok":true,"ts":17}`, sink.Unknown, "200 OK"},
	{200, `{"ok":"true","ts":"1.1"}`, sink.Unknown, "200 OK"},
	{200, `{"ok":false,"error":""}`, sink.Unknown, "200 OK"},
	{200, `{"ok":false,"error":["x"]}`, sink.Unknown, "200 OK"},
	{200, `{"ok":tr`, sink.Unknown, "200 OK"},
	{204, "", sink.Unknown, "204 No Content"},
	{101, "", sink.Unknown, "101 Switching Protocols"},
	{999, "", sink.Unknown, "999"},
	{429, "", sink.RateLimited, "429 Too Many Requests"},
	{429, `{"ok":false,"error":"ratelimited"}`, sink.RateLimited, "ratelimited"},
	{400, "", sink.Rejected, "400 Bad Request"},
	{400, `{"ok":false,"error":"invalid_auth"}`, sink.Misconfigured, "invalid_auth"},
	{400, `{"ok":false,"error":"invalid_form_data"}`, sink.Rejected, "invalid_form_data"},
	{401, "", sink.Misconfigured, "401 Unauthorized"},
	{403, "<html>", sink.Misconfigured, "403 Forbidden"},
	{404, "", sink.Misconfigured, "404 Not Found"},
	{408, "", sink.Unknown, "408 Request Timeout"},
	{410, "", sink.Misconfigured, "410 Gone"},
	{413, "", sink.Rejected, "413 Request Entity Too Large"},
	{500, taken, sink.Unknown, "500 Internal Server Error"},
	{503, `{"ok":false,"error":"invalid_auth"}`, sink.Unknown, "invalid_auth"},
	{599, "", sink.Unknown, "599"},
}

// classifiedCodes are the codes of answers with status 200.
var classifiedCodes = map[sink.Class]string{
	sink.RateLimited: "ratelimited rate_limited",
	sink.Transient:   "service_unavailable team_added_to_org",
	sink.Unknown:     "internal_error fatal_error request_timeout",
	sink.Rejected:    "msg_too_long no_text invalid_blocks msg_blocks_too_long invalid_attachments an_unknown_code",
	sink.Misconfigured: "invalid_auth token_revoked account_inactive missing_scope channel_not_found not_in_channel " +
		"is_archived not_authed token_expired no_permission restricted_action restricted_action_read_only_channel " +
		"restricted_action_thread_only_channel access_denied accesslimited ekm_access_denied team_access_not_granted team_not_found " +
		"messages_tab_disabled external_channel_migrating two_factor_setup_required enterprise_is_restricted " +
		"metadata_must_be_sent_from_app deprecated_endpoint method_deprecated message_limit_exceeded",
}

// TestRefusedByOneChannel has Slack refuse a post. Only some refusals say nothing about other channels, which the worker then serves.
func TestRefusedByOneChannel(t *testing.T) {
	t.Parallel()
	ofChannel := strings.Fields("channel_not_found not_in_channel is_archived no_permission restricted_action " +
		"restricted_action_read_only_channel restricted_action_thread_only_channel ekm_access_denied team_access_not_granted team_not_found " +
		"messages_tab_disabled external_channel_migrating")
	for code := range strings.FieldsSeq(classifiedCodes[sink.Misconfigured]) {
		verdict := judgedPost(client.Reply{Status: 200, Body: []byte(`{"ok":false,"error":"` + code + `"}`)})
		testkit.Equal(t, verdict.OfChannel, slices.Contains(ofChannel, code), "%s is of the channel", code)
	}
}

// fixed answers slack-go's requests with a reply.
type fixed struct{ client.Reply }

func (f fixed) Do(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: f.Status, Status: f.Words(), Header: f.Header, Body: io.NopCloser(bytes.NewReader(f.Body)), Request: r,
	}, nil
}

// judgement classifies a reply that slack-go has read.
type judgement func(client.Reply) client.Verdict

func judgedPost(r client.Reply) client.Verdict {
	_, _, err := slack.New("xoxb-1", slack.OptionHTTPClient(fixed{r})).PostMessage("C0000001", slack.MsgOptionText("t", false))
	return judgePost(r, err, decodeAnswer(r.Body))
}

func judgedMethod(r client.Reply) client.Verdict {
	_, err := slack.New("xoxb-1", slack.OptionHTTPClient(fixed{r})).AuthTest()
	return judgeMethod(r, err)
}

func judgedWebhook(r client.Reply) client.Verdict { return judgeWebhook(r, nil) }

func TestClassifyPost(t *testing.T) {
	t.Parallel()
	tests := classifiedPosts
	statuses := map[sink.Class][2]int{sink.Misconfigured: {300, 399}, sink.Unknown: {500, 599}}
	for class, of := range statuses {
		for status := of[0]; status <= of[1]; status++ {
			tests = append(tests, classified{status, taken, class, client.Reply{Status: status}.Words()})
		}
	}
	for class, list := range classifiedCodes {
		for code := range strings.FieldsSeq(list) {
			tests = append(tests, classified{200, `{"ok":false,"error":"` + code + `"}`, class, code})
		}
	}
	wantVerdicts(t, judgedPost, tests)
}

func wantVerdicts(t *testing.T, judge judgement, tests []classified) {
	t.Helper()
	for _, test := range tests {
		got := judge(client.Reply{Status: test.status, Body: []byte(test.body)})
		testkit.Equal(t, got.Class, test.want, "%d %q: class", test.status, test.body)
		testkit.Equal(t, got.Code, test.code, "%d %q: code", test.status, test.body)
		testkit.Equal(t, got.RetryAfter > 0, test.want == sink.RateLimited, "%d %q: waits", test.status, test.body)
	}
}

func TestClassifyWebhook(t *testing.T) {
	t.Parallel()
	wantVerdicts(t, judgedWebhook, []classified{
		{200, "ok", sink.OK, ""},
		{200, "ok\n", sink.OK, ""},
		{200, `{"ok":true}`, sink.OK, ""},
		{200, "", sink.Unknown, "200 OK"},
		{200, "<html>", sink.Unknown, "200 OK"},
		{200, "{}", sink.Unknown, "200 OK"},
		{200, `{"ok":false,"error":"internal_error"}`, sink.Unknown, "internal_error"},
		{400, "invalid_payload", sink.Rejected, "invalid_payload"},
		{400, "", sink.Rejected, "400 Bad Request"},
		{400, "<html>", sink.Rejected, "400 Bad Request"},
		{400, `{"ok":false,"error":"invalid_workflow"}`, sink.Rejected, "invalid_workflow"},
		{403, "action_prohibited", sink.Misconfigured, "action_prohibited"},
		{418, "first line\nsecond line", sink.Rejected, "first line"},
		{429, "rate_limited", sink.RateLimited, "rate_limited"},
		{500, "rollup_error", sink.Unknown, "rollup_error"},
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
		testkit.Equal(t, judgedPost(client.Reply{Status: 200, Body: []byte(test.body)}).Detail, test.want, "%s", test.body)
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
		r := client.Reply{Status: status, Header: http.Header{"Retry-After": {retry}}, Body: body}
		for _, judge := range []judgement{judgedPost, judgedMethod, judgedWebhook} {
			got := judge(r)
			testkit.Equal(t, slices.Contains(sink.Classes(), got.Class), true, "the class %q is known", got.Class)
			if got.Class == sink.OK && (status < 200 || status > 299) {
				t.Errorf("got ok for the status %d, want another class", status)
			}
			if got.Class != sink.OK && got.Code == "" {
				t.Error("got no code, want one")
			}
			limited := got.Class == sink.RateLimited
			if limited && (got.RetryAfter < time.Second || got.RetryAfter > time.Hour) || !limited && got.RetryAfter != 0 {
				t.Errorf("%s: got a wait of %v, want one within the bounds for a limit, else none", got.Class, got.RetryAfter)
			}
		}
		if got := judgedPost(r); got.Class == sink.OK && decodeAnswer(body).ts == "" {
			t.Error("got ok for a post without a timestamp")
		}
	})
}
