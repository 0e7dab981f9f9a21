package tests

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	run(t, nil, "version").want(0, "notifier ", "revision ", "go1.")
	run(t, nil, "--help").want(0, "run", "dev", "check", "publish", "version", "NOTIFIER_")
	run(t, nil, "__complete", "pub").want(0, "publish\t")
	for _, command := range []string{"run", "dev", "check", "publish", "version", "completion"} {
		run(t, nil, command, "--help").want(0, "Usage:")
	}
	syntax := exec.Command("bash", "-n")
	syntax.Stdin = strings.NewReader(run(t, nil, "completion", "bash").stdout.String())
	if output, err := syntax.CombinedOutput(); err != nil {
		t.Errorf("bash does not read its completion: %v\n%s", err, output)
	}
}

// checks is what check says of settings, or of servers that were arranged. The settings are name, value, …
var checks = []struct {
	name    string
	changes []string
	arrange func(t *testing.T, d *deployment) []string // returns more settings
	status  int
	prints  []string
}{
	{"all is well", nil, withChannels(alertsChannel, moneyChannel), 0, []string{"100/30m", "10/30m", "ok"}},
	{"a tree of limits", []string{"LIMITS", "payments.*=5/10m"}, nil, 0, []string{"payments.*", "5/10m"}},
	{"webhook", nil, func(_ *testing.T, d *deployment) []string { return withWebhook(d.slack.WebhookURL()) }, 0, []string{"webhook"}},
	{"wrong Slack token", []string{"SLACK_TOKEN", "xoxb-another"}, nil, 1, []string{"FAIL", "invalid_auth"}},
	{"a channel that the bot is not in", nil, withChannels(alertsChannel, slacktest.Channel{ID: "C0000000002", Name: "money"}), 1,
		[]string{"FAIL", "#money", "not_in_channel"}},
	{"a channel that does not exist", nil, withChannels(moneyChannel), 1, []string{"FAIL", "C0000000001", "channel_not_found"}},
	{"Slack down", []string{"SLACK_API_URL", "http://127.0.0.1:1/"}, nil, 1, []string{"FAIL", "refused"}},
	{"Redis down", []string{"REDIS_URL", "redis://127.0.0.1:1"}, nil, 1, []string{"FAIL  redis", "refused"}},
	{"wrong Redis password", []string{"REDIS_PASSWORD", "wrong"}, withRedis("config", "set", "requirepass", "right"), 1,
		[]string{"FAIL  redis", "NOTIFIER_REDIS_PASSWORD"}},
	{"no Redis password", nil, withRedis("config", "set", "requirepass", "right"), 1, []string{"FAIL  redis", "NOTIFIER_REDIS_PASSWORD"}},
	{"a Redis user without a command", nil, withRedisUser("~*", "+@all", "-zremrangebyrank"), 1, []string{"FAIL  redis", "configs/redis"}},
	{"a Redis user without scripts", nil, withRedisUser("~*", "+@all", "-@scripting"), 1, []string{"FAIL  redis", "configs/redis"}},
	{"a Redis user without the keys", nil, withRedisUser("~other:*", "+@all"), 1, []string{"FAIL  redis", "configs/redis"}},
	{"a key of the wrong type", nil, withRedis("set", rootLog, "x"), 1, []string{"FAIL  redis", "NOTIFIER_REDIS_PREFIX"}},
	{"Redis evicts", nil, withRedis("config", "set", "maxmemory-policy", "allkeys-lru"), 1, []string{"FAIL  redis", "allkeys-lru", "noeviction"}},
	{"NATS down", []string{"NATS_URL", "nats://127.0.0.1:1"}, nil, 1, []string{"FAIL  nats", "refused", "NOTIFIER_NATS_URL"}},
	{"nothing there, nothing to be created", []string{"NATS_PROVISION", "false"}, nil, 1, []string{"FAIL  nats", "NOTIFIER_NATS_PROVISION"}},
	{"a limit that cannot be reached", []string{"CATEGORY_LIMIT", "200/30m"}, nil, 0, []string{"warn", "NOTIFIER_CATEGORY_LIMIT"}},
}

