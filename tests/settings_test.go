package tests

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// canary is part of every secret of these tests. No output may show it.
const canary = "canary-4711"

// valid returns settings without a fault, for servers that do not run.
func valid() settings {
	return settings{
		"NATS_URL": "nats://user:" + canary + "-nats@127.0.0.1:1", "REDIS_URL": "redis://:" + canary + "-redis@127.0.0.1:1/0",
		"SLACK_TOKEN": "xoxb-" + canary + "-slack", "SLACK_CHANNEL": "#alerts", "HTTP_ADDR": "off",
	}
}

func wantNoCanary(t testing.TB, what, text string) {
	t.Helper()
	testkit.Lacks(t, what, text, canary)
}

const secretToken = "xoxb-" + canary + "-slack"

func withWebhook(url string) []string {
	return []string{"SLACK_TOKEN", "", "SLACK_CHANNEL", "", "SLACK_WEBHOOK_URL", url}
}

// TestSecretsStaySecret runs workers at level debug against servers that are down, that refuse them, or that fail. It looks for secrets in
// logs, in HTTP answers and in the output of commands.
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
		{"servers down", []string{"NATS_URL", "nats://user:" + canary + "@127.0.0.1:1", "REDIS_URL", "redis://:" + canary + "@127.0.0.1:1"}, "cannot reach nats", false},
		{"nats refuses", []string{"NATS_URL", secretNATS}, "uthorization", false},
		{"nats refuses a password", []string{"NATS_URL", guarded.URL, "NATS_USER", "user", "NATS_PASSWORD", canary}, "uthorization", false},
		{"nats refuses a token", []string{"NATS_URL", guarded.URL, "NATS_TOKEN", canary}, "uthorization", false},
		{"redis refuses", []string{"REDIS_URL", secretRedis}, "redis refuses this worker", false},
		{"redis refuses a password", []string{"REDIS_URL", locked.URL(), "REDIS_PASSWORD", canary}, "redis refuses this worker", false},
		{"slack fails", []string{"SLACK_TOKEN", secretToken, "SLACK_API_URL", slack.APIURL()}, "deliveries fail", true},
		{"slack refuses", []string{"SLACK_TOKEN", secretToken, "SLACK_API_URL", refusing.APIURL()}, "slack refuses the token", false},
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

// wantNoCanary looks for secrets in the output of the worker and of commands. It stops the worker.
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
