package config_test

import (
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/config"
)

// The names and defaults are a public contract, so they stand here a second time.
func TestTable(t *testing.T) {
	t.Parallel()
	want := `
NATS_URL=nats://127.0.0.1:4222 *
NATS_CREDS_FILE=
NATS_USER=
NATS_PASSWORD= *
NATS_TOKEN= *
NATS_TLS_CA_FILE=
NATS_TLS_CERT_FILE=
NATS_TLS_KEY_FILE=
NATS_STREAM=NOTIFICATIONS
NATS_SUBJECT=notify
NATS_CONSUMER=notifier
NATS_PROVISION=true
NATS_ACK_WAIT=30s
NATS_REPLICAS=auto
NATS_INBOX=_INBOX_notifier
STREAM_MAX_BYTES=1GiB
STREAM_MAX_AGE=7d
ROOM_STREAM=NOTIFICATIONS_ROOM
ROOM_MAX=10000
DLQ_STREAM=NOTIFICATIONS_DLQ
DLQ_SUBJECT=notify-dlq
DLQ_MAX_PER_SUBJECT=1000
DLQ_MAX_BYTES=256MiB
DLQ_MAX_AGE=30d
REDIS_URL=redis://127.0.0.1:6379/0 *
REDIS_PASSWORD= *
REDIS_TLS_CA_FILE=
REDIS_TLS_CERT_FILE=
REDIS_TLS_KEY_FILE=
REDIS_PREFIX=notifier
REDIS_TIMEOUT=1s
REDIS_FAILURE=local
REDIS_GRACE=5s
REDIS_SCRIPTING=eval
GLOBAL_LIMIT=100/30m
CATEGORY_LIMIT=10/30m
LIMITS=
GUARANTEES=
LIMITS_BUCKET=notifier-limits
SHADOW_LIMITS=
DENY_CACHE_TTL=1s
SHADOW=false
PAIR_TTL=7d
SUMMARY_INTERVAL=30m
DELAY=
SINK=
SLACK_TOKEN= *
SLACK_CHANNEL=
SLACK_ROUTES=
SLACK_MENTIONS=
SLACK_TEMPLATE_FILE=
SLACK_WEBHOOK_URL= *
SLACK_API_URL=
SLACK_TIMEOUT=10s
SLACK_RATE=1/s
SLACK_BURST=5
EVENT_MAX_AGE=1h
EVENT_MAX_BYTES=262144
CONCURRENCY=8
HTTP_ADDR=:8080
LOG_LEVEL=info
LOG_FORMAT=json
SHUTDOWN_TIMEOUT=25s
METRICS_MAX_CATEGORIES=50
`
	var got strings.Builder
	got.WriteString("\n")
	for _, setting := range config.Table() {
		got.WriteString(strings.TrimPrefix(setting.Variable, "NOTIFIER_") + "=" + setting.Default)
		if setting.Secret {
			got.WriteString(" *")
		}
		got.WriteString("\n")
		if setting.Description == "" || strings.Count(setting.Description, "'")%2 != 0 || strings.ContainsAny(setting.Description, "|`\n") {
			t.Errorf("%s: description %q", setting.Variable, setting.Description)
		}
	}
	if got.String() != want {
		t.Errorf("got:%s", got.String())
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	text := config.Markdown()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if got, want := len(lines), len(config.Table())+2; got != want {
		t.Errorf("%d lines, want %d", got, want)
	}
	for _, line := range lines {
		if strings.Count(line, "|") != 4 || strings.Count(line, "`")%2 != 0 {
			t.Errorf("not a row of three cells: %s", line)
		}
	}
	for _, want := range []string{
		"| `NOTIFIER_REDIS_TIMEOUT` | `1s` | timeout of one call to Redis |\n",
		"| `NOTIFIER_NATS_TOKEN` |  | NATS token, instead of a user; or its file in `NOTIFIER_NATS_TOKEN_FILE` |\n",
		"subject prefix of dead letters: `notify-dlq.<reason>.<first level of the category>` |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("without the row %q:\n%s", want, text)
		}
	}
}
