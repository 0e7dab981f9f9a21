package tests

import (
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// checks are settings, given as name, value, …, with the output and the status of check.
var checks = []struct {
	name     string
	changes  []string
	isMember bool // of #money, to which payments go
	status   int
	prints   []string
}{
	{"all is well", nil, true, 0, []string{"100/30m", "10/30m", "ok"}},
	{"a channel that the bot is not in", nil, false, 1, []string{"FAIL", "#money", "not_in_channel"}},
	{"NATS down", []string{"NATS_URL", "nats://127.0.0.1:1"}, true, 1, []string{"FAIL  nats", "refused", "NOTIFIER_NATS_URL"}},
	{"nothing there, nothing to be created", []string{"NATS_PROVISION", "false"}, true, 1, []string{"FAIL  nats", "NOTIFIER_NATS_PROVISION"}},
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, test := range checks {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			d.slack = slacktest.New(t, slacktest.WithChannels(
				slacktest.Channel{ID: "C0000000001", Name: "alerts", Member: true}, slacktest.Channel{ID: "C0000000002", Name: "money", Member: test.isMember}))
			changes := append([]string{"SLACK_CHANNEL", "C0000000001", "SLACK_ROUTES", "payments=#money"}, test.changes...)
			run(t, d.settings(changes...), "check").want(test.status, test.prints...)
			for name := range d.js.StreamNames(t.Context()).Name() {
				t.Errorf("got the stream %s after check, want no stream", name)
			}
			testkit.Equal(t, len(d.slack.Posts()), 0, "posts")
			for key := range strings.FieldsSeq(d.redis.CLI("keys", "*")) {
				testkit.Contains(t, "key that check wrote", key, ":scratch:")
			}
		})
	}
}

// TestCheckOfRunningDeployment runs check beside a worker with a full limit. The check takes no slot and no event.
func TestCheckOfRunningDeployment(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", "GLOBAL_LIMIT", "1/30m")
	d.publishEvents([]string{"errors"}, 3)
	w.alone().awaitEvents(3)
	run(t, d.settings("GLOBAL_LIMIT", "1/30m"), "check").want(0, "ok")
	run(t, d.settings("NATS_ACK_WAIT", "20s"), "check").want(0, "warn", "acknowledgement wait")
	run(t, valid().with("LIMITS", "payments=40/30m,security=none"), "check", "--offline").want(0, "ok", "payments", "40/30m", "security", "none")
	d.publish("notify.errors", "after the check")
	w.alone().awaitEvents(4)
	w.alone().awaitSum(3, "notifier_events_total", "outcome", "dropped")
	w.alone().awaitSum(0, "notifier_dead_letters_total")
}

// TestHTTPServer asks for known and unknown paths, also with the command health. It starts workers without a server and on a taken port.
func TestHTTPServer(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker")
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/nothing": 404} {
		status, _ := w.get(path)
		testkit.Equal(t, status, want, "status of %s", path)
	}
	run(t, settings{"HTTP_ADDR": w.address}, "health").want(0)
	run(t, settings{"HTTP_ADDR": "off"}, "health").want(0)
	off := d.startWorker("without a server", "HTTP_ADDR", "off")
	off.awaitOutput("nats is connected")
	off.stop()
	taken := d.startWorker("on a taken port", "HTTP_ADDR", w.address)
	taken.want(1, w.address, "address already in use (check NOTIFIER_HTTP_ADDR)")
	w.wantHealthy()
	w.stop()
	run(t, settings{"HTTP_ADDR": w.address}, "health").want(1, w.address)
}

func (p *process) awaitOutput(text string) {
	p.t.Helper()
	testkit.Eventually(p.t, text+" from "+p.name, func() bool { return strings.Contains(p.all(), text) })
}
