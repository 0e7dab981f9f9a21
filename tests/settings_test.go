package tests

import (
	"net/http"
	"slices"
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

// badSettings are settings with one fault each: secrets, files, settings that do not go together, and misspelt names. TestFaults of
// internal/config has the faults of single values.
var badSettings = []struct {
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
	{[]string{"NATS_TLS_CERT_FILE", "testdata/secret"}, "NATS_TLS_KEY_FILE", "NOTIFIER_NATS_TLS_CERT_FILE"},
	{[]string{"REDIS_TLS_KEY_FILE", "testdata/secret"}, "REDIS_TLS_CERT_FILE", "NOTIFIER_REDIS_TLS_KEY_FILE"},
	{[]string{"NATS_ACK_WAIT", "11s"}, "NATS_ACK_WAIT", "NOTIFIER_SLACK_TIMEOUT"},
	{[]string{"DLQ_STREAM", "NOTIFICATIONS"}, "DLQ_STREAM", "NOTIFIER_NATS_STREAM"},
	{[]string{"DLQ_SUBJECT", "notify.dead"}, "DLQ_SUBJECT", "NOTIFIER_NATS_SUBJECT"},
	{[]string{"REDIS_URL", "http://:" + canary + "@x"}, "REDIS_URL", "(hidden)"},
	{[]string{"REDIS_URL", "redis://:" + canary + "@x/db"}, "REDIS_URL", "(hidden)"},
	{[]string{"GLOBAL_LIMIT", "100"}, "GLOBAL_LIMIT", "100"},
	{[]string{"CATEGORY_LIMIT", "10/30m+none"}, "CATEGORY_LIMIT", ""},
	{[]string{"LIMITS", "global=1/1h"}, "LIMITS", "NOTIFIER_GLOBAL_LIMIT"},
	{[]string{"SLACK_TOKEN", "", "SLACK_CHANNEL", ""}, "SINK", "NOTIFIER_SLACK_TOKEN"},
	{[]string{"SLACK_TOKEN", "", "SINK", "slack"}, "SINK", "NOTIFIER_SLACK_TOKEN"},
	{[]string{"SLACK_CHANNEL", ""}, "SLACK_CHANNEL", "NOTIFIER_SLACK_TOKEN"},
	{[]string{"SLACK_WEBHOOK_URL", "https://hooks.slack.com/services/T0/B0/" + canary}, "SLACK_WEBHOOK_URL", "NOTIFIER_SLACK_TOKEN"},
	{[]string{"SLACK_TOKEN", "", "SLACK_WEBHOOK_URL", "ftp://" + canary}, "SLACK_WEBHOOK_URL", "(hidden)"},
	{[]string{"SLACK_TOKEN_FILE", "testdata/secret"}, "SLACK_TOKEN_FILE", "NOTIFIER_SLACK_TOKEN"},
	{[]string{"SLACK_TOKEN", "", "SLACK_TOKEN_FILE", "/nonexistent"}, "SLACK_TOKEN_FILE", "/nonexistent"},
	{[]string{"SLACK_TOKEN", "", "SLACK_TOKEN_FILE", "testdata"}, "SLACK_TOKEN_FILE", ""},
	{[]string{"REDIS_PASSWORD_FILE", "testdata/empty"}, "REDIS_PASSWORD_FILE", "empty"},
	{[]string{"REDIS_URL", "", "REDIS_URL_FILE", "testdata/blanks"}, "REDIS_URL_FILE", "nothing but blanks"},
	{[]string{"GLOBAL_LIMTI", "1/1h"}, "GLOBAL_LIMTI", "NOTIFIER_GLOBAL_LIMIT"},
	{[]string{"SLAKC_TOKEN", canary}, "SLAKC_TOKEN", "NOTIFIER_SLACK_TOKEN"},
	{[]string{"HTTP_PORT", "8080"}, "HTTP_PORT", "NOTIFIER_HTTP_ADDR"},
}

func TestBadSettings(t *testing.T) {
	t.Parallel()
	for _, test := range badSettings {
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
				if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "NOTIFIER_"+name) }) {
					t.Errorf("NOTIFIER_%s is named on no line of its own: %q", name, lines)
				}
			}
			if len(lines) != 5 || p.stdout.String() != "" {
				t.Errorf("printed %q, want five lines on standard error", p.all())
			}
			wantNoCanary(t, "the output", p.all())
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

