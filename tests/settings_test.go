package tests

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// canary is in every secret that these tests set, and may be in no output.
const canary = "canary-4711"

// valid are settings without a fault; no server behind them answers.
func valid() settings {
	return settings{
		"NATS_URL": "nats://user:" + canary + "-nats@127.0.0.1:1", "REDIS_URL": "redis://:" + canary + "-redis@127.0.0.1:1/0",
		"SLACK_TOKEN": "xoxb-" + canary + "-slack", "SLACK_CHANNEL": "#alerts", "HTTP_ADDR": "off",
	}
}

func wantNoCanary(t testing.TB, what, text string) {
	t.Helper()
	if strings.Contains(text, canary) {
		t.Errorf("%s holds a secret:\n%s", what, text)
	}
}

func TestBadSettings(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	testkit.NoError(t, os.WriteFile(empty, nil, 0o600))
	blanks := filepath.Join(t.TempDir(), "blanks")
	testkit.NoError(t, os.WriteFile(blanks, []byte("  \n"), 0o600))
	secret := filepath.Join(t.TempDir(), "secret")
	testkit.NoError(t, os.WriteFile(secret, []byte(canary+"\n"), 0o600))
	webhook := "https://hooks.slack.com/services/T0/B0/" + canary
	for _, test := range []struct {
		changes []string // name, value, …
		want    string   // the variable named, without the prefix
		detail  string   // what else the line has to say
	}{
		{[]string{"NATS_URL", "http://" + canary}, "NATS_URL", "(hidden)"},
		{[]string{"NATS_URL", "nats://a:" + canary + "@b:99999"}, "NATS_URL", "(hidden)"},
		{[]string{"NATS_CREDS_FILE", "/nonexistent"}, "NATS_CREDS_FILE", "/nonexistent"},
		{[]string{"NATS_PASSWORD", canary}, "NATS_USER", "NOTIFIER_NATS_PASSWORD"},
		{[]string{"NATS_TOKEN", canary, "NATS_USER", "u"}, "NATS_TOKEN", "NOTIFIER_NATS_USER"},
		{[]string{"NATS_TLS_CA_FILE", "/nonexistent"}, "NATS_TLS_CA_FILE", ""},
		{[]string{"NATS_TLS_CERT_FILE", secret}, "NATS_TLS_KEY_FILE", "NOTIFIER_NATS_TLS_CERT_FILE"},
		{[]string{"REDIS_TLS_KEY_FILE", secret}, "REDIS_TLS_CERT_FILE", "NOTIFIER_REDIS_TLS_KEY_FILE"},
		{[]string{"NATS_STREAM", "a b"}, "NATS_STREAM", "a b"},
		{[]string{"NATS_STREAM", "a.b"}, "NATS_STREAM", "a.b"},
		{[]string{"NATS_SUBJECT", "notify.>"}, "NATS_SUBJECT", "notify.>"},
		{[]string{"NATS_SUBJECT", ".notify"}, "NATS_SUBJECT", ""},
		{[]string{"NATS_CONSUMER", "a*"}, "NATS_CONSUMER", "a*"},
		{[]string{"NATS_PROVISION", "perhaps"}, "NATS_PROVISION", "perhaps"},
		{[]string{"NATS_ACK_WAIT", "30"}, "NATS_ACK_WAIT", "30"},
		{[]string{"NATS_ACK_WAIT", "-1s"}, "NATS_ACK_WAIT", "-1s"},
		{[]string{"NATS_ACK_WAIT", "11s"}, "NATS_ACK_WAIT", "NOTIFIER_SLACK_TIMEOUT"},
		{[]string{"DLQ_STREAM", "NOTIFICATIONS"}, "DLQ_STREAM", "NOTIFIER_NATS_STREAM"},
		{[]string{"DLQ_SUBJECT", "notify.dead"}, "DLQ_SUBJECT", "NOTIFIER_NATS_SUBJECT"},
		{[]string{"REDIS_URL", "http://:" + canary + "@x"}, "REDIS_URL", "(hidden)"},
		{[]string{"REDIS_URL", "redis://:" + canary + "@x/db"}, "REDIS_URL", "(hidden)"},
		{[]string{"REDIS_PREFIX", "a{b}"}, "REDIS_PREFIX", "a{b}"},
		{[]string{"REDIS_PREFIX", "a b"}, "REDIS_PREFIX", "a b"},
		{[]string{"REDIS_TIMEOUT", "0"}, "REDIS_TIMEOUT", ""},
		{[]string{"REDIS_FAILURE", "panic"}, "REDIS_FAILURE", "hold"},
		{[]string{"REDIS_GRACE", "-1s"}, "REDIS_GRACE", ""},
		{[]string{"GLOBAL_LIMIT", "100"}, "GLOBAL_LIMIT", "100"},
		{[]string{"GLOBAL_LIMIT", "-1/30m"}, "GLOBAL_LIMIT", ""},
		{[]string{"GLOBAL_LIMIT", "10000001/30m"}, "GLOBAL_LIMIT", ""},
		{[]string{"GLOBAL_LIMIT", "1/0s"}, "GLOBAL_LIMIT", ""},
		{[]string{"GLOBAL_LIMIT", "1/367d"}, "GLOBAL_LIMIT", ""},
		{[]string{"CATEGORY_LIMIT", "ten/30m"}, "CATEGORY_LIMIT", "ten/30m"},
		{[]string{"CATEGORY_LIMIT", "10/30m+none"}, "CATEGORY_LIMIT", ""},
		{[]string{"LIMITS", "payments"}, "LIMITS", "payments"},
		{[]string{"LIMITS", "payments=10/fortnight"}, "LIMITS", "fortnight"},
		{[]string{"LIMITS", "Payments=10/1h"}, "LIMITS", ""},
		{[]string{"LIMITS", "a=1/1h,b=2/1h,a=3/1h"}, "LIMITS", "a"},
		{[]string{"LIMITS", "global=1/1h"}, "LIMITS", "NOTIFIER_GLOBAL_LIMIT"},
		{[]string{"LIMITS", "category=1/1h"}, "LIMITS", "NOTIFIER_CATEGORY_LIMIT"},
		{[]string{"LIMITS", "*=1/1h"}, "LIMITS", "NOTIFIER_CATEGORY_LIMIT"},
		{[]string{"LIMITS", "pay*=1/1h"}, "LIMITS", "pay*"},
		{[]string{"DENY_CACHE_TTL", "-1s"}, "DENY_CACHE_TTL", ""},
		{[]string{"SHADOW", "maybe"}, "SHADOW", "maybe"},
		{[]string{"SINK", "email"}, "SINK", "email"},
		{[]string{"SLACK_TOKEN", "", "SLACK_CHANNEL", ""}, "SINK", "NOTIFIER_SLACK_TOKEN"},
		{[]string{"SLACK_TOKEN", "", "SINK", "slack"}, "SINK", "NOTIFIER_SLACK_TOKEN"},
		{[]string{"SLACK_CHANNEL", ""}, "SLACK_CHANNEL", "NOTIFIER_SLACK_TOKEN"},
		{[]string{"SLACK_WEBHOOK_URL", webhook}, "SLACK_WEBHOOK_URL", "NOTIFIER_SLACK_TOKEN"},
		{[]string{"SLACK_TOKEN", "", "SLACK_WEBHOOK_URL", "ftp://" + canary}, "SLACK_WEBHOOK_URL", "(hidden)"},
		{[]string{"SLACK_ROUTES", "payments"}, "SLACK_ROUTES", "payments"},
		{[]string{"SLACK_ROUTES", "a=#x,a=#y"}, "SLACK_ROUTES", "a"},
		{[]string{"SLACK_API_URL", "slack.com"}, "SLACK_API_URL", "slack.com"},
		{[]string{"SLACK_TIMEOUT", "soon"}, "SLACK_TIMEOUT", "soon"},
		{[]string{"EVENT_MAX_AGE", "-1h"}, "EVENT_MAX_AGE", ""},
		{[]string{"EVENT_MAX_BYTES", "0"}, "EVENT_MAX_BYTES", ""},
		{[]string{"EVENT_MAX_BYTES", "256k"}, "EVENT_MAX_BYTES", "256k"},
		{[]string{"CONCURRENCY", "0"}, "CONCURRENCY", ""},
		{[]string{"CONCURRENCY", "many"}, "CONCURRENCY", "many"},
		{[]string{"HTTP_ADDR", "8080"}, "HTTP_ADDR", "8080"},
		{[]string{"LOG_LEVEL", "loud"}, "LOG_LEVEL", "loud"},
		{[]string{"LOG_FORMAT", "xml"}, "LOG_FORMAT", "xml"},
		{[]string{"SHUTDOWN_TIMEOUT", "0"}, "SHUTDOWN_TIMEOUT", ""},
		{[]string{"METRICS_MAX_CATEGORIES", "-1"}, "METRICS_MAX_CATEGORIES", ""},
		{[]string{"SLACK_TOKEN_FILE", secret}, "SLACK_TOKEN_FILE", "NOTIFIER_SLACK_TOKEN"},
		{[]string{"SLACK_TOKEN", "", "SLACK_TOKEN_FILE", "/nonexistent"}, "SLACK_TOKEN_FILE", "/nonexistent"},
		{[]string{"SLACK_TOKEN", "", "SLACK_TOKEN_FILE", filepath.Dir(secret)}, "SLACK_TOKEN_FILE", ""},
		{[]string{"REDIS_PASSWORD_FILE", empty}, "REDIS_PASSWORD_FILE", "empty"},
		{[]string{"REDIS_URL", "", "REDIS_URL_FILE", blanks}, "REDIS_URL_FILE", "nothing but blanks"},
		{[]string{"GLOBAL_LIMTI", "1/1h"}, "GLOBAL_LIMTI", "NOTIFIER_GLOBAL_LIMIT"},
		{[]string{"SLAKC_TOKEN", canary}, "SLAKC_TOKEN", "NOTIFIER_SLACK_TOKEN"},
		{[]string{"HTTP_PORT", "8080"}, "HTTP_PORT", "NOTIFIER_HTTP_ADDR"},
	} {
		t.Run(strings.Join(test.changes, " "), func(t *testing.T) {
			t.Parallel()
			p := run(t, valid().with(test.changes...), "check", "--offline")
			testkit.Equal(t, p.wait(), 2, "status")
			lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
			if len(lines) != 1 || !strings.HasPrefix(lines[0], "NOTIFIER_"+test.want) || !strings.Contains(lines[0], test.detail) {
				t.Errorf("printed %q, want one line on NOTIFIER_%s that says %q", lines, test.want, test.detail)
			}
			wantNoCanary(t, "the output", p.all())
		})
	}
}