var (
	alertsChannel = slacktest.Channel{ID: "C0000000001", Name: "alerts", Member: true}
	moneyChannel  = slacktest.Channel{ID: "C0000000002", Name: "money", Member: true}
)

func withChannels(channels ...slacktest.Channel) func(*testing.T, *deployment) []string {
	return func(t *testing.T, _ *deployment) []string {
		slack := slacktest.New(t, slacktest.WithChannels(channels...))
		return []string{"SLACK_API_URL", slack.APIURL(), "SLACK_CHANNEL", alertsChannel.ID, "SLACK_ROUTES", "payments=#money"}
	}
}

func withRedis(command ...string) func(*testing.T, *deployment) []string {
	return func(_ *testing.T, d *deployment) []string {
		d.redis.CLI(command...)
		return nil
	}
}

func withRedisUser(rights ...string) func(*testing.T, *deployment) []string {
	return func(_ *testing.T, d *deployment) []string {
		d.redis.CLI(append([]string{"acl", "setuser", "limited", "on", ">secret"}, rights...)...)
		return []string{"REDIS_URL", "redis://limited:secret@" + d.redis.Addr}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, test := range checks {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			changes := test.changes
			if test.arrange != nil {
				changes = append(changes, test.arrange(t, d)...)
			}
			p := run(t, d.settings(changes...), "check")
			p.want(test.status, test.prints...)
			if test.status == 0 && strings.Contains(p.stdout.String(), "\nFAIL") {
				t.Errorf("printed\n%s", p.stdout.String())
			}
			d.wantNoStreams()
			testkit.Equal(t, len(d.slack.Posts()), 0, "posts")
			if strings.Contains(strings.Join(test.prints, " "), "NOTIFIER_REDIS_P") { // one key is there, or none can be read
				return
			}
			for key := range strings.FieldsSeq(d.redis.CLI("keys", "*")) {
				if !strings.Contains(key, ":scratch:") {
					t.Errorf("check wrote the key %s", key)
				}
			}
		})
	}
}

// wantNoStreams checks that nothing was created in NATS.
func (d *deployment) wantNoStreams() {
	d.t.Helper()
	for name := range d.js.StreamNames(d.t.Context()).Name() {
		d.t.Errorf("the stream %s was created", name)
	}
}

// TestCheckOfRights checks what NATS users lack.
func TestCheckOfRights(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, permissions, password, prints string
	}{
		{"wrong password", `publish: ">"`, "wrong", "uthorization"},
		{"consumer", `publish: { deny: "$JS.API.CONSUMER.>" }`, "worker", "$JS.API.CONSUMER.INFO"},
		{"acknowledging", `publish: { deny: "$JS.ACK.>" }`, "worker", "$JS.ACK"},
		{"taking events", `publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" }`, "worker", "$JS.API.CONSUMER.MSG.NEXT"},
		{"dead letters", `publish: { deny: "notify-dlq.>" }`, "worker", "notify-dlq"},
		{"creating what is absent", `publish: { deny: ["$JS.API.STREAM.CREATE.>", "$JS.API.CONSUMER.CREATE.>"] }`, "worker", "CREATE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d, user := withRights(t, test.permissions, "jetstream: enabled")
			run(t, d.settings(user...).with("NATS_PASSWORD", test.password), "check").want(1, "FAIL  nats", test.prints)
			d.wantNoStreams()
		})
	}
}

// TestCheckOfRunningDeployment checks what workers have made and use.
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

