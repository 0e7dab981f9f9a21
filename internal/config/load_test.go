package config_test

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// The settings come from the process's environment, so these tests cannot run in parallel.

type env map[string]string

// setenv replaces every NOTIFIER_* variable with those given, names without the prefix.
func setenv(t *testing.T, variables env) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "NOTIFIER_") {
			t.Setenv(name, "") // restores it afterwards
			testkit.NoError(t, os.Unsetenv(name))
		}
	}
	for name, value := range variables {
		t.Setenv("NOTIFIER_"+name, value)
	}
}

func load(t *testing.T, variables env, o config.Options) (config.Config, []string) {
	t.Helper()
	setenv(t, variables)
	c, warnings, err := config.Load(o)
	if err != nil {
		t.Fatalf("Load failed:\n%v", err)
	}
	return c, warnings
}

func loadFaults(t *testing.T, variables env) config.Faults {
	t.Helper()
	setenv(t, variables)
	_, _, err := config.Load(config.Options{})
	if err == nil {
		t.Fatal("Load succeeded")
	}
	faults := new(config.Faults)
	if !errors.As(err, &faults) {
		t.Fatalf("error is a %T, want *Faults", err)
	}
	return *faults
}

// base is the smallest environment without faults.
func base(changes env) env {
	variables := env{"SINK": "console"}
	maps.Copy(variables, changes)
	return variables
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	testkit.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestDefaults(t *testing.T) {
	c, warnings := load(t, base(nil), config.Options{})
	if len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
	testkit.Equal(t, c.NATS.URL.Reveal(), "nats://127.0.0.1:4222", "NATS URL")
	testkit.Equal(t, c.Redis.URL.Reveal(), "redis://127.0.0.1:6379/0", "Redis URL")
	for what, is := range map[string]bool{
		"NATS":    c.NATS.Stream == "NOTIFICATIONS" && c.NATS.Subject == "notify" && c.NATS.Consumer == "notifier" && c.NATS.Provision && c.NATS.AckWait == 30*time.Second,
		"login":   c.NATS.CredsFile == "" && c.NATS.User == "" && !c.NATS.Password.IsSet() && !c.NATS.Token.IsSet() && !c.NATS.TLS.IsSet(),
		"replies": c.NATS.Replicas == 0 && c.NATS.Inbox == "_INBOX_notifier",
		"stream":  c.Stream == config.Stream{MaxBytes: 1 << 30, MaxAge: 7 * 24 * time.Hour},
		"room":    c.Room == config.Room{Stream: "NOTIFICATIONS_ROOM", Max: 10000},
		"DLQ": c.DLQ == config.DLQ{
			Stream: "NOTIFICATIONS_DLQ", Subject: "notify-dlq", MaxPerSubject: 1000, MaxBytes: 256 << 20, MaxAge: 30 * 24 * time.Hour,
		},
		"Redis": c.Redis.Prefix == "notifier" && c.Redis.Timeout == time.Second && c.Redis.Failure == config.FailureLocal && c.Redis.Grace == 5*time.Second &&
			c.Redis.Scripting == config.ScriptingEval,
		"limits": c.Limits.Global.String() == "100/30m" && c.Limits.Category.String() == "10/30m" && len(c.Limits.Rules) == 0 &&
			c.Limits.DenyCacheTTL == time.Second && !c.Limits.Shadow && len(c.Limits.Guarantees) == 0 && len(c.Limits.ShadowLimits) == 0 &&
			c.Limits.Bucket == "notifier-limits",
		"Slack":   c.Slack.Timeout == 10*time.Second && c.Slack.APIURL == "" && !c.Slack.Token.IsSet() && !c.Slack.WebhookURL.IsSet() && c.Slack.Channel == "",
		"pace":    c.Slack.Rate == limits.Limit{Count: 1, Window: time.Second} && c.Slack.Burst == 5,
		"message": len(c.Slack.Mentions.Entries()) == 0 && c.Slack.TemplateFile == "" && c.Slack.Template == "",
		"drops":   c.SummaryInterval == 30*time.Minute && c.PairTTL == 7*24*time.Hour && longest(c, "security") == 0,
		"event":   c.Event == config.Event{MaxAge: time.Hour, MaxBytes: 262144},
		"HTTP":    c.HTTP == config.HTTP{Addr: ":8080"},
		"log":     c.Log == config.Log{Level: slog.LevelInfo, Format: "json"},
		"sink":    c.Sink == config.SinkConsole,
		"rest":    c.Concurrency == 8 && c.ShutdownTimeout == 25*time.Second && c.MetricsMaxCategories == 50,
		"not set": !c.NATS.URLSet && !c.Redis.URLSet,
	} {
		if !is {
			t.Errorf("%s: not the defaults: %+v", what, c)
		}
	}
}

// longest is how long a denied event of a category may wait, 0 for not at all.
func longest(c config.Config, category string) time.Duration {
	d, _ := c.Delay.Longest.Lookup(category)
	return d
}

func TestValues(t *testing.T) {
	message := write(t, "{{.}}\n")
	c, warnings := load(t, env{
		"NATS_URL":               "nats://user:pass@one:4222, tls://two",
		"NATS_STREAM":            "S",
		"NATS_SUBJECT":           "team.notify",
		"NATS_CONSUMER":          "C",
		"NATS_PROVISION":         "0",
		"NATS_ACK_WAIT":          "3s",
		"NATS_REPLICAS":          "5",
		"NATS_INBOX":             "_INBOX.team",
		"STREAM_MAX_BYTES":       "1048576",
		"STREAM_MAX_AGE":         "0",
		"ROOM_STREAM":            "R",
		"ROOM_MAX":               "1",
		"DLQ_STREAM":             "D",
		"DLQ_SUBJECT":            "team.dead",
		"DLQ_MAX_PER_SUBJECT":    "1000000",
		"DLQ_MAX_BYTES":          "64MB",
		"DLQ_MAX_AGE":            "1d12h",
		"REDIS_URL":              "rediss://:pass@one:6379?addr=two:6379&addr=three:6379",
		"REDIS_PREFIX":           "a.b-c:d",
		"REDIS_TIMEOUT":          "1s",
		"REDIS_FAILURE":          "hold",
		"REDIS_GRACE":            "0",
		"GLOBAL_LIMIT":           "none",
		"CATEGORY_LIMIT":         "10/30m+3/1m",
		"LIMITS":                 "payments=40/30m, payments.*=5/10m,debug=0/1h,security=none",
		"LIMITS_BUCKET":          "Team_1-limits",
		"SHADOW_LIMITS":          "global=50/30m, payments.*=none,category=token:100/1h;burst=20",
		"REDIS_SCRIPTING":        "function",
		"DENY_CACHE_TTL":         "0",
		"SHADOW":                 "1",
		"SLACK_TOKEN":            "xoxb-token",
		"SLACK_CHANNEL":          "#alerts",
		"SLACK_ROUTES":           "payments=#payments, infra.*=C0123",
		"SLACK_API_URL":          "http://127.0.0.1:1/api",
		"SLACK_TIMEOUT":          "1s",
		"SLACK_RATE":             "30/minute",
		"SLACK_BURST":            "100",
		"SLACK_MENTIONS":         "security=@oncall-security, payments.*=@here + @S0123456789+@U01",
		"SLACK_TEMPLATE_FILE":    message,
		"SUMMARY_INTERVAL":       "1s",
		"PAIR_TTL":               "366d",
		"DELAY":                  "payments.>=2h, security = 1d12h,infra.*=week",
		"EVENT_MAX_AGE":          "0",
		"EVENT_MAX_BYTES":        "67108864",
		"CONCURRENCY":            "010",
		"HTTP_ADDR":              "off",
		"LOG_LEVEL":              "debug",
		"LOG_FORMAT":             "text",
		"SHUTDOWN_TIMEOUT":       "1ms",
		"METRICS_MAX_CATEGORIES": "10000",
	}, config.Options{Sink: config.SinkConsole})
	if len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
	route, _ := c.Slack.Routes.Nearest("infra.disk.full")
	handle, _ := c.Slack.Mentions.Nearest("security.breach")
	several, _ := c.Slack.Mentions.Nearest("payments.cards.stolen")
	var rules []string
	for _, rule := range c.Limits.Rules {
		rules = append(rules, rule.Pattern.String()+"="+rule.Limits.String())
	}
	var shadow []string
	for _, o := range c.Limits.ShadowLimits {
		shadow = append(shadow, o.Level+"="+o.Limits.String())
	}
	for what, is := range map[string]bool{
		"NATS": c.NATS.URL.Reveal() == "nats://user:pass@one:4222, tls://two" && c.NATS.URLSet && c.NATS.Stream == "S" && c.NATS.Subject == "team.notify" &&
			c.NATS.Consumer == "C" && !c.NATS.Provision && c.NATS.AckWait == 3*time.Second,
		"replies": c.NATS.Replicas == 5 && c.NATS.Inbox == "_INBOX.team",
		"stream":  c.Stream == config.Stream{MaxBytes: 1 << 20},
		"room":    c.Room == config.Room{Stream: "R", Max: 1},
		"DLQ": c.DLQ == config.DLQ{
			Stream: "D", Subject: "team.dead", MaxPerSubject: 1_000_000, MaxBytes: 64_000_000, MaxAge: 36 * time.Hour,
		},
		"Redis": c.Redis.URL.Reveal() == "rediss://:pass@one:6379?addr=two:6379&addr=three:6379" && c.Redis.URLSet && c.Redis.Prefix == "a.b-c:d" &&
			c.Redis.Failure == config.FailureHold && c.Redis.Grace == 0 && c.Redis.Scripting == config.ScriptingFunction,
		"limits": c.Limits.Global == nil && c.Limits.Category.String() == "10/30m+3/1m" && c.Limits.DenyCacheTTL == 0 && c.Limits.Shadow,
		"bucket": c.Limits.Bucket == "Team_1-limits",
		"shadow": slices.Equal(shadow, []string{"global=50/30m", "payments.*=none", "category=token:100/1h;burst=20"}),
		"rules":  slices.Equal(rules, []string{"payments=40/30m", "payments.*=5/10m", "debug=0/1h", "security=none"}),
		"Slack":  c.Slack.Token.Reveal() == "xoxb-token" && c.Slack.Channel == "#alerts" && c.Slack.APIURL == "http://127.0.0.1:1/api",
		"routes": route.Value == "C0123" && len(c.Slack.Routes.Entries()) == 2,
		"pace":   c.Slack.Rate == limits.Limit{Count: 30, Window: time.Minute} && c.Slack.Burst == 100,
		"mentions": slices.Equal(handle.Value, []string{"oncall-security"}) && slices.Equal(several.Value, []string{"here", "S0123456789", "U01"}) &&
			len(c.Slack.Mentions.Entries()) == 2,
		"template":  c.Slack.TemplateFile == message && c.Slack.Template == "{{.}}\n",
		"summaries": c.SummaryInterval == time.Second && c.PairTTL == 366*24*time.Hour,
		"delays": longest(c, "payments.cards") == 2*time.Hour && longest(c, "payments") == 0 &&
			longest(c, "security") == 36*time.Hour && longest(c, "security.breach") == 0 && longest(c, "infra.disk") == 7*24*time.Hour,
		"sink":  c.Sink == config.SinkSlack,
		"event": c.Event == config.Event{MaxAge: 0, MaxBytes: 64 << 20},
		"HTTP":  c.HTTP == config.HTTP{Addr: "", AddrSet: true},
		"log":   c.Log == config.Log{Level: slog.LevelDebug, Format: "text"},
		"rest":  c.Concurrency == 10 && c.ShutdownTimeout == time.Millisecond && c.MetricsMaxCategories == 10000,
	} {
		if !is {
			t.Errorf("%s: not as set: %+v", what, c)
		}
	}
}

func TestAccepted(t *testing.T) {
	certificate, key := writePair(t)
	for name, variables := range map[string]env{
		"webhook":               {"SINK": "", "SLACK_WEBHOOK_URL": "https://hooks.slack.com/services/T/B/x"},
		"token and console":     {"SLACK_TOKEN": "t", "SLACK_CHANNEL": "#c"},
		"slack by name":         {"SINK": "slack", "SLACK_WEBHOOK_URL": "http://127.0.0.1:1/hook"},
		"port zero":             {"HTTP_ADDR": "127.0.0.1:0"},
		"listen on IPv6":        {"HTTP_ADDR": "[::1]:8080"},
		"web socket":            {"NATS_URL": "wss://one,ws://two:80"},
		"IPv6 server":           {"NATS_URL": "nats://[::1]:4222", "REDIS_URL": "redis://[::1]:6379"},
		"Sentinel":              {"REDIS_URL": "redis://one:26379/2?master_name=main&addr=two:26379"},
		"Cluster, database 0":   {"REDIS_URL": "redis://one:6379/0?addr=two:6379"},
		"user and password":     {"NATS_USER": "u", "NATS_PASSWORD": "p w\t"},
		"user alone":            {"NATS_USER": "u"},
		"certificate authority": {"NATS_TLS_CA_FILE": certificate, "REDIS_TLS_CA_FILE": certificate},
		"client certificate": {
			"NATS_TLS_CERT_FILE": certificate, "NATS_TLS_KEY_FILE": key,
			"REDIS_TLS_CERT_FILE": certificate, "REDIS_TLS_KEY_FILE": key,
		},
		"booleans":                     {"NATS_PROVISION": "false", "SHADOW": "true"},
		"exotic but literal subject":   {"NATS_SUBJECT": "Notify.äö.x-y"},
		"subjects that share a start":  {"NATS_SUBJECT": "notify", "DLQ_SUBJECT": "notify2"},
		"reserved words inside a path": {"LIMITS": "global.x=1/1m,category.*=none", "SLACK_ROUTES": "x.global=#c,*.x=#d"},
		"all slots guaranteed":         {"GUARANTEES": "security=60, payments.cards=40"},
		"guarantees of a mixed limit":  {"GLOBAL_LIMIT": "token:5/1m+30/30m", "GUARANTEES": "security=30"},
		"a guarantee of global":        {"GUARANTEES": "global=1,category=1"}, // ordinary categories
		"functions":                    {"REDIS_SCRIPTING": "function"},
		"longest name of a bucket":     {"LIMITS_BUCKET": strings.Repeat("b", 252)},
		"shadow of no limit":           {"SHADOW_LIMITS": "global=none,category=0/1h"},
		"ack wait just long enough":    {"NATS_ACK_WAIT": "2001ms", "SLACK_TIMEOUT": "1s", "REDIS_TIMEOUT": "1s"},
		"unknown but empty":            {"NAST_URL": ""},
		"no pace":                      {"SLACK_RATE": "none"},
		"fractions of a second":        {"SLACK_RATE": "10000000/1ms", "SUMMARY_INTERVAL": "1s500ms", "PAIR_TTL": "1ms"},
		"no summaries":                 {"SUMMARY_INTERVAL": "0s"},
		"every kind of mention":        {"SLACK_MENTIONS": "*=@here,a=@channel,a.b=@everyone,a.*.c=@U0123ABCD+@W0123ABCD+@S0123ABCD,d=@0n.call_team-2"},
		"delays of everything":         {"DELAY": ">=1h,*=1ms,*.>=366d,x.global=1h,global.>=1h", "ROOM_MAX": "1000000"},
		"mentions and a webhook":       {"SINK": "", "SLACK_WEBHOOK_URL": "https://h/x", "SLACK_MENTIONS": "a=@here+@channel,b=@S0123ABCD+@everyone"},
		"a handle in the console":      {"SLACK_MENTIONS": "a=@oncall"},
		"everything empty": {
			"NATS_URL": "", "NATS_TOKEN": "", "NATS_TOKEN_FILE": "", "NATS_ACK_WAIT": "", "NATS_PROVISION": "", "NATS_TLS_CERT_FILE": "",
			"REDIS_FAILURE": "", "REDIS_GRACE": "", "LIMITS": "", "DELAY": "", "ROOM_MAX": "", "STREAM_MAX_BYTES": "", "NATS_REPLICAS": "", "PAIR_TTL": "", "SUMMARY_INTERVAL": "",
			"SLACK_ROUTES": "", "SLACK_MENTIONS": "", "SLACK_TEMPLATE_FILE": "", "SLACK_RATE": "", "SLACK_BURST": "",
			"CONCURRENCY": "", "HTTP_ADDR": "", "LOG_LEVEL": "",
		},
		"Kubernetes service links": {
			"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "8080", "SERVICE_PORT_HTTP": "8080",
			"PORT": "tcp://10.0.0.1:8080", "PORT_8080_TCP": "tcp://10.0.0.1:8080", "PORT_8080_TCP_PROTO": "tcp",
			"PORT_8080_TCP_PORT": "8080", "PORT_8080_TCP_ADDR": "10.0.0.1", "PORT_53_UDP": "udp://10.0.0.1:53",
			"METRICS_SERVICE_HOST": "10.0.0.2", "METRICS_SERVICE_PORT_HTTP": "80", "METRICS_PORT": "tcp://10.0.0.2:80",
			"METRICS_PORT_80_TCP_ADDR": "10.0.0.2",
		},
	} {
		t.Run(name, func(t *testing.T) { load(t, base(variables), config.Options{}) })
	}
}

// Every rule has a case here: a valid environment, then one thing broken.
func TestFaults(t *testing.T) {
	certificate, key := writePair(t)
	otherCertificate, _ := writePair(t)
	var (
		absent = filepath.Join(t.TempDir(), "absent")
		folder = t.TempDir()
		empty  = write(t, "")
		feed   = write(t, "\n")
		blanks = write(t, " \t \n")
		huge   = write(t, strings.Repeat("x", 64<<10+1))
		text   = write(t, "text")
	)
	slack := func(changes env) env {
		variables := env{"SINK": "slack", "SLACK_TOKEN": "t", "SLACK_CHANNEL": "#c"}
		maps.Copy(variables, changes)
		return variables
	}
	type test struct {
		set      env
		variable string
		problem  string // a part of it
	}
	tests := map[string]test{
		// Single settings.
		"NATS scheme":              {env{"NATS_URL": "http://h"}, "NATS_URL", "expected nats://host:port"},
		"NATS without a scheme":    {env{"NATS_URL": "localhost:4222"}, "NATS_URL", "expected nats://"},
		"NATS without a host":      {env{"NATS_URL": "nats://:4222"}, "NATS_URL", "expected nats://"},
		"NATS port":                {env{"NATS_URL": "nats://h:65536"}, "NATS_URL", "expected nats://"},
		"NATS empty entry":         {env{"NATS_URL": "nats://h,"}, "NATS_URL", "expected nats://"},
		"NATS mixed":               {env{"NATS_URL": "nats://h,ws://h"}, "NATS_URL", "mixes WebSocket"},
		"NATS not a URL":           {env{"NATS_URL": "nats://a b"}, "NATS_URL", "expected nats://"},
		"stream with a dot":        {env{"NATS_STREAM": "a.b"}, "NATS_STREAM", "not a JetStream name"},
		"stream with a blank":      {env{"NATS_STREAM": "a b"}, "NATS_STREAM", "not a JetStream name"},
		"stream too long":          {env{"NATS_STREAM": strings.Repeat("s", 256)}, "NATS_STREAM", "up to 255 bytes"},
		"stream not UTF-8":         {env{"NATS_STREAM": "a\xff"}, "NATS_STREAM", "not a JetStream name"},
		"consumer with a star":     {env{"NATS_CONSUMER": "a*"}, "NATS_CONSUMER", "not a JetStream name"},
		"consumer with a slash":    {env{"NATS_CONSUMER": "a/b"}, "NATS_CONSUMER", "not a JetStream name"},
		"dead-letter stream":       {env{"DLQ_STREAM": "a>"}, "DLQ_STREAM", "not a JetStream name"},
		"subject with a wildcard":  {env{"NATS_SUBJECT": "notify.>"}, "NATS_SUBJECT", "without wildcards"},
		"subject with a star":      {env{"NATS_SUBJECT": "*"}, "NATS_SUBJECT", "without wildcards"},
		"subject with a blank":     {env{"NATS_SUBJECT": "a b"}, "NATS_SUBJECT", "without wildcards"},
		"subject with empty token": {env{"NATS_SUBJECT": "a..b"}, "NATS_SUBJECT", "empty tokens"},
		"subject ends in a dot":    {env{"NATS_SUBJECT": "a."}, "NATS_SUBJECT", "empty tokens"},
		"subject of the server":    {env{"NATS_SUBJECT": "$JS.x"}, "NATS_SUBJECT", "not starting with '$'"},
		"dead-letter subject":      {env{"DLQ_SUBJECT": "d.*"}, "DLQ_SUBJECT", "without wildcards"},
		"provision":                {env{"NATS_PROVISION": "yes"}, "NATS_PROVISION", "expected true, false, 1 or 0"},
		"ack wait":                 {env{"NATS_ACK_WAIT": "30"}, "NATS_ACK_WAIT", "duration above 0"},
		"ack wait of zero":         {env{"NATS_ACK_WAIT": "0s"}, "NATS_ACK_WAIT", "duration above 0"},

		"Redis scheme":           {env{"REDIS_URL": "http://h"}, "REDIS_URL", "expected redis://host:port/0"},
		"Redis without a host":   {env{"REDIS_URL": "redis:///0"}, "REDIS_URL", "expected redis://"},
		"Redis without a scheme": {env{"REDIS_URL": "localhost:6379"}, "REDIS_URL", "expected redis://"},
		"Redis port":             {env{"REDIS_URL": "redis://h:66666"}, "REDIS_URL", "expected redis://"},
		"Redis database":         {env{"REDIS_URL": "redis://h/one"}, "REDIS_URL", "number of a database"},
		"Redis deep path":        {env{"REDIS_URL": "redis://h/0/1"}, "REDIS_URL", "number of a database"},
		"Redis query":            {env{"REDIS_URL": "redis://h?%zz"}, "REDIS_URL", "not a query"},
		"Redis further address":  {env{"REDIS_URL": "redis://h?addr=two"}, "REDIS_URL", "?addr=host:port"},
		"Redis Sentinel name":    {env{"REDIS_URL": "redis://h?master_name="}, "REDIS_URL", "?master_name=name"},
		"Redis unverified":       {env{"REDIS_URL": "rediss://h?skip_verify=true"}, "REDIS_URL", "skip_verify"},
		"Redis unverified, off":  {env{"REDIS_URL": "rediss://h?skip_verify=false"}, "REDIS_URL", "skip_verify"},
		"Redis unverified, bare": {env{"REDIS_URL": "rediss://h/0?skip_verify"}, "REDIS_URL", "skip_verify"},
		"Redis unverified, code": {env{"REDIS_URL": "rediss://h?%73kip%5Fverify=1"}, "REDIS_URL", "skip_verify"},
		"Redis unverified, late": {env{"REDIS_URL": "rediss://h?db=0&skip_verify=no&skip_verify=1"}, "REDIS_URL", "skip_verify"},
		"Redis unverified nodes": {env{"REDIS_URL": "rediss://h?addr=two:6379&skip_verify=1"}, "REDIS_URL", "skip_verify"},
		"Redis unverified group": {env{"REDIS_URL": "rediss://h?master_name=main&skip_verify=1"}, "REDIS_URL", "skip_verify"},
		"Redis Cluster database": {env{"REDIS_URL": "redis://h/1?addr=two:6379"}, "REDIS_URL", "only database 0"},
		"Redis prefix braces":    {env{"REDIS_PREFIX": "{a}"}, "REDIS_PREFIX", "braces or white space"},
		"Redis prefix blank":     {env{"REDIS_PREFIX": "a b"}, "REDIS_PREFIX", "braces or white space"},
		"Redis timeout":          {env{"REDIS_TIMEOUT": "-1s"}, "REDIS_TIMEOUT", "duration above 0"},
		"Redis failure":          {env{"REDIS_FAILURE": "panic"}, "REDIS_FAILURE", "expected hold, local, open or closed"},
		"Redis grace":            {env{"REDIS_GRACE": "-1s"}, "REDIS_GRACE", "expected 0, or one such as"},

		"global limit":         {env{"GLOBAL_LIMIT": "100"}, "GLOBAL_LIMIT", "<count>/<window>"},
		"global limit window":  {env{"GLOBAL_LIMIT": "100/367d"}, "GLOBAL_LIMIT", "366d"},
		"category limit":       {env{"CATEGORY_LIMIT": "-1/30m"}, "CATEGORY_LIMIT", "whole number"},
		"rule without a limit": {env{"LIMITS": "payments"}, "LIMITS", "path=limit"},
		"rule pattern":         {env{"LIMITS": "Payments=1/1m"}, "LIMITS", "upper-case"},
		"rule limit":           {env{"LIMITS": "payments=1/1parsec"}, "LIMITS", "1parsec"},
		"rule twice":           {env{"LIMITS": "a=1/1m,b=none,a=2/1m"}, "LIMITS", `"a" is given twice`},
		"rule empty":           {env{"LIMITS": "a=1/1m,"}, "LIMITS", "empty"},
		"rule global":          {env{"LIMITS": "global=1/1m"}, "LIMITS", "NOTIFIER_GLOBAL_LIMIT"},
		"rule category":        {env{"LIMITS": "category=1/1m"}, "LIMITS", "NOTIFIER_CATEGORY_LIMIT"},
		"rule star":            {env{"LIMITS": "*=1/1m"}, "LIMITS", "NOTIFIER_CATEGORY_LIMIT"},
		"deny cache":           {env{"DENY_CACHE_TTL": "1"}, "DENY_CACHE_TTL", "expected 0, or one such as"},
		"shadow":               {env{"SHADOW": "TRUE"}, "SHADOW", "expected true, false, 1 or 0"},

		"guarantee without slots": {env{"GUARANTEES": "security"}, "GUARANTEES", "not path=slots"},
		"guarantee of nothing":    {env{"GUARANTEES": "security=0"}, "GUARANTEES", "no slots"},
		"guarantee not a number":  {env{"GUARANTEES": "security=20/30m"}, "GUARANTEES", "not a whole number"},
		"guarantee too large":     {env{"GUARANTEES": "security=10000001"}, "GUARANTEES", "above 10000000"},
		"guarantee of a pattern":  {env{"GUARANTEES": "security.*=5"}, "GUARANTEES", `"security.*=5"`},
		"guarantee of upper case": {env{"GUARANTEES": "Security=5"}, "GUARANTEES", `"Security=5"`},
		"guarantee twice":         {env{"GUARANTEES": "a=1,b=1,a=2"}, "GUARANTEES", `"a" is given twice`},
		"guarantee empty":         {env{"GUARANTEES": "a=1,"}, "GUARANTEES", "not path=slots"},

		"bucket with a dot":   {env{"LIMITS_BUCKET": "a.b"}, "LIMITS_BUCKET", "not the name of a key-value bucket"},
		"bucket with a blank": {env{"LIMITS_BUCKET": "a b"}, "LIMITS_BUCKET", "letters, digits, '-' and '_'"},
		"bucket with a star":  {env{"LIMITS_BUCKET": "*"}, "LIMITS_BUCKET", "letters, digits, '-' and '_'"},
		"bucket not ASCII":    {env{"LIMITS_BUCKET": "größe"}, "LIMITS_BUCKET", "letters, digits, '-' and '_'"},
		"bucket too long":     {env{"LIMITS_BUCKET": strings.Repeat("b", 253)}, "LIMITS_BUCKET", "up to 252 bytes"},

		"shadow limit without a limit": {env{"SHADOW_LIMITS": "payments"}, "SHADOW_LIMITS", "not level=limit"},
		"shadow limit":                 {env{"SHADOW_LIMITS": "payments=lots"}, "SHADOW_LIMITS", "<count>/<window>"},
		"shadow limit pattern":         {env{"SHADOW_LIMITS": "Payments=1/1m"}, "SHADOW_LIMITS", "upper-case"},
		"shadow limit star":            {env{"SHADOW_LIMITS": "*=1/1m"}, "SHADOW_LIMITS", "use category"},
		"shadow limit twice":           {env{"SHADOW_LIMITS": "global=1/1m,a=1/1m,global=2/1m"}, "SHADOW_LIMITS", "given twice"},
		"shadow limit algorithm":       {env{"SHADOW_LIMITS": "a=bucket:1/1m"}, "SHADOW_LIMITS", "not one of the algorithms"},

		"scripting":         {env{"REDIS_SCRIPTING": "lua"}, "REDIS_SCRIPTING", "expected eval or function"},
		"scripting by luck": {env{"REDIS_SCRIPTING": "auto"}, "REDIS_SCRIPTING", "expected eval or function"},

		"sink":                    {env{"SINK": "email"}, "SINK", "expected slack or console"},
		"token with a line feed":  {slack(env{"SLACK_TOKEN": "t\r\n"}), "SLACK_TOKEN", "white space"},
		"channel with a blank":    {env{"SLACK_CHANNEL": "a b"}, "SLACK_CHANNEL", "expected one name such as #alerts"},
		"two channels":            {env{"SLACK_CHANNEL": "#a,#b"}, "SLACK_CHANNEL", "expected one name such as #alerts"},
		"route without a channel": {env{"SLACK_ROUTES": "payments="}, "SLACK_ROUTES", "path=channel"},
		"route without a path":    {env{"SLACK_ROUTES": "#payments"}, "SLACK_ROUTES", "path=channel"},
		"route pattern":           {env{"SLACK_ROUTES": "a..b=#c"}, "SLACK_ROUTES", "empty level"},
		"route channel":           {env{"SLACK_ROUTES": "a=#c d"}, "SLACK_ROUTES", `"#c d" is not a channel`},
		"route twice":             {env{"SLACK_ROUTES": "a.*=#c,a.*=#d"}, "SLACK_ROUTES", `"a.*" is given twice`},
		"route star":              {env{"SLACK_ROUTES": "*=#c"}, "SLACK_ROUTES", "use NOTIFIER_SLACK_CHANNEL"},
		"route global":            {env{"SLACK_ROUTES": "global=#c"}, "SLACK_ROUTES", "use NOTIFIER_SLACK_CHANNEL"},
		"webhook scheme":          {env{"SLACK_WEBHOOK_URL": "ftp://h"}, "SLACK_WEBHOOK_URL", "expected https://hooks.slack.com"},
		"webhook host":            {env{"SLACK_WEBHOOK_URL": "https:///x"}, "SLACK_WEBHOOK_URL", "expected https://hooks.slack.com"},
		"webhook line feed":       {env{"SLACK_WEBHOOK_URL": "https://h/x\n"}, "SLACK_WEBHOOK_URL", "expected https://hooks.slack.com"},
		"API URL":                 {env{"SLACK_API_URL": "slack.example.com"}, "SLACK_API_URL", "expected one such as https://"},
		"API URL query":           {env{"SLACK_API_URL": "https://h/api?x=y"}, "SLACK_API_URL", "expected one such as https://"},
		"Slack timeout":           {env{"SLACK_TIMEOUT": "ten"}, "SLACK_TIMEOUT", "duration above 0"},

		"rate without a window":     {env{"SLACK_RATE": "1"}, "SLACK_RATE", "<count>/<window> with a count from 1, such as 1/s"},
		"rate of nothing":           {env{"SLACK_RATE": "0/1s"}, "SLACK_RATE", "with a count from 1"},
		"rate of an algorithm":      {env{"SLACK_RATE": "token:1/s"}, "SLACK_RATE", "not a rate"},
		"rate of the log":           {env{"SLACK_RATE": "log:1/s"}, "SLACK_RATE", "not a rate"},
		"rate with a burst":         {env{"SLACK_RATE": "token:9/s;burst=5"}, "SLACK_RATE", "not a rate"},
		"two rates":                 {env{"SLACK_RATE": "1/s+30/1m"}, "SLACK_RATE", "not a rate"},
		"rate and none":             {env{"SLACK_RATE": "1/s+none"}, "SLACK_RATE", "not a rate"},
		"rate of a long window":     {env{"SLACK_RATE": "1/367d"}, "SLACK_RATE", "not a rate"},
		"burst of nothing":          {env{"SLACK_BURST": "0"}, "SLACK_BURST", "from 1 to 100"},
		"burst too large":           {env{"SLACK_BURST": "101"}, "SLACK_BURST", "from 1 to 100"},
		"burst not a number":        {env{"SLACK_BURST": "none"}, "SLACK_BURST", "not a whole number"},
		"mention without a path":    {env{"SLACK_MENTIONS": "@here"}, "SLACK_MENTIONS", `entry "@here" is not path=mention; expected path=mention,… such as`},
		"mention of nobody":         {env{"SLACK_MENTIONS": "a="}, "SLACK_MENTIONS", "is not path=mention"},
		"mention without its sign":  {env{"SLACK_MENTIONS": "a=here"}, "SLACK_MENTIONS", `"here" is not @here, @channel, @everyone`},
		"mention empty":             {env{"SLACK_MENTIONS": "a=@here+"}, "SLACK_MENTIONS", `"" is not @here`},
		"mention as markup":         {env{"SLACK_MENTIONS": "a=<!here>"}, "SLACK_MENTIONS", `"<!here>" is not @here`},
		"mention of upper case":     {env{"SLACK_MENTIONS": "a=@Oncall"}, "SLACK_MENTIONS", `"@Oncall" is not @here`},
		"mention of a channel's ID": {env{"SLACK_MENTIONS": "a=@C0123ABCD"}, "SLACK_MENTIONS", `"@C0123ABCD" is not @here`},
		"mention too long":          {env{"SLACK_MENTIONS": "a=@" + strings.Repeat("h", 81)}, "SLACK_MENTIONS", "or the handle of a group"},
		"mention of a name":         {env{"SLACK_MENTIONS": "a=@jane doe"}, "SLACK_MENTIONS", `"@jane doe" is not @here`},
		"mention twice":             {env{"SLACK_MENTIONS": "a=@here+@here"}, "SLACK_MENTIONS", `"@here" is there twice`},
		"mention pattern":           {env{"SLACK_MENTIONS": "A=@here"}, "SLACK_MENTIONS", "upper-case"},
		"mention path twice":        {env{"SLACK_MENTIONS": "a=@here,a=@channel"}, "SLACK_MENTIONS", `"a" is given twice`},
		"mention below":             {env{"SLACK_MENTIONS": "a.>=@here"}, "SLACK_MENTIONS", "may hold only"},
		"mention global":            {env{"SLACK_MENTIONS": "global=@here"}, "SLACK_MENTIONS", `"global" is reserved, use *`},
		"mention category":          {env{"SLACK_MENTIONS": "category=@here"}, "SLACK_MENTIONS", `"category" is reserved, use *`},

		"pair of no time":          {env{"PAIR_TTL": "0"}, "PAIR_TTL", "not a duration from 1ms to 366d"},
		"pair of negative time":    {env{"PAIR_TTL": "-1h"}, "PAIR_TTL", "not a duration from 1ms to 366d"},
		"pair too long":            {env{"PAIR_TTL": "367d"}, "PAIR_TTL", "expected one such as 90m, 12h, 7d or 1d12h"},
		"pair in words":            {env{"PAIR_TTL": "for ever"}, "PAIR_TTL", "not a duration"},
		"pair of two times":        {env{"PAIR_TTL": "1h+2/2h"}, "PAIR_TTL", "not a duration"},
		"pair of an algorithm":     {env{"PAIR_TTL": "1h;burst=1"}, "PAIR_TTL", "not a duration"},
		"summaries too often":      {env{"SUMMARY_INTERVAL": "999ms"}, "SUMMARY_INTERVAL", "from 1s to 366d"},
		"summaries negative":       {env{"SUMMARY_INTERVAL": "-1s"}, "SUMMARY_INTERVAL", "or 0 for no summaries"},
		"summaries without a unit": {env{"SUMMARY_INTERVAL": "30"}, "SUMMARY_INTERVAL", "or 0 for no summaries"},
		"summaries too seldom":     {env{"SUMMARY_INTERVAL": "367d"}, "SUMMARY_INTERVAL", "from 1s to 366d"},

		"delay without a path":     {env{"DELAY": "2h"}, "DELAY", `entry "2h" is not path=duration; expected path=duration,… such as security=6h,payments.>=2h`},
		"delay without a duration": {env{"DELAY": "a="}, "DELAY", "is not path=duration"},
		"delay empty":              {env{"DELAY": "a=1h,"}, "DELAY", `entry "" is not path=duration`},
		"delay of no time":         {env{"DELAY": "a=0"}, "DELAY", `entry "a=0": "0" is not a duration from 1ms to 366d`},
		"delay too long":           {env{"DELAY": "a=366d1ms"}, "DELAY", "is not a duration from 1ms to 366d"},
		"delay pattern":            {env{"DELAY": "a.>.b=1h"}, "DELAY", `entry "a.>.b=1h"`},
		"delay upper case":         {env{"DELAY": "A.>=1h"}, "DELAY", "upper-case"},
		"delay twice":              {env{"DELAY": "a.>=1h,a=1h,a.>=2h"}, "DELAY", `"a.>" is given twice`},
		"delay global":             {env{"DELAY": "global=1h"}, "DELAY", `"global" is reserved, use >`},

		"room of nothing":       {env{"ROOM_MAX": "0"}, "ROOM_MAX", "from 1 to 1000000"},
		"room too large":        {env{"ROOM_MAX": "1000001"}, "ROOM_MAX", "from 1 to 1000000"},
		"room stream":           {env{"ROOM_STREAM": "a.b"}, "ROOM_STREAM", "not a JetStream name"},
		"replicas even":         {env{"NATS_REPLICAS": "2"}, "NATS_REPLICAS", "expected auto, 1, 3 or 5"},
		"inbox of a wildcard":   {env{"NATS_INBOX": "_INBOX.>"}, "NATS_INBOX", "not a subject prefix"},
		"size without a number": {env{"STREAM_MAX_BYTES": "GiB"}, "STREAM_MAX_BYTES", "not a size"},
		"size of no unit":       {env{"STREAM_MAX_BYTES": "64Mb"}, "STREAM_MAX_BYTES", "not a size"},
		"size of a fraction":    {env{"STREAM_MAX_BYTES": "1.5GiB"}, "STREAM_MAX_BYTES", "not a size"},
		"size below nothing":    {env{"DLQ_MAX_BYTES": "-1"}, "DLQ_MAX_BYTES", "not a size"},
		"size without its unit": {env{"DLQ_MAX_BYTES": "256"}, "DLQ_MAX_BYTES", "smaller than 1MiB"},
		"size too large":        {env{"DLQ_MAX_BYTES": "8388608TiB"}, "DLQ_MAX_BYTES", "out of range"},
		"size far too large":    {env{"DLQ_MAX_BYTES": "99999999999999999999B"}, "DLQ_MAX_BYTES", "out of range"},
		"age of the stream":     {env{"STREAM_MAX_AGE": "30"}, "STREAM_MAX_AGE", "not a duration from 1m to 366d"},
		"age too short":         {env{"DLQ_MAX_AGE": "59s"}, "DLQ_MAX_AGE", "or 0 for no bound"},
		"dead letters none":     {env{"DLQ_MAX_PER_SUBJECT": "0"}, "DLQ_MAX_PER_SUBJECT", "from 1 to 1000000"},
		"dead letters too many": {env{"DLQ_MAX_PER_SUBJECT": "1000001"}, "DLQ_MAX_PER_SUBJECT", "from 1 to 1000000"},

		"greatest age":         {env{"EVENT_MAX_AGE": "1day"}, "EVENT_MAX_AGE", "expected 0, or one such as"},
		"body size zero":       {env{"EVENT_MAX_BYTES": "0"}, "EVENT_MAX_BYTES", "from 1 to 67108864"},
		"body size too large":  {env{"EVENT_MAX_BYTES": "67108865"}, "EVENT_MAX_BYTES", "from 1 to 67108864"},
		"body size overflow":   {env{"EVENT_MAX_BYTES": "99999999999999999999"}, "EVENT_MAX_BYTES", "out of range"},
		"concurrency hex":      {env{"CONCURRENCY": "0x10"}, "CONCURRENCY", "not a whole number"},
		"concurrency fraction": {env{"CONCURRENCY": "1.5"}, "CONCURRENCY", "not a whole number"},
		"concurrency above":    {env{"CONCURRENCY": "1025"}, "CONCURRENCY", "from 1 to 1024"},
		"categories":           {env{"METRICS_MAX_CATEGORIES": "10001"}, "METRICS_MAX_CATEGORIES", "from 1 to 10000"},
		"no categories":        {env{"METRICS_MAX_CATEGORIES": "0"}, "METRICS_MAX_CATEGORIES", "from 1 to 10000"},
		"address":              {env{"HTTP_ADDR": "8080"}, "HTTP_ADDR", "expected host:port or :port"},
		"address port":         {env{"HTTP_ADDR": ":http"}, "HTTP_ADDR", "from 0 to 65535, or off"},
		"address host":         {env{"HTTP_ADDR": "a b:80"}, "HTTP_ADDR", "expected host:port or :port"},
		"log level":            {env{"LOG_LEVEL": "loud"}, "LOG_LEVEL", "expected debug, info, warn or error"},
		"log format":           {env{"LOG_FORMAT": "xml"}, "LOG_FORMAT", "expected json or text"},
		"shutdown timeout":     {env{"SHUTDOWN_TIMEOUT": "0"}, "SHUTDOWN_TIMEOUT", "duration above 0"},

		// Files.
		"credentials absent":   {env{"NATS_CREDS_FILE": absent}, "NATS_CREDS_FILE", "there is no such file"},
		"credentials a folder": {env{"NATS_CREDS_FILE": folder}, "NATS_CREDS_FILE", "is a folder"},
		"credentials empty":    {env{"NATS_CREDS_FILE": empty}, "NATS_CREDS_FILE", "is empty"},
		"path not a path":      {env{"NATS_CREDS_FILE": strings.Repeat("x", 300)}, "NATS_CREDS_FILE", "cannot be read"},
		"authority absent":     {env{"NATS_TLS_CA_FILE": absent}, "NATS_TLS_CA_FILE", "there is no such file"},
		"authority not PEM":    {env{"REDIS_TLS_CA_FILE": text}, "REDIS_TLS_CA_FILE", "holds no certificate"},
		"certificate absent": {
			env{"REDIS_TLS_CERT_FILE": absent, "REDIS_TLS_KEY_FILE": key}, "REDIS_TLS_CERT_FILE", "there is no such file",
		},
		"key a folder": {env{"NATS_TLS_CERT_FILE": certificate, "NATS_TLS_KEY_FILE": folder}, "NATS_TLS_KEY_FILE", "is a folder"},
		"key of another": {
			env{"NATS_TLS_CERT_FILE": otherCertificate, "NATS_TLS_KEY_FILE": key}, "NATS_TLS_CERT_FILE", "does not go with",
		},
		"template absent":       {env{"SLACK_TEMPLATE_FILE": absent}, "SLACK_TEMPLATE_FILE", "there is no such file"},
		"template a folder":     {env{"SLACK_TEMPLATE_FILE": folder}, "SLACK_TEMPLATE_FILE", "is a folder"},
		"template empty":        {env{"SLACK_TEMPLATE_FILE": empty}, "SLACK_TEMPLATE_FILE", "is empty"},
		"template too large":    {env{"SLACK_TEMPLATE_FILE": write(t, strings.Repeat("x", 256<<10+1))}, "SLACK_TEMPLATE_FILE", "larger than"},
		"secret too large":      {env{"NATS_TOKEN_FILE": huge}, "NATS_TOKEN_FILE", "larger than"},
		"secret of a line feed": {env{"REDIS_PASSWORD_FILE": feed}, "REDIS_PASSWORD_FILE", "is empty"},
		"bad URL in a file":     {env{"REDIS_URL_FILE": text}, "REDIS_URL_FILE", "expected redis://"},

		// Between settings.
		"ack wait as short as the timeouts": {
			env{"NATS_ACK_WAIT": "2s", "SLACK_TIMEOUT": "1s", "REDIS_TIMEOUT": "1s"}, "NATS_ACK_WAIT",
			"not longer than NOTIFIER_SLACK_TIMEOUT=1s and NOTIFIER_REDIS_TIMEOUT=1s",
		},
		"guarantees above the global limit": {
			env{"GLOBAL_LIMIT": "100/30m+30/1m", "GUARANTEES": "a=20,b=11"}, "GUARANTEES",
			"31 slots together are more than the global limit 30/1m has; expected no more slots than NOTIFIER_GLOBAL_LIMIT=100/30m+30/1m",
		},
		"guarantees above the default": {env{"GUARANTEES": "a=101"}, "GUARANTEES", "more than the global limit 100/30m has"},
		"guarantees of no limit":       {env{"GLOBAL_LIMIT": "none", "GUARANTEES": "a=1"}, "GUARANTEES", "a sliding log"},
		"guarantees of a bucket":       {env{"GLOBAL_LIMIT": "token:100/1h", "GUARANTEES": "a=1"}, "GUARANTEES", "it is token:100/1h"},
		"guarantees above the shadow's global limit": {
			env{"GUARANTEES": "a=60", "SHADOW_LIMITS": "global=50/30m"}, "SHADOW_LIMITS", "cannot be tried out: shadow limits: guarantees of 60 slots",
		},
		"default ack wait":          {env{"SLACK_TIMEOUT": "40s"}, "NATS_ACK_WAIT", "not longer than NOTIFIER_SLACK_TIMEOUT=40s"},
		"ack wait with an overflow": {env{"SLACK_TIMEOUT": "2562047h", "REDIS_TIMEOUT": "2562047h"}, "NATS_ACK_WAIT", "not longer than"},
		"token and webhook": {
			slack(env{"SLACK_WEBHOOK_URL": "https://h/x"}), "SLACK_WEBHOOK_URL", "set together with NOTIFIER_SLACK_TOKEN",
		},
		"token without a channel": {slack(env{"SLACK_CHANNEL": ""}), "SLACK_CHANNEL", "not set, but NOTIFIER_SLACK_TOKEN is"},
		"handle and webhook": {
			env{"SLACK_WEBHOOK_URL": "https://h/x", "SLACK_MENTIONS": "a=@here,b=@U01+@oncall"}, "SLACK_MENTIONS",
			`a webhook cannot look up the handle "@oncall" of b; expected the ID of the group, such as @S0123456789, or NOTIFIER_SLACK_TOKEN`,
		},
		"no sink":                  {env{"SINK": ""}, "SINK", "nowhere to send to"},
		"slack without a way":      {env{"SINK": "slack"}, "SINK", "without a way to post"},
		"same stream":              {env{"NATS_STREAM": "S", "DLQ_STREAM": "S"}, "DLQ_STREAM", "the same stream as NOTIFIER_NATS_STREAM"},
		"same subject":             {env{"DLQ_SUBJECT": "notify"}, "DLQ_SUBJECT", "overlaps NOTIFIER_NATS_SUBJECT"},
		"subject under the other":  {env{"DLQ_SUBJECT": "notify.dead"}, "DLQ_SUBJECT", "overlaps NOTIFIER_NATS_SUBJECT"},
		"subject above the other":  {env{"NATS_SUBJECT": "a.b", "DLQ_SUBJECT": "a"}, "DLQ_SUBJECT", "overlaps NOTIFIER_NATS_SUBJECT"},
		"room in the stream":       {env{"NATS_STREAM": "S", "ROOM_STREAM": "S"}, "ROOM_STREAM", "the same stream as NOTIFIER_NATS_STREAM"},
		"letters in the room":      {env{"DLQ_STREAM": "S", "ROOM_STREAM": "S"}, "DLQ_STREAM", "the same stream as NOTIFIER_ROOM_STREAM"},
		"letters' subject waits":   {env{"DLQ_SUBJECT": "notify-room.dead"}, "DLQ_SUBJECT", `overlaps "notify-room", where events wait`},
		"inbox among events":       {env{"NATS_INBOX": "notify.inbox"}, "NATS_INBOX", "overlaps NOTIFIER_NATS_SUBJECT"},
		"inbox in the room":        {env{"NATS_INBOX": "notify-room"}, "NATS_INBOX", `overlaps "notify-room"`},
		"inbox among dead letters": {env{"NATS_INBOX": "notify-dlq.inbox"}, "NATS_INBOX", "overlaps NOTIFIER_DLQ_SUBJECT"},
		"certificate without key":  {env{"NATS_TLS_CERT_FILE": certificate}, "NATS_TLS_KEY_FILE", "not set, but NOTIFIER_NATS_TLS_CERT_FILE is"},
		"key without certificate":  {env{"REDIS_TLS_KEY_FILE": key}, "REDIS_TLS_CERT_FILE", "not set, but NOTIFIER_REDIS_TLS_KEY_FILE is"},
		"password without a user":  {env{"NATS_PASSWORD": "p"}, "NATS_USER", "not set, but NOTIFIER_NATS_PASSWORD is"},
		"token and user":           {env{"NATS_USER": "u", "NATS_TOKEN": "t"}, "NATS_TOKEN", "set together with NOTIFIER_NATS_USER"},
		"credentials and user":     {env{"NATS_CREDS_FILE": text, "NATS_USER": "u"}, "NATS_USER", "set together with NOTIFIER_NATS_CREDS_FILE"},
		"unknown":                  {env{"NAST_URL": "x"}, "NAST_URL", "perhaps NOTIFIER_NATS_URL"},
		"unknown like a port link": {env{"HTTP_PORT": "8080"}, "HTTP_PORT", "perhaps NOTIFIER_HTTP_ADDR"},
		"unknown bare port":        {env{"PORT": "8080"}, "PORT", "no such setting"},
		"unknown file":             {env{"SLACK_TOKN_FILE": "x"}, "SLACK_TOKN_FILE", "perhaps NOTIFIER_SLACK_TOKEN_FILE"},
		"unknown file of no secret": {
			env{"SLACK_CHANNEL_FILE": "x"}, "SLACK_CHANNEL_FILE", "perhaps NOTIFIER_SLACK_CHANNEL",
		},
	}
	for _, name := range secrets {
		tests[name+"_FILE absent"] = test{env{name + "_FILE": absent}, name + "_FILE", "there is no such file"}
		tests[name+"_FILE a folder"] = test{env{name + "_FILE": folder}, name + "_FILE", "is a folder"}
		tests[name+"_FILE empty"] = test{env{name + "_FILE": empty}, name + "_FILE", "is empty"}
		tests[name+"_FILE of blanks"] = test{env{name + "_FILE": blanks}, name + "_FILE", "nothing but blanks"}
		tests[name+" and its file"] = test{
			env{name: secretValues[name], name + "_FILE": write(t, secretValues[name])}, name + "_FILE", "set together with NOTIFIER_" + name,
		}
	}
	for name, tt := range tests {
		// What these secrets need beside them.
		switch tt.variable {
		case "NATS_PASSWORD_FILE":
			tt.set["NATS_USER"] = "u"
		case "SLACK_TOKEN_FILE":
			tt.set["SLACK_CHANNEL"] = "#c"
		}
		t.Run(name, func(t *testing.T) {
			faults := loadFaults(t, base(tt.set))
			if len(faults) != 1 {
				t.Fatalf("%d faults, want 1:\n%v", len(faults), &faults)
			}
			if got, want := faults[0].Variable, "NOTIFIER_"+tt.variable; got != want {
				t.Errorf("fault of %s, want %s", got, want)
			}
			if !strings.Contains(faults[0].Problem, tt.problem) {
				t.Errorf("problem %q, want one that holds %q", faults[0].Problem, tt.problem)
			}
			line := faults.Error()
			if strings.ContainsAny(line, "\r\n") {
				t.Errorf("more than one line: %q", line)
			}
			if !strings.HasPrefix(line, "NOTIFIER_"+tt.variable) || !strings.HasSuffix(line, ": "+faults[0].Problem) {
				t.Errorf("line %q", line)
			}
		})
	}
}

var secrets = []string{
	"NATS_URL", "NATS_PASSWORD", "NATS_TOKEN", "REDIS_URL", "REDIS_PASSWORD", "SLACK_TOKEN", "SLACK_WEBHOOK_URL",
}

// secretValues are valid; each ends in "canary".
var secretValues = env{
	"NATS_URL":          "nats://user:canary@host/canary",
	"NATS_PASSWORD":     "pass canary",
	"NATS_TOKEN":        "token-canary",
	"REDIS_URL":         "redis://user:canary@host:6379?client_name=canary",
	"REDIS_PASSWORD":    "pass canary",
	"SLACK_TOKEN":       "xoxb-canary",
	"SLACK_WEBHOOK_URL": "https://hooks.slack.com/services/T/B/canary",
}

func TestFaultsAllAtOnce(t *testing.T) {
	faults := loadFaults(t, env{
		"NATS_URL":        "nope",
		"NATS_ACK_WAIT":   "soon",
		"NATS_TOKEN_FILE": filepath.Join(t.TempDir(), "absent"),
		"LIMITS":          "a=1,global=1/1m,b=1/1m,b=1/1m",
		"GUARANTEES":      "a=0,b",
		"SHADOW_LIMITS":   "a=1,b=1/1m,b=1/1m",
		"DELAY":           "a=,b=1h,b=1h",
		"SLACK_ROUTES":    "a=,=#b",
		"SLACK_MENTIONS":  "a=@,b=@here,b=@here",
		"SLACK_TOKEN":     "t",
		"CONCURRENCY":     "0",
		"ZZZ":             "1",
		"AAA":             "1",
	})
	var got []string
	for _, fault := range faults {
		got = append(got, strings.TrimPrefix(fault.Variable, "NOTIFIER_"))
	}
	want := []string{
		"NATS_URL", "NATS_TOKEN_FILE", "NATS_ACK_WAIT", "LIMITS", "LIMITS", "LIMITS", "GUARANTEES", "GUARANTEES",
		"SHADOW_LIMITS", "SHADOW_LIMITS", "DELAY", "DELAY", "SLACK_ROUTES", "SLACK_ROUTES", "SLACK_MENTIONS", "SLACK_MENTIONS", "CONCURRENCY",
		"SLACK_CHANNEL", "AAA", "ZZZ",
	}
	testkit.EqualSlices(t, got, want, "variables with faults")
	if lines := strings.Split(faults.Error(), "\n"); len(lines) != len(want) {
		t.Errorf("%d lines, want %d:\n%v", len(lines), len(want), &faults)
	}
}

func TestFaultLine(t *testing.T) {
	for name, tt := range map[string]struct {
		set  env
		want string
	}{
		"quoted":                       {env{"LOG_LEVEL": "lo\nud"}, `NOTIFIER_LOG_LEVEL="lo\nud": not a choice; expected debug, info, warn or error`},
		"not set":                      {env{"SINK": ""}, "NOTIFIER_SINK: nowhere to send to;"},
		"secret":                       {env{"NATS_URL": "x"}, "NOTIFIER_NATS_URL=(hidden): not the URL of a server;"},
		"unknown":                      {env{"TOKEN": "x"}, "NOTIFIER_TOKEN=(hidden): no such setting;"},
		"cut":                          {env{"LOG_LEVEL": strings.Repeat("x", 300)}, `NOTIFIER_LOG_LEVEL="` + strings.Repeat("x", 200) + `…": `},
		"webhook in another place":     {env{"SLACK_CHANNEL": "a https://hooks.slack.com/services/x"}, "NOTIFIER_SLACK_CHANNEL=(hidden): "},
		"token in another place":       {env{"LIMITS": `a="xoxb-canary`}, `NOTIFIER_LIMITS=(hidden): entry (hidden): limit (hidden) is not`},
		"token among mentions":         {env{"SLACK_MENTIONS": "a=xoxb-canary"}, "NOTIFIER_SLACK_MENTIONS=(hidden): entry (hidden): (hidden) is not @here"},
		"token among delays":           {env{"DELAY": "a=xoxb-canary"}, "NOTIFIER_DELAY=(hidden): entry (hidden): (hidden) is not a duration"},
		"credentials in another place": {env{"SLACK_API_URL": "https://user:pass@host"}, "NOTIFIER_SLACK_API_URL=(hidden): "},
	} {
		t.Run(name, func(t *testing.T) {
			if faults := loadFaults(t, base(tt.set)); !strings.HasPrefix(faults.Error(), tt.want) {
				t.Errorf("got  %s\nwant %s", faults.Error(), tt.want)
			}
		})
	}
}

func TestSecretFiles(t *testing.T) {
	read := map[string]func(config.Config) config.Secret{
		"NATS_URL":          func(c config.Config) config.Secret { return c.NATS.URL },
		"NATS_PASSWORD":     func(c config.Config) config.Secret { return c.NATS.Password },
		"NATS_TOKEN":        func(c config.Config) config.Secret { return c.NATS.Token },
		"REDIS_URL":         func(c config.Config) config.Secret { return c.Redis.URL },
		"REDIS_PASSWORD":    func(c config.Config) config.Secret { return c.Redis.Password },
		"SLACK_TOKEN":       func(c config.Config) config.Secret { return c.Slack.Token },
		"SLACK_WEBHOOK_URL": func(c config.Config) config.Secret { return c.Slack.WebhookURL },
	}
	for _, name := range secrets {
		for _, end := range []string{"", "\n"} {
			t.Run(name+end, func(t *testing.T) {
				variables := base(env{name: "", name + "_FILE": write(t, secretValues[name]+end)})
				switch name {
				case "NATS_PASSWORD":
					variables["NATS_USER"] = "u"
				case "SLACK_TOKEN":
					variables["SLACK_CHANNEL"] = "#c"
				}
				c, _ := load(t, variables, config.Options{})
				testkit.Equal(t, read[name](c).Reveal(), secretValues[name], "reveal")
				if name == "NATS_URL" && !c.NATS.URLSet || name == "REDIS_URL" && !c.Redis.URLSet {
					t.Error("counts as not set")
				}
			})
		}
	}

	t.Run("only one line feed is dropped", func(t *testing.T) {
		c, _ := load(t, base(env{"REDIS_PASSWORD_FILE": write(t, "a\n\n")}), config.Options{})
		testkit.Equal(t, c.Redis.Password.Reveal(), "a\n", "reveal")
	})
}

// Each rule knows whether it was given; what is given as it would be by default counts as given.
func TestPlan(t *testing.T) {
	for name, tt := range map[string]struct {
		set  env
		want map[string]limits.Origin
	}{
		"defaults": {nil, map[string]limits.Origin{"global": "default", "category": "default"}},
		"empty":    {env{"GLOBAL_LIMIT": "", "LIMITS": ""}, map[string]limits.Origin{"global": "default", "category": "default"}},
		"given": {
			env{"GLOBAL_LIMIT": "100/30m", "LIMITS": "payments.*=1/1m,global.x=none", "GUARANTEES": "security=20", "SHADOW_LIMITS": "category=1/1m"},
			map[string]limits.Origin{
				"global": "environment", "category": "default", "payments.*": "environment", "global.x": "environment",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := load(t, base(tt.set), config.Options{})
			plan := c.Limits.Plan()
			testkit.EqualMaps(t, plan.Origins, tt.want, "origins")
			if plan.Global.String() != "100/30m" || plan.Category.String() != "10/30m" || len(plan.Rules) != len(c.Limits.Rules) ||
				!slices.Equal(plan.Guarantees, c.Limits.Guarantees) {
				t.Errorf("plan %+v of limits %+v", plan, c.Limits)
			}
			if want := tt.set["GUARANTEES"] != ""; (len(plan.Guarantees) == 1 && plan.Guarantees[0] == limits.Guarantee{Path: "security", Slots: 20}) != want {
				t.Errorf("guarantees %v", plan.Guarantees)
			}
		})
	}
}

func TestSink(t *testing.T) {
	webhook := env{"SLACK_WEBHOOK_URL": "https://h/x"}
	file := env{"SLACK_WEBHOOK_URL_FILE": write(t, "https://h/x\n")}
	for name, tt := range map[string]struct {
		set      env
		fallback string
		want     string
	}{
		"webhook":             {webhook, "", config.SinkSlack},
		"webhook from a file": {file, "", config.SinkSlack},
		"over the fallback":   {webhook, config.SinkConsole, config.SinkSlack},
		"fallback":            {env{}, config.SinkConsole, config.SinkConsole},
		"named over webhook":  {env{"SINK": "console", "SLACK_WEBHOOK_URL": "https://h/x"}, "", config.SinkConsole},
	} {
		t.Run(name, func(t *testing.T) {
			if c, _ := load(t, tt.set, config.Options{Sink: tt.fallback}); c.Sink != tt.want {
				t.Errorf("sink %q, want %q", c.Sink, tt.want)
			}
		})
	}
}

func TestHTTPAddrOption(t *testing.T) {
	o := config.Options{HTTPAddr: "127.0.0.1:8080"}
	if c, _ := load(t, base(nil), o); c.HTTP != (config.HTTP{Addr: "127.0.0.1:8080"}) {
		t.Errorf("default: %+v", c.HTTP)
	}
	if c, _ := load(t, base(env{"HTTP_ADDR": ":1"}), o); c.HTTP != (config.HTTP{Addr: ":1", AddrSet: true}) {
		t.Errorf("set: %+v", c.HTTP)
	}
}

func TestWarnings(t *testing.T) {
	for name, tt := range map[string]struct {
		set  env
		want []string // starts of the warnings
	}{
		"defaults":       {nil, nil},
		"as large":       {env{"CATEGORY_LIMIT": "100/30m"}, nil},
		"above":          {env{"CATEGORY_LIMIT": "101/30m"}, []string{"NOTIFIER_CATEGORY_LIMIT=101/30m is above NOTIFIER_GLOBAL_LIMIT=100/30m"}},
		"shorter window": {env{"CATEGORY_LIMIT": "101/1m"}, []string{"NOTIFIER_CATEGORY_LIMIT=101/1m is above"}},
		"longer window":  {env{"CATEGORY_LIMIT": "200/31m"}, nil},
		"too large even so": {
			env{"CATEGORY_LIMIT": "201/31m"}, []string{"NOTIFIER_CATEGORY_LIMIT=201/31m is above"},
		},
		"no global limit":   {env{"GLOBAL_LIMIT": "none", "CATEGORY_LIMIT": "101/30m"}, nil},
		"no category limit": {env{"CATEGORY_LIMIT": "none"}, nil},
		"largest numbers": {
			env{"GLOBAL_LIMIT": "10000000/1ms", "CATEGORY_LIMIT": "10000000/366d"}, nil,
		},
		"one of several": {
			env{"GLOBAL_LIMIT": "100/30m+5/1m", "CATEGORY_LIMIT": "10/30m+6/1m"},
			[]string{"NOTIFIER_CATEGORY_LIMIT=6/1m is above NOTIFIER_GLOBAL_LIMIT=5/1m"},
		},
		"another algorithm": {env{"CATEGORY_LIMIT": "token:500/30m"}, nil},
		"a burst without a pace": {
			env{"SLACK_RATE": "none", "SLACK_BURST": "5"}, []string{"NOTIFIER_SLACK_BURST has no effect: NOTIFIER_SLACK_RATE is none"},
		},
		"no pace, no burst": {env{"SLACK_RATE": "none"}, nil},
		"a stream that forgets first": {
			env{"STREAM_MAX_AGE": "1h"}, []string{"NOTIFIER_STREAM_MAX_AGE=1h is not above NOTIFIER_EVENT_MAX_AGE=1h: the stream loses an event"},
		},
		"a stream that forgets last":  {env{"STREAM_MAX_AGE": "61m"}, nil},
		"a stream that never forgets": {env{"STREAM_MAX_AGE": "0"}, nil},
		"a rule":                      {env{"LIMITS": "a=1/1m,b.*=500/30m"}, []string{"NOTIFIER_LIMITS: b.*=500/30m is above"}},
		"webhook with channels": {
			env{"SLACK_WEBHOOK_URL": "https://h/x", "SLACK_CHANNEL": "#c", "SLACK_ROUTES": "a=#b"},
			[]string{"NOTIFIER_SLACK_CHANNEL has no effect", "NOTIFIER_SLACK_ROUTES has no effect"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, warnings := load(t, base(tt.set), config.Options{})
			if !slices.EqualFunc(warnings, tt.want, strings.HasPrefix) {
				t.Errorf("got  %q\nwant %q", warnings, tt.want)
			}
		})
	}
}

// What the check of the template says are faults among the others; it is not asked about a file that cannot be read.
func TestCheckTemplate(t *testing.T) {
	file := write(t, "text of the template")
	for name, tt := range map[string]struct {
		file string
		err  error
		want []string // starts of the faults, beside that of the log level
	}{
		"well":    {file, nil, nil},
		"faulty":  {file, errors.New("sample \"info\":\nbreaks"), []string{`NOTIFIER_SLACK_TEMPLATE_FILE="` + file + `": sample "info": breaks`}},
		"twice":   {file, errors.Join(errors.New("one"), errors.New("two")), []string{`NOTIFIER_SLACK_TEMPLATE_FILE="` + file + `": one`, `NOTIFIER_SLACK_TEMPLATE_FILE="` + file + `": two`}},
		"absent":  {file + "-absent", errors.New("asked"), []string{`NOTIFIER_SLACK_TEMPLATE_FILE="` + file + `-absent": there is no such file`}},
		"not set": {"", errors.New("asked"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, base(env{"SLACK_TEMPLATE_FILE": tt.file, "LOG_LEVEL": "loud"}))
			_, _, err := config.Load(config.Options{CheckTemplate: func(text string) error {
				testkit.Equal(t, text, "text of the template", "asked about")
				return tt.err
			}})
			faults := new(config.Faults)
			if !errors.As(err, &faults) {
				t.Fatalf("error %v, want *Faults", err)
			}
			var got []string
			for line := range strings.SplitSeq(faults.Error(), "\n") {
				if !strings.HasPrefix(line, "NOTIFIER_LOG_LEVEL") {
					got = append(got, line)
				}
			}
			if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// The unprefixed name of a variable must not be read.
func TestOnlyThePrefixedName(t *testing.T) {
	for _, setting := range config.Table() {
		t.Setenv(strings.TrimPrefix(setting.Variable, "NOTIFIER_"), "nonsense")
	}
	load(t, base(nil), config.Options{})
}