// TestAllFaultsAtOnce has every command that reads settings name each of several faults on a line of its own.
func TestAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	bad := valid().with("GLOBAL_LIMIT", "many", "REDIS_URL", "http://"+canary, "NATS_ACK_WAIT", "x", "CONCURENCY", canary, "SLACK_CHANNEL", "")
	for _, arguments := range [][]string{{}, {"run"}, {"dev"}, {"check"}, {"publish", "errors", "text"}, {"health"}} {
		t.Run(strings.Join(arguments, " "), func(t *testing.T) {
			t.Parallel()
			p := run(t, bad, arguments...)
			testkit.Equal(t, p.wait(), 2, "status")
			lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
			for _, name := range []string{"GLOBAL_LIMIT", "REDIS_URL", "NATS_ACK_WAIT", "CONCURENCY", "SLACK_CHANNEL"} {
				found := 0
				for _, line := range lines {
					if strings.HasPrefix(line, "NOTIFIER_"+name) {
						found++
					}
				}
				if found != 1 {
					t.Errorf("NOTIFIER_%s is named on %d lines, want one of: %q", name, found, lines)
				}
			}
			if len(lines) != 5 || p.stdout.String() != "" {
				t.Errorf("printed %q, want five lines on standard error", p.all())
			}
			wantNoCanary(t, "the output", p.all())
		})
	}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, arguments := range [][]string{
		{"walk"}, {"run", "fast"}, {"--verbose"}, {"check", "--online"}, {"dev", "--storm", "-1"}, {"dev", "--storm", "many"},
		{"publish"}, {"publish", "errors"}, {"publish", "Errors!", "text"}, {"publish", "errors", "a", "b"}, {"publish", "--count", "0", "errors", "text"},
		{"publish", "--stdin", "a", "b"}, {"publish", "--severity", "odd", "errors", "text"}, {"version", "now"},
	} {
		t.Run(strings.Join(arguments, " "), func(t *testing.T) {
			t.Parallel()
			p := run(t, valid(), arguments...)
			if status := p.wait(); status != 2 || p.stderr.String() == "" || p.stdout.String() != "" {
				t.Errorf("status %d, printed %q; want 2 and a line on standard error", status, p.all())
			}
		})
	}
}