func TestPublish(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	s := settings{"NATS_URL": d.nats.URL}
	run(t, s, "publish", "errors", "too early").want(1, "no stream takes this subject")
	w := d.startReady("worker", unlimited()...)
	for _, test := range []struct {
		arguments []string
		input     string
		status    int
		published int
		prints    string
	}{
		{[]string{"errors", "disk full"}, "", 0, 1, ""},
		{[]string{"errors", "many", "--count", "600"}, "", 0, 600, ""},
		{[]string{"payments.refunds", "refund failed", "--title", "Refund", "--severity", "critical", "--source", "till", "--link", "https://example.com",
			"--id", "r-1", "--cost", "2", "--field", "order=4711"}, "", 0, 1, ""},
		{[]string{"--stdin", "errors"}, "{\"text\":\"one\"}\n\n{\"text\":\"two\"}\nplain line\n", 1, 2, "line 4: not a JSON object"},
		{[]string{"--stdin"}, "{\"text\":\"one\",\"category\":\"a.b\"}\n{\"text\":2}\n" +
			"{\"category\":\"B!\",\"text\":\"x\"}\n{\n{\"text\":\"last\",\"category\":\"default\"}\n{\"text\":\"nowhere\"}", 1, 2, "line 2: bad_field"},
		{[]string{"--stdin"}, "", 0, 0, ""},
		{[]string{"errors", "costly", "--cost", "101"}, "", 2, -1, "cost"},
		{[]string{"errors", ""}, "", 2, -1, "empty"},
		{[]string{"errors", "x", "--id", "i", "--count", "2"}, "", 2, -1, "duplicates"},
	} {
		before := w.scrape().sum("notifier_events_total")
		command := exec.Command(program, append([]string{"publish"}, test.arguments...)...)
		command.Env, command.Stdin = s.environment(), strings.NewReader(test.input)
		p := launch(t, "publish "+strings.Join(test.arguments, " "), command)
		p.want(test.status, test.prints)
		if test.published < 0 {
			continue
		}
		testkit.Equal(t, p.stdout.String(), fmt.Sprintf("published %d\n", test.published), "output of %s", p.name)
		w.alone().awaitEvents(before + test.published)
	}
	categories := count(d.slack.Accepted(), "category")
	for category, want := range map[string]int{"errors": 603, "payments.refunds": 1, "a.b": 1, "default": 1} {
		testkit.Equal(t, categories[category], want, "posts of %s", category)
	}
	run(t, settings{"NATS_URL": "nats://127.0.0.1:1"}, "publish", "errors", "x").want(1, "connecting to nats")
}

func TestHealth(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker")
	run(t, settings{"HTTP_ADDR": w.address}, "health").want(0)
	run(t, settings{"HTTP_ADDR": ":" + w.address[strings.LastIndex(w.address, ":")+1:]}, "health").want(0)
	w.stop()
	run(t, settings{"HTTP_ADDR": w.address}, "health").want(1, w.address)
	run(t, settings{"HTTP_ADDR": "off"}, "health").want(0)
}

// TestHTTPServer asks for what is there and for what is not.
func TestHTTPServer(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker")
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/nothing": 404} {
		status, _ := w.get(path)
		testkit.Equal(t, status, want, "status of %s", path)
	}
	shown := []string{
		"notifier_decision_duration_seconds", "notifier_event_age_seconds", "notifier_slack_request_duration_seconds", "notifier_limit_used",
		"notifier_redeliveries_total", "notifier_refunds_total", "notifier_inflight", "notifier_build_info",
		`notifier_events_total{category="other",outcome="expired"} 0`, `notifier_dropped_total{category="other",level="global"} 0`,
		`notifier_dead_letters_total{reason="slack_rejected"} 0`, `notifier_decisions_total{source="local",verdict="reclaimed"} 0`,
		`notifier_slack_requests_total{result="unknown"} 0`, `notifier_degraded{policy="local"} 0`, `notifier_limit_size{level="global"} 100`,
	}
	testkit.Await(t, "every metric", func() error { // some are known a moment after the worker is ready
		_, body := w.get("/metrics")
		for _, want := range shown {
			if !strings.Contains(body, "\n"+want) {
				return fmt.Errorf("there is no %q", want)
			}
		}
		return nil
	})

	off := d.startWorker("without a server", "HTTP_ADDR", "off")
	off.awaitOutput("nats is connected")
	off.stop()
	taken := d.startWorker("on a taken port", "HTTP_ADDR", w.address)
	taken.want(1, w.address, "address already in use")
	w.wantHealthy()
}

// awaitOutput waits until the process has printed a text.
func (p *process) awaitOutput(text string) {
	p.t.Helper()
	testkit.Eventually(p.t, text+" from "+p.name, func() bool { return strings.Contains(p.all(), text) })
}