const secretToken = "xoxb-" + canary + "-slack"

// withWebhook are settings of a worker that posts to a webhook.
func withWebhook(url string) []string {
	return []string{"SLACK_TOKEN", "", "SLACK_CHANNEL", "", "SLACK_WEBHOOK_URL", url}
}

// TestSecretsStaySecret lets workers fail at servers that are down, or that refuse them, or that answer oddly, with everything
// logged, and looks for the secrets wherever something is said.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	guarded := servertest.StartNATS(t, func(o *server.Options) { o.Username, o.Password = "user", "another" })
	locked := servertest.StartRedis(t, "--requirepass", "another")
	slack := slacktest.New(t, slacktest.WithToken(secretToken), slacktest.WithWebhookSecret(canary+"-webhook"))
	slack.Respond(func(post slacktest.Post) slacktest.Answer {
		return slacktest.Status(http.StatusInternalServerError, "your token was "+post.Header.Get("Authorization"))
	})
	refusing := slacktest.New(t, slacktest.WithToken("xoxb-another"))
	secretNATS := strings.Replace(guarded.URL, "://", "://user:"+canary+"-nats@", 1)
	secretRedis := strings.Replace(locked.URL(), "://", "://:"+canary+"-redis@", 1)
	open := newDeployment(t)
	for _, test := range []struct {
		name    string
		changes []string
		meets   string // what the log has to mention, as proof that the failure was met
		posts   bool
	}{
		{"servers down", []string{"NATS_URL", "nats://user:" + canary + "@127.0.0.1:1", "REDIS_URL", "redis://:" + canary + "@127.0.0.1:1"}, "nats cannot be reached", false},
		{"nats refuses", []string{"NATS_URL", secretNATS}, "uthorization", false},
		{"nats refuses a password", []string{"NATS_URL", guarded.URL, "NATS_USER", "user", "NATS_PASSWORD", canary}, "uthorization", false},
		{"nats refuses a token", []string{"NATS_URL", guarded.URL, "NATS_TOKEN", canary}, "uthorization", false},
		{"redis refuses", []string{"REDIS_URL", secretRedis}, "redis refuses this worker", false},
		{"redis refuses a password", []string{"REDIS_URL", locked.URL(), "REDIS_PASSWORD", canary}, "redis refuses this worker", false},
		{"slack fails", []string{"SLACK_TOKEN", secretToken, "SLACK_API_URL", slack.APIURL()}, "deliveries fail", true},
		{"slack refuses", []string{"SLACK_TOKEN", secretToken, "SLACK_API_URL", refusing.APIURL()}, "misconfigured", true},
		{"slack down", []string{"SLACK_TOKEN", secretToken, "SLACK_API_URL", "http://127.0.0.1:1/api/"}, "deliveries fail", true},
		{"webhook fails", withWebhook(slack.WebhookURL()), "deliveries fail", true},
		{"webhook down", withWebhook("http://127.0.0.1:1/services/T/B/" + canary), "deliveries fail", true},
		{"webhook unknown", withWebhook(refusing.WebhookURL() + canary), "misconfigured", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := open.within(t)
			stream := strings.ToUpper(strings.ReplaceAll(test.name, " ", "-"))
			subject := strings.ToLower(stream)
			changes := append([]string{"LOG_LEVEL", "debug", "NATS_STREAM", stream, "NATS_SUBJECT", subject, "ROOM_STREAM", stream + "-ROOM", "DLQ_STREAM", stream + "-DLQ",
				"DLQ_SUBJECT", subject + "-dlq", "REDIS_PREFIX", subject, "SHUTDOWN_TIMEOUT", "1s"}, test.changes...)
			w := d.startWorker("worker", changes...)
			if test.posts {
				w.awaitReady()
				d.publish(subject+".errors", eventBody("one"))
			}
			w.awaitOutput(test.meets)
			w.wantNoCanary(d.settings(changes...))
		})
	}
}

// wantNoCanary looks for secrets in what the worker and the commands say. It stops the worker.
func (w *worker) wantNoCanary(s settings) {
	w.t.Helper()
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		_, body := w.get(path)
		wantNoCanary(w.t, path, body)
	}
	wantNoCanary(w.t, "the output of check", run(w.t, s, "check").all())
	wantNoCanary(w.t, "the output of publish", run(w.t, s, "publish", "errors", "text").all())
	w.stop()
	wantNoCanary(w.t, "the log", w.all())
}