// TestVariablesThatAreNotSettings keeps what Kubernetes injects, and what is empty, from being faults.
func TestVariablesThatAreNotSettings(t *testing.T) {
	t.Parallel()
	p := run(t, valid().with("SERVICE_HOST", "10.0.0.1", "SERVICE_PORT", "80", "PORT", "tcp://10.0.0.1:80", "PORT_80_TCP_ADDR", "10.0.0.1",
		"SERVICE_PORT_HTTP", "80", "GLOBAL_LIMIT", "", "CONCURRENCY", ""), "check", "--offline")
	if status := p.wait(); status != 0 || !strings.Contains(p.stdout.String(), "100/30m") {
		t.Errorf("status %d, printed %q; want 0 and the default limits", status, p.all())
	}
}

// TestSecretsStaySecret lets workers fail at servers that are down, or that refuse them, or that answer oddly, with everything
// logged, and looks for the secrets wherever something is said.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	guarded := servertest.StartNATS(t, func(o *server.Options) { o.Username, o.Password = "user", "another" })
	locked := servertest.StartRedis(t, "--requirepass", "another")
	open := newDeployment(t)
	slack := slacktest.New(t, slacktest.WithToken("xoxb-"+canary+"-slack"), slacktest.WithWebhookSecret(canary+"-webhook"))
	slack.Respond(func(post slacktest.Post) slacktest.Answer {
		return slacktest.Status(http.StatusInternalServerError, "your token was "+post.Header.Get("Authorization"))
	})
	refusing := slacktest.New(t, slacktest.WithToken("xoxb-another"))
	withNATS := func(n *servertest.NATS) string { return strings.Replace(n.URL, "://", "://user:"+canary+"-nats@", 1) }
	secretURL := strings.Replace(locked.URL(), "://", "://:"+canary+"-redis@", 1)
	token := "xoxb-" + canary + "-slack"
	for _, test := range []struct {
		name    string
		changes []string
		meets   string // what the log has to mention, as proof that the failure was met
		posts   bool
	}{
		{"servers down", []string{"NATS_URL", "nats://user:" + canary + "@127.0.0.1:1", "REDIS_URL", "redis://:" + canary + "@127.0.0.1:1"}, "nats cannot be reached", false},
		{"nats refuses", []string{"NATS_URL", withNATS(guarded)}, "uthorization", false},
		{"nats refuses a password", []string{"NATS_URL", guarded.URL, "NATS_USER", "user", "NATS_PASSWORD", canary}, "uthorization", false},
		{"nats refuses a token", []string{"NATS_URL", guarded.URL, "NATS_TOKEN", canary}, "uthorization", false},
		{"redis refuses", []string{"REDIS_URL", secretURL}, "redis refuses this worker", false},
		{"redis refuses a password", []string{"REDIS_URL", locked.URL(), "REDIS_PASSWORD", canary}, "redis refuses this worker", false},
		{"slack fails", []string{"SLACK_TOKEN", token, "SLACK_API_URL", slack.APIURL()}, "deliveries fail", true},
		{"slack refuses", []string{"SLACK_TOKEN", token, "SLACK_API_URL", refusing.APIURL()}, "misconfigured", true},
		{"slack down", []string{"SLACK_TOKEN", token, "SLACK_API_URL", "http://127.0.0.1:1/api/"}, "deliveries fail", true},
		{"webhook fails", []string{"SLACK_TOKEN", "", "SLACK_CHANNEL", "", "SLACK_WEBHOOK_URL", slack.WebhookURL()}, "deliveries fail", true},
		{"webhook down", []string{"SLACK_TOKEN", "", "SLACK_CHANNEL", "", "SLACK_WEBHOOK_URL", "http://127.0.0.1:1/services/T/B/" + canary}, "deliveries fail", true},
		{"webhook unknown", []string{"SLACK_TOKEN", "", "SLACK_CHANNEL", "", "SLACK_WEBHOOK_URL", refusing.WebhookURL() + canary}, "misconfigured", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := &deployment{t: t, nats: open.nats, redis: open.redis, slack: open.slack, js: open.js}
			stream := strings.ToUpper(strings.ReplaceAll(test.name, " ", "-"))
			subject := strings.ToLower(stream)
			changes := append([]string{"LOG_LEVEL", "debug", "NATS_STREAM", stream, "NATS_SUBJECT", subject, "ROOM_STREAM", stream + "-ROOM", "DLQ_STREAM", stream + "-DLQ",
				"DLQ_SUBJECT", subject + "-dlq", "REDIS_PREFIX", subject, "SHUTDOWN_TIMEOUT", "1s"}, test.changes...)
			w := d.startWorker("worker", changes...)
			if test.posts {
				w.awaitReady()
				d.publish(subject+".errors", eventBody("one"))
			}
			testkit.Await(t, "the failure", func() error {
				if w.logLines(test.meets) == 0 {
					return fmt.Errorf("%q is not in the log", test.meets)
				}
				return nil
			})
			for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
				_, body := w.get(path)
				wantNoCanary(t, path, body)
			}
			check := run(t, d.settings(changes...), "check")
			wantNoCanary(t, "the output of check", check.all())
			publish := run(t, d.settings(changes...), "publish", "errors", "text")
			wantNoCanary(t, "the output of publish", publish.all())
			w.stop()
			wantNoCanary(t, "the log", w.all())
		})
	}
}
