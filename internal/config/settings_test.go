package config_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// The settings come from the process's environment, so these tests cannot run in parallel.

type env map[string]string

func load(t *testing.T, variables env, o config.Options) (config.Config, []string) {
	t.Helper()
	testkit.SetSettings(t, variables)
	c, warnings, err := config.Load(o)
	testkit.NoError(t, err)
	return c, warnings
}

func loadBase(t *testing.T, changes env) config.Config {
	t.Helper()
	c, _ := load(t, base(changes), config.Options{})
	return c
}

func loadFaults(t *testing.T, variables env) config.Faults {
	t.Helper()
	testkit.SetSettings(t, variables)
	_, _, err := config.Load(config.Options{})
	faults := new(config.Faults)
	testkit.Require(t, errors.As(err, &faults), "error is a %T, want *Faults", err)
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

// files has paths by their placeholders in the settings of these tests.
type files map[string]string

func newFiles(t *testing.T) files {
	t.Helper()
	all := files{"<absent>": filepath.Join(t.TempDir(), "absent"), "<folder>": t.TempDir(), "<pipe>": filepath.Join(t.TempDir(), "pipe")}
	testkit.NoError(t, syscall.Mkfifo(all["<pipe>"], 0o600)) // nobody writes to it
	for name, content := range map[string]string{
		"<empty>": "", "<line feed>": "\n", "<line end>": "\r\n", "<lines>": "secret\r\n\r\n", "<blanks>": " \t \n", "<text>": "text",
		"<large>": strings.Repeat("x", 64<<10+1), "<huge>": strings.Repeat("x", 256<<10+1),
	} {
		all[name] = write(t, content)
	}
	all["<certificate>"], all["<key>"] = testkit.Certificate(t, "notifier")
	all["<another certificate>"], _ = testkit.Certificate(t, "notifier")
	return all
}

// in replaces the placeholders of settings by paths.
func (f files) in(settings env) env {
	settings = maps.Clone(settings)
	for name, value := range settings {
		if path, known := f[value]; known {
			settings[name] = path
		}
	}
	return settings
}

// secretValues are valid. Each ends in "canary".
var secretValues = env{
	"NATS_URL":          "nats://user:canary@host/canary",
	"NATS_PASSWORD":     "pass canary",
	"NATS_TOKEN":        "token-canary",
	"REDIS_URL":         "redis://user:canary@host:6379?client_name=canary",
	"REDIS_PASSWORD":    "pass canary",
	"SLACK_TOKEN":       "xoxb-canary",
	"SLACK_WEBHOOK_URL": "https://hooks.slack.com/services/T/B/canary",
	"PAGE_TOKEN":        "token-canary",
}

// settings has each setting with its default, another text, and the values of both. The names and defaults are a public contract, so
// the test repeats them.
var settings = []struct{ variable, fallback, byDefault, text, value string }{
	{"NATS_URL", "nats://127.0.0.1:4222", "nats://127.0.0.1:4222", "nats://user:pass@one:4222, tls://two", "nats://user:pass@one:4222, tls://two"},
	{"NATS_CREDS_FILE", "", "", "", ""},
	{"NATS_USER", "", "", "u", "u"},
	{"NATS_PASSWORD", "", "", "p w", "p w"},
	{"NATS_TOKEN", "", "", "", ""},
	{"NATS_TLS_CA_FILE", "", "", "<another certificate>", "<another certificate>"},
	{"NATS_TLS_CERT_FILE", "", "", "<certificate>", "<certificate>"},
	{"NATS_TLS_KEY_FILE", "", "", "<key>", "<key>"},
	{"NATS_STREAM", "NOTIFICATIONS", "NOTIFICATIONS", "S", "S"},
	{"NATS_SUBJECT", "notify", "notify", "team.notify", "team.notify"},
	{"NATS_CONSUMER", "notifier", "notifier", "C", "C"},
	{"NATS_PROVISION", "true", "true", "0", "false"},
	{"NATS_ACK_WAIT", "30s", "30s", "4s", "4s"},
	{"NATS_REPLICAS", "auto", "0", "5", "5"},
	{"NATS_INBOX", "_INBOX_notifier", "_INBOX_notifier", "_INBOX.team", "_INBOX.team"},
	{"STREAM_MAX_BYTES", "1GiB", "1073741824", "1048576", "1048576"},
	{"STREAM_MAX_AGE", "7d", "168h0m0s", "0", "0s"},
	{"ROOM_STREAM", "NOTIFICATIONS_ROOM", "NOTIFICATIONS_ROOM", "R", "R"},
	{"ROOM_MAX", "10000", "10000", "1", "1"},
	{"DLQ_STREAM", "NOTIFICATIONS_DLQ", "NOTIFICATIONS_DLQ", "D", "D"},
	{"DLQ_SUBJECT", "notify-dlq", "notify-dlq", "team.dead", "team.dead"},
	{"DLQ_MAX_PER_SUBJECT", "1000", "1000", "1000000", "1000000"},
	{"DLQ_MAX_BYTES", "256MiB", "268435456", "64MB", "64000000"},
	{"DLQ_MAX_AGE", "30d", "720h0m0s", "1d12h", "36h0m0s"},
	{"JOURNAL_STREAM", "NOTIFICATIONS_JOURNAL", "NOTIFICATIONS_JOURNAL", "J", "J"},
	{"JOURNAL_AGE", "24h", "24h0m0s", "0", "0s"},
	{"JOURNAL_MAX_BYTES", "256MiB", "268435456", "0", "0"},
	{"REDIS_URL", "redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0", "rediss://:pass@one:6379?addr=two:6379&addr=three:6379", "rediss://:pass@one:6379?addr=two:6379&addr=three:6379"},
	{"REDIS_PASSWORD", "", "", "p w", "p w"},
	{"REDIS_TLS_CA_FILE", "", "", "<another certificate>", "<another certificate>"},
	{"REDIS_TLS_CERT_FILE", "", "", "<certificate>", "<certificate>"},
	{"REDIS_TLS_KEY_FILE", "", "", "<key>", "<key>"},
	{"REDIS_PREFIX", "notifier", "notifier", "a.b-c:d", "a.b-c:d"},
	{"REDIS_TIMEOUT", "1s", "1s", "500ms", "500ms"},
	{"REDIS_FAILURE", "local", "local", "hold", "hold"},
	{"REDIS_GRACE", "5s", "5s", "0", "0s"},
	{"REDIS_SCRIPTING", "eval", "eval", "function", "function"},
	{"GLOBAL_LIMIT", "100/30m", "100/30m", "200/1h", "200/1h"},
	{"CATEGORY_LIMIT", "10/30m", "10/30m", "10/30m+3/1m", "10/30m+3/1m"},
	{"LIMITS", "", "[]", "payments=40/30m, payments.*=5/10m,debug=0/1h,security=none,*@key=1/1h",
		"[{payments false 40/30m} {payments.* false 5/10m} {debug false 0/1h} {security false none} {* true 1/1h}]"},
	{"GUARANTEES", "", "[]", "security=60, payments.cards=40", "[{security 60} {payments.cards 40}]"},
	{"LIMITS_BUCKET", "notifier-limits", "notifier-limits", "Team_1-limits", "Team_1-limits"},
	{"SHADOW_LIMITS", "", "[]", "global=150/30m, payments.*=none,category=token:100/1h;burst=20", "[{global 150/30m} {payments.* none} {category token:100/1h;burst=20}]"},
	{"DENY_CACHE_TTL", "1s", "1s", "0", "0s"},
	{"SHADOW", "false", "false", "1", "true"},
	{"PAIR_TTL", "7d", "168h0m0s", "366d", "8784h0m0s"},
	{"REMIND", "0", "0s", "4h", "4h0m0s"},
	{"FOLD", "", "[]", "payments.>=1h, payments.refunds=off", "[{payments.> 1h0m0s} {payments.refunds 0s}]"},
	{"FLAP", "off", "off", "4/20m", "4/20m"},
	{"SUMMARY_INTERVAL", "30m", "30m0s", "1s", "1s"},
	{"DELAY", "", "[]", "payments.>=2h, security = 1d12h,infra.*=week", "[{payments.> 2h0m0s} {security 36h0m0s} {infra.* 168h0m0s}]"},
	{"SINK", "", "console", "slack", "slack"},
	{"SLACK_TOKEN", "", "", "xoxb-token", "xoxb-token"},
	{"SLACK_CHANNEL", "", "", "#alerts", "#alerts"},
	{"SLACK_ROUTES", "", "[]", "payments=#payments, infra.*=C0123, web=payments", "[{payments #payments} {infra.* C0123} {web #payments}]"},
	{"SLACK_MENTIONS", "", "[]", "security=@oncall-security, payments.*=@here + @S0123456789+@U01", "[{security [oncall-security]} {payments.* [here S0123456789 U01]}]"},
	{"SLACK_TEMPLATE_FILE", "", "", "<text>", "text"},
	{"SLACK_WEBHOOK_URL", "", "", "", ""},
	{"SLACK_API_URL", "", "", "http://127.0.0.1:1/api", "http://127.0.0.1:1/api"},
	{"SLACK_TIMEOUT", "10s", "10s", "1s", "1s"},
	{"SLACK_LOOKUP", "auto", "auto", "off", "off"},
	{"SLACK_SETTLE", "2s", "2s", "500ms", "500ms"},
	{"SLACK_RATE", "1/s", "1/1s", "30/minute", "30/1m"},
	{"SLACK_BURST", "1", "1", "100", "100"},
	{"SLACK_WORKSPACE_RATE", "5/s", "5/1s", "300/minute", "300/1m"},
	{"SLACK_UPDATE_RATE", "50/1m", "50/1m", "30/minute", "30/1m"},
	{"SLACK_LOOKUP_RATE", "50/1m", "50/1m", "1/minute", "1/1m"},
	{"EVENT_MAX_AGE", "1h", "1h0m0s", "0", "0s"},
	{"EVENT_MAX_BYTES", "262144", "262144", "67108864", "67108864"},
	{"CONCURRENCY", "8", "8", "010", "10"},
	{"HTTP_ADDR", ":8080", ":8080", "off", ""},
	{"PAGE_ADDR", "", "", "127.0.0.1:8081", "127.0.0.1:8081"},
	{"PAGE_TOKEN", "", "", "page-token", "page-token"},
	{"INGEST_ADDR", ":8082", ":8082", "127.0.0.1:1", "127.0.0.1:1"},
	{"INGEST_TOKENS_FILE", "", "", "<text>", "<text>"},
	{"INGEST_TLS_CERT_FILE", "", "", "<certificate>", "<certificate>"},
	{"INGEST_TLS_KEY_FILE", "", "", "<key>", "<key>"},
	{"INGEST_TLS_CLIENT_CA_FILE", "", "", "<certificate>", "<certificate>"},
	{"INGEST_MAX_BYTES", "16777216", "16777216", "1000", "1000"},
	{"INGEST_RATE", "1000/s", "1000/1s", "30/minute", "30/1m"},
	{"LOG_LEVEL", "info", "INFO", "debug", "DEBUG"},
	{"LOG_FORMAT", "json", "json", "text", "text"},
	{"DRAIN", "5s", "5s", "0", "0s"},
	{"SHUTDOWN_TIMEOUT", "25s", "25s", "1ms", "1ms"},
	{"METRICS_MAX_CATEGORIES", "50", "50", "10000", "10000"},
}

func values(config reflect.Value, prefix string) map[string]string {
	all := make(map[string]string)
	for i := range config.NumField() {
		field, tags := config.Field(i), config.Type().Field(i).Tag
		name := prefix + tags.Get("env")
		switch {
		case tags.Get("form") != "":
			all[name] = shown(field.Interface())
		case field.Kind() == reflect.Struct && name != "":
			maps.Copy(all, values(field, name+"_"))
		case field.Kind() == reflect.Struct:
			maps.Copy(all, values(field, ""))
		}
	}
	return all
}

func shown(value any) string {
	switch v := value.(type) {
	case config.Secret:
		return v.Reveal()
	case event.Table[string]:
		return fmt.Sprint(v.Entries())
	case event.Table[[]string]:
		return fmt.Sprint(v.Entries())
	case event.Scopes[time.Duration]:
		return fmt.Sprint(v.Entries())
	}
	return fmt.Sprint(value)
}

func TestTable(t *testing.T) {
	t.Parallel()
	var want, got []string
	for _, s := range settings {
		_, secret := secretValues[s.variable]
		want = append(want, fmt.Sprintf("NOTIFIER_%s=%s %t", s.variable, s.fallback, secret))
	}
	for _, s := range config.Table() {
		got = append(got, fmt.Sprintf("%s=%s %t", s.Variable, s.Default, s.Secret))
		testkit.Check(t, s.Description != "" && strings.Count(s.Description, "'")%2 == 0 && !strings.ContainsAny(s.Description, "|`\n"),
			"%s: got the description %q, want text without marks", s.Variable, s.Description)
	}
	testkit.EqualSlices(t, got, want, "settings")
}

// An empty variable has the default.
func TestDefaults(t *testing.T) {
	empty := env{"NATS_TOKEN_FILE": ""}
	for _, s := range settings {
		empty[s.variable] = ""
	}
	for _, set := range []env{{}, empty} {
		c, warnings := load(t, set, config.Options{Sink: config.SinkConsole})
		testkit.Check(t, len(warnings) == 0 && !c.NATS.URLSet && !c.Redis.URLSet && !c.HTTP.AddrSet && !c.Page.AddrSet,
			"got the warnings %q and %+v, want none and no address set", warnings, c)
		got := values(reflect.ValueOf(c), "")
		for _, s := range settings {
			testkit.Equal(t, got[s.variable], s.byDefault, "%s", s.variable)
		}
	}
}

func TestValues(t *testing.T) {
	set, files := env{}, newFiles(t)
	for _, s := range settings {
		set[s.variable] = s.text
	}
	c, warnings := load(t, files.in(set), config.Options{Sink: config.SinkConsole})
	testkit.Check(t, len(warnings) == 0 && c.NATS.URLSet && c.Redis.URLSet && c.HTTP.AddrSet && c.Page.AddrSet,
		"got the warnings %q and %+v, want none and each address set", warnings, c)
	got := values(reflect.ValueOf(c), "")
	for _, s := range settings {
		want := s.value
		if path, isFile := files[want]; isFile {
			want = path
		}
		testkit.Equal(t, got[s.variable], want, "%s", s.variable)
	}
}

func TestOnlyThePrefixedName(t *testing.T) {
	for _, setting := range config.Table() {
		t.Setenv(strings.TrimPrefix(setting.Variable, "NOTIFIER_"), "nonsense")
	}
	load(t, base(nil), config.Options{})
}

// The test has each setting that may name a category.
func TestCategories(t *testing.T) {
	for name, test := range map[string]struct {
		settings env
		want     []string
	}{
		"none": {},
		"one of each": {
			env{
				"LIMITS": "limited=1/1m,a.b=none,a.*=1/1m,limited@key=1/1m", "SHADOW_LIMITS": "global=50/30m,category=2/1h,shadowed@key=1/1m,*.b=1/1h",
				"GUARANTEES": "guaranteed=20", "DELAY": "delayed=1h,a.>=1h,>=1m,*=1m", "SLACK_MENTIONS": "mentioned=@here,*=@here",
				"SLACK_ROUTES": "routed=#a,routed.*=#b",
			},
			[]string{"limited", "a.b", "shadowed", "guaranteed", "routed", "delayed", "mentioned"},
		},
		"the same everywhere": {
			env{"LIMITS": "a=1/1m", "SHADOW_LIMITS": "a=2/1m", "GUARANTEES": "a=20", "DELAY": "a=1h", "SLACK_MENTIONS": "a=@here", "SLACK_ROUTES": "a=#a"},
			[]string{"a"},
		},
		"categories called like rules": {env{"GUARANTEES": "global=1,category=1"}, []string{"global", "category"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := loadBase(t, test.settings)
			testkit.EqualSlices(t, c.Categories(), test.want, "categories")
		})
	}
}
