package tests

import (
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// want checks how a command ended, and that its standard output or error has a line with each of the texts.
func (p *process) want(status int, texts ...string) {
	p.t.Helper()
	testkit.Equal(p.t, p.wait(), status, "%s: status", p.name)
	for _, text := range texts {
		if !strings.Contains(p.all(), text) {
			p.t.Errorf("%s does not print %q:\n%s", p.name, text, p.all())
		}
	}
}

func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	run(t, nil, "version").want(0, "notifier ", "revision ", "go1.")
	run(t, nil, "--help").want(0, "run", "dev", "check", "publish", "version", "NOTIFIER_")
	for _, command := range []string{"run", "dev", "check", "publish", "version", "completion"} {
		run(t, nil, command, "--help").want(0, "Usage:")
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		run(t, nil, "completion", shell).want(0, "notifier")
	}
	run(t, nil, "__complete", "pub").want(0, "publish\t")

	p := run(t, nil, "completion", "bash")
	syntax := exec.Command("bash", "-n")
	syntax.Stdin = strings.NewReader(p.stdout.String())
	if output, err := syntax.CombinedOutput(); err != nil {
		t.Errorf("bash does not read its completion: %v\n%s", err, output)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	natsUser := func(permissions string) func(t *testing.T, d *deployment) []string {
		return func(t *testing.T, d *deployment) []string {
			n := servertest.StartNATSProcess(t, fmt.Sprintf(`
				accounts { A { jetstream: enabled, users: [
					{ user: admin, password: admin }
					{ user: worker, password: worker, permissions: { subscribe: ">", %s } }
				] } }`, permissions))
			d.js = servertest.JetStream(t, n.URL, nats.UserInfo("admin", "admin"))
			return []string{"NATS_URL", n.URL, "NATS_USER", "worker", "NATS_PASSWORD", "worker"}
		}
	}
	redisUser := func(rights ...string) func(t *testing.T, d *deployment) []string {
		return func(_ *testing.T, d *deployment) []string {
			d.redis.CLI(append([]string{"acl", "setuser", "limited", "on", ">secret"}, rights...)...)
			return []string{"REDIS_URL", "redis://limited:secret@" + d.redis.Addr}
		}
	}
	slack := func(options ...slacktest.Option) func(t *testing.T, _ *deployment) []string {
		return func(t *testing.T, _ *deployment) []string {
			return []string{"SLACK_API_URL", slacktest.New(t, options...).APIURL(), "SLACK_CHANNEL", "C0000000001", "SLACK_ROUTES", "payments=#money"}
		}
	}
	in := slacktest.Channel{ID: "C0000000001", Name: "alerts", Member: true}
	for _, test := range []struct {
		name    string
		arrange func(t *testing.T, d *deployment) (changes []string)
		status  int
		prints  []string
	}{
		{"all is well", slack(slacktest.WithChannels(in, slacktest.Channel{ID: "C0000000002", Name: "money", Member: true})), 0, []string{"100/30m", "10/30m", "ok"}},
		{"a tree of limits", func(*testing.T, *deployment) []string { return []string{"LIMITS", "payments.*=5/10m"} }, 0, []string{"payments.*", "5/10m"}},
		{"webhook", func(_ *testing.T, d *deployment) []string {
			return []string{"SLACK_TOKEN", "", "SLACK_CHANNEL", "", "SLACK_WEBHOOK_URL", d.slack.WebhookURL()}
		}, 0, []string{"webhook"}},
		{"wrong Slack token", slack(slacktest.WithToken("xoxb-another")), 1, []string{"FAIL", "invalid_auth"}},
		{"a channel that the bot is not in", slack(slacktest.WithChannels(in, slacktest.Channel{ID: "C0000000002", Name: "money"})), 1, []string{"FAIL", "#money", "not_in_channel"}},
		{"a channel that does not exist", slack(slacktest.WithChannels(slacktest.Channel{ID: "C0000000002", Name: "money", Member: true})), 1, []string{"FAIL", "C0000000001", "channel_not_found"}},
		{"Slack down", func(*testing.T, *deployment) []string { return []string{"SLACK_API_URL", "http://127.0.0.1:1/"} }, 1, []string{"FAIL", "refused"}},
		{"Redis down", func(*testing.T, *deployment) []string { return []string{"REDIS_URL", "redis://127.0.0.1:1"} }, 1, []string{"FAIL  redis", "refused"}},
		{"wrong Redis password", func(t *testing.T, _ *deployment) []string {
			return []string{"REDIS_URL", "redis://:wrong@" + servertest.StartRedis(t, "--requirepass", "right").Addr}
		}, 1, []string{"FAIL  redis", "NOTIFIER_REDIS_PASSWORD"}},
		{"no Redis password", func(t *testing.T, _ *deployment) []string {
			return []string{"REDIS_URL", servertest.StartRedis(t, "--requirepass", "right").URL()}
		}, 1, []string{"FAIL  redis", "NOTIFIER_REDIS_PASSWORD"}},
		{"a Redis user without a command", redisUser("~*", "+@all", "-zremrangebyrank"), 1, []string{"FAIL  redis", "configs/redis"}},
		{"a Redis user without scripts", redisUser("~*", "+@all", "-@scripting"), 1, []string{"FAIL  redis", "configs/redis"}},
		{"a Redis user without the keys", redisUser("~other:*", "+@all"), 1, []string{"FAIL  redis", "configs/redis"}},
		{"a key of the wrong type", func(_ *testing.T, d *deployment) []string { d.redis.CLI("set", rootLog, "x"); return nil }, 1,
			[]string{"FAIL  redis", "NOTIFIER_REDIS_PREFIX"}},
		{"Redis evicts", func(_ *testing.T, d *deployment) []string {
			d.redis.CLI("config", "set", "maxmemory-policy", "allkeys-lru")
			return nil
		}, 1, []string{"FAIL  redis", "allkeys-lru", "noeviction"}},
		{"NATS down", func(*testing.T, *deployment) []string { return []string{"NATS_URL", "nats://127.0.0.1:1"} }, 1, []string{"FAIL  nats", "refused", "NOTIFIER_NATS_URL"}},
		{"wrong NATS password", func(t *testing.T, d *deployment) []string {
			return append(natsUser(`publish: ">"`)(t, d), "NATS_PASSWORD", "wrong")
		}, 1, []string{"FAIL  nats", "uthorization"}},
		{"NATS does not permit the consumer", natsUser(`publish: { deny: "$JS.API.CONSUMER.>" }`), 1, []string{"FAIL  nats", "$JS.API.CONSUMER.INFO"}},
		{"NATS does not permit acknowledging", natsUser(`publish: { deny: "$JS.ACK.>" }`), 1, []string{"FAIL  nats", "$JS.ACK"}},
		{"NATS does not permit taking events", natsUser(`publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" }`), 1, []string{"FAIL  nats", "$JS.API.CONSUMER.MSG.NEXT"}},
		{"NATS does not permit dead letters", natsUser(`publish: { deny: "notify-dlq.>" }`), 1, []string{"FAIL  nats", "notify-dlq"}},
		{"NATS does not permit creating what is absent", natsUser(`publish: { deny: ["$JS.API.STREAM.CREATE.>", "$JS.API.CONSUMER.CREATE.>"] }`), 1, []string{"FAIL  nats", "CREATE"}},
		{"nothing there, nothing to be created", func(*testing.T, *deployment) []string { return []string{"NATS_PROVISION", "false"} }, 1,
			[]string{"FAIL  nats", "NOTIFIER_NATS_PROVISION"}},
		{"a limit that cannot be reached", func(*testing.T, *deployment) []string { return []string{"CATEGORY_LIMIT", "200/30m"} }, 0, []string{"warn", "NOTIFIER_CATEGORY_LIMIT"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			keys := d.redis.CLI("dbsize")
			changes := test.arrange(t, d)
			p := run(t, d.settings(changes...), "check")
			p.want(test.status, test.prints...)
			for line := range strings.Lines(p.stdout.String()) {
				if strings.HasPrefix(line, "FAIL") && test.status == 0 {
					t.Errorf("printed %q", line)
				}
			}
			names := d.js.StreamNames(t.Context())
			for name := range names.Name() {
				t.Errorf("check created the stream %s", name)
			}
			for key := range strings.FieldsSeq(d.redis.CLI("keys", "*")) {
				if !strings.Contains(key, ":scratch:") && keys == "0" && test.name != "a key of the wrong type" {
					t.Errorf("check wrote the key %s", key)
				}
			}
			if posts := d.slack.Posts(); len(posts) > 0 {
				t.Errorf("check posted %d messages", len(posts))
			}
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
	d.publish("notify.errors", "after the check")
	w.alone().awaitEvents(4)
	w.alone().awaitSum(3, "notifier_events_total", "outcome", "dropped")
	w.alone().awaitSum(0, "notifier_dead_letters_total")
}

func TestCheckOffline(t *testing.T) {
	t.Parallel()
	run(t, valid().with("LIMITS", "payments=40/30m,security=none"), "check", "--offline").want(0, "ok", "payments", "40/30m", "security", "none")
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
		{[]string{"--stdin"}, "{\"text\":\"one\",\"category\":\"a.b\"}\n{\"text\":2}\n{\"category\":\"B!\",\"text\":\"x\"}\n{\n{\"text\":\"last\"}", 1, 2, "line 2: bad_field"},
		{[]string{"--stdin"}, "", 0, 0, ""},
		{[]string{"errors", "costly", "--cost", "101"}, "", 2, -1, "cost"},
		{[]string{"errors", ""}, "", 2, -1, "empty"},
		{[]string{"errors", "x", "--id", "i", "--count", "2"}, "", 2, -1, "duplicates"},
	} {
		before := w.scrape().sum("notifier_events_total")
		p := runWithInput(t, s, test.input, append([]string{"publish"}, test.arguments...)...)
		p.want(test.status, test.prints)
		if test.published < 0 {
			continue
		}
		if got, want := p.stdout.String(), fmt.Sprintf("published %d\n", test.published); got != want {
			t.Errorf("%s prints %q, want %q", p.name, got, want)
		}
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
		if status, _ := w.get(path); status != want {
			t.Errorf("%s has status %d, want %d", path, status, want)
		}
	}
	var shown []string
	for _, metric := range []string{
		"notifier_events_total", "notifier_dropped_total", "notifier_dead_letters_total", "notifier_decisions_total", "notifier_decision_duration_seconds",
		"notifier_event_age_seconds", "notifier_slack_request_duration_seconds", "notifier_slack_requests_total", "notifier_limit_used", "notifier_limit_size",
		"notifier_redeliveries_total", "notifier_refunds_total", "notifier_inflight", "notifier_degraded", "notifier_build_info",
	} {
		shown = append(shown, "\n"+metric)
	}
	for _, series := range []string{
		`notifier_events_total{category="other",outcome="expired"} 0`, `notifier_dropped_total{category="other",level="global"} 0`,
		`notifier_dead_letters_total{reason="slack_rejected"} 0`, `notifier_decisions_total{source="local",verdict="reclaimed"} 0`,
		`notifier_slack_requests_total{result="unknown"} 0`, `notifier_degraded{policy="local"} 0`, `notifier_limit_size{level="global"} 100`,
	} {
		shown = append(shown, "\n"+series+"\n")
	}
	testkit.Await(t, "every metric", func() error { // some are known a moment after the worker is ready
		_, body := w.get("/metrics")
		for _, want := range shown {
			if !strings.Contains(body, want) {
				return fmt.Errorf("there is no %q", want)
			}
		}
		return nil
	})

	off := d.startWorker("without a server", "HTTP_ADDR", "off")
	testkit.Await(t, "the start", func() error {
		if off.logLines("nats is connected") == 0 {
			return errMissing
		}
		return nil
	})
	off.stop()
	taken := d.startWorker("on a taken port", "HTTP_ADDR", w.address)
	taken.want(1, w.address, "address already in use")
	if status, _ := w.get("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz has status %d, want 200", status)
	}
}

// escape is the first byte of a terminal's commands.
const escape = "\x1b"

// TestDev runs everything in one process, as a newcomer does.
func TestDev(t *testing.T) {
	t.Parallel()
	p := run(t, settings{"HTTP_ADDR": "127.0.0.1:0"}, "dev", "--storm", "50", "--for", "5s")
	p.want(0, "publish an event:", "/metrics", "global 100/30m", "each category 10/30m", "totals  events ")
	out := p.stdout.String()
	if strings.Contains(out, escape) {
		t.Error("there are escape codes in a pipe")
	}
	notification := regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d (INFO|WARNING|ERROR|CRITICAL) +[a-z]+ .*event \d+`)
	if sent := len(notification.FindAllString(out, -1)); sent < 50 || sent > 100 {
		t.Errorf("%d notifications, want most of those that the limits allow, at most 100:\n%s", sent, out)
	}
	totals := regexp.MustCompile(`(?m)^totals  events \d+  sent \d+  dropped \d+.*(next free slot \((global|category)\) in \d+m|slots are free)`)
	if lines := len(totals.FindAllString(out, -1)); lines < 3 {
		t.Errorf("%d lines of totals, want one a second:\n%s", lines, out)
	}
	if text := p.stderr.String(); strings.Contains(text, "ERROR") || strings.Contains(text, "WARN") {
		t.Errorf("there are troubles in the log:\n%s", text)
	}
}

// TestDevBesideDev has two of them, of which at least one finds the usual ports taken.
func TestDevBesideDev(t *testing.T) {
	t.Parallel()
	begin := func(name string) *process {
		p := start(t, name, nil, "dev")
		testkit.Await(t, name+" to introduce itself", func() error {
			if !strings.Contains(p.stdout.String(), "stop:") {
				return errMissing
			}
			return nil
		})
		return p
	}
	begin("first")
	second := begin("second")
	out := second.stdout.String()
	for _, what := range []string{"is taken, so NATS", "is taken, so the stand-in for Redis", "127.0.0.1:8080 is taken"} {
		if !strings.Contains(out, what) {
			t.Errorf("it does not say %q:\n%s", what, out)
		}
	}

	_, invocation, _ := strings.Cut(out, "publish an event:")
	invocation, _, _ = strings.Cut(invocation, "\n")
	publish := exec.Command("sh", "-c", invocation)
	publish.Env = settings{}.environment()
	if output, err := publish.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", invocation, err, output)
	}
	testkit.Await(t, "the notification", func() error {
		if !strings.Contains(second.stdout.String(), "payments card declined") {
			return errMissing
		}
		return nil
	})
	address := regexp.MustCompile(`http://(\S+)/metrics`).FindStringSubmatch(out)
	if address == nil {
		t.Fatalf("it does not say where its metrics are:\n%s", out)
	}
	w := &worker{second, address[1]}
	w.alone().awaitEvents(1, "category", "payments", "outcome", "sent")
	second.stop()
}

// TestDevStandsAside gives dev servers of one's own.
func TestDevStandsAside(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	p := run(t, d.settings("HTTP_ADDR", "127.0.0.1:0", "CATEGORY_LIMIT", "1/30m"), "dev", "--storm", "50", "--for", "3s")
	p.want(0, "each category 1/30m")
	if got := len(d.slack.Accepted()); got == 0 || got > 20 {
		t.Errorf("%d posts, want one of each of at most 20 categories", got)
	}
	if got := len(d.log(rootLog)); got != len(d.slack.Accepted()) {
		t.Errorf("%d slots are taken, want those of the %d posts", got, len(d.slack.Accepted()))
	}
	if _, err := d.left(streamName); err != nil {
		t.Errorf("look for the stream: %v", err)
	}
}
