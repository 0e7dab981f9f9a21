package slack

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Canaries are secrets. No error may contain one.
const (
	canaryToken   = "xoxb-canary-token-1234567890"
	canaryWebhook = "canaryWEBHOOKsecret42"
	canaryPath    = "/services/T00000000/B00000000/" + canaryWebhook
)

// wantNoCanary fails if err or an error that it wraps contains a canary.
func wantNoCanary(t *testing.T, what string, err error) {
	t.Helper()
	for _, value := range chain(err) {
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			text := fmt.Sprintf(format, value)
			testkit.Lacks(t, what+", "+format, text, canaryToken, canaryWebhook, "/T00000000/")
		}
	}
}

func chain(err error) []any {
	if err == nil {
		return nil
	}
	found := []any{err}
	switch wrapper := err.(type) { //nolint:errorlint // walks the chain itself
	case interface{ Unwrap() error }:
		found = append(found, chain(wrapper.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, inner := range wrapper.Unwrap() {
			found = append(found, chain(inner)...)
		}
	}
	return found
}

// repeating are answers that contain a secret of the request.
func repeating(secret, echo string) map[string]slacktest.Answer {
	return map[string]slacktest.Answer{
		"rate limited": slacktest.Reply(429, http.Header{"Retry-After": {secret}}, echo),
		"transient":    slacktest.Status(500, echo),
		"rejected":     slacktest.Status(400, echo),
		"setup":        slacktest.Status(403, echo),
		"not found":    slacktest.Status(404, echo),
		"code":         slacktest.Status(200, `{"ok":false,"error":"`+echo+`","needed":"`+echo+`"}`),
		"late code":    slacktest.Status(200, `{"ok":false,"error":"`+strings.Repeat("x", 90)+" "+echo+`"}`),
		"hint":         slacktest.Status(200, `{"ok":false,"error":"x","response_metadata":{"messages":["`+echo+`"]}}`),
		"not Slack's":  slacktest.Status(200, echo),
		"redirect":     slacktest.Redirect(secret),
		"bad redirect": slacktest.Redirect("http://[" + secret),
		"reset":        slacktest.Reset(),
		"broken off":   slacktest.Truncated(5000, echo),
		"bad header":   slacktest.Reply(200, http.Header{"Transfer-Encoding": {secret}}, ""),
	}
}

func TestNoSecretInErrors(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t, slacktest.WithToken(canaryToken), slacktest.WithWebhookSecret(canaryWebhook))
	token := byToken(server)
	token.Token = canaryToken
	receipt := fire(t, newTestSlack(t, token))
	for echo, options := range map[string]Options{
		"token " + canaryToken + " again" + canaryToken:                                  token,
		"hook " + server.WebhookURL() + " path " + canaryPath + " last " + canaryWebhook: byWebhook(server),
	} {
		s := newTestSlack(t, options)
		for name, answer := range repeating(strings.Fields(echo)[1], echo) {
			server.Respond(func(slacktest.Post) slacktest.Answer { return answer })
			wantNoCanary(t, name+", post", failureOf(t, send(t.Context(), s, hello)))
			wantNoCanary(t, name+", summary", failureOf(t, s.SendSummary(t.Context(), summary.Digest{Channel: "C0000001"})))
			_, err := s.Send(t.Context(), resolved(receipt))
			wantNoCanary(t, name+", resolved", failureOf(t, err))
		}
		server.Respond(held)
		options.Timeout = 50 * time.Millisecond
		wantNoCanary(t, "held", failureOf(t, send(t.Context(), newTestSlack(t, options), hello)))
	}
}

func TestNoSecretInErrorsOfTheNetwork(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t, slacktest.WithWebhookSecret(canaryWebhook))
	gone := slacktest.New(t, slacktest.WithWebhookSecret(canaryWebhook))
	gone.Close()
	for _, test := range []struct {
		name    string
		ctx     context.Context
		options Options
	}{
		{"refused, token", t.Context(), Options{
			Token: canaryToken, Channel: "C1", APIURL: gone.APIURL(), Mentions: mentioned(t, "payments", "oncall"),
		}},
		{"refused, webhook", t.Context(), Options{WebhookURL: gone.WebhookURL()}},
		{"refused, password", t.Context(), Options{WebhookURL: "http://user:" + canaryWebhook + "@" + gone.Address()}},
		{"TLS", t.Context(), Options{WebhookURL: strings.Replace(server.WebhookURL(), "http://", "https://", 1)}},
		{"no such host", t.Context(), Options{WebhookURL: "http://host.invalid" + canaryPath}},
		{"no such port", t.Context(), Options{WebhookURL: "http://127.0.0.1:99999" + canaryPath}},
		{"cancelled", testkit.Ended(t), Options{WebhookURL: server.WebhookURL()}},
	} {
		test.options.MentionFailed = func(handle string, err error) { wantNoCanary(t, test.name+", mention of "+handle, err) }
		s := newTestSlack(t, test.options)
		failure := failureOf(t, send(test.ctx, s, hello))
		testkit.Equal(t, failure.Class, sink.Transient, "%s: %v", test.name, failure)
		wantNoCanary(t, test.name, failure)
		s.Mention(hello)
		for _, problem := range s.Check(test.ctx) {
			wantNoCanary(t, test.name+", check", problem.Err)
		}
	}
}

func TestNoSecretInErrorsOfMentions(t *testing.T) {
	t.Parallel()
	failures := 0
	o := answeredBy(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"ok":false,"error":"`+r.FormValue("token")+`","needed":"`+r.FormValue("token")+`"}`)
	})
	o.Token, o.Mentions = canaryToken, mentioned(t, "payments", "oncall")
	o.MentionFailed = func(_ string, err error) {
		failures++
		wantNoCanary(t, "mention", err)
	}
	s := newTestSlack(t, o)
	s.Mention(hello)
	testkit.Equal(t, failures, 1, "failed mentions")
	for _, problem := range s.mentions.check(t.Context()) {
		wantNoCanary(t, "check of a mention", problem.Err)
	}
}
