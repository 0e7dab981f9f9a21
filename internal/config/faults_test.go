package config_test

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// badValues are values that a setting refuses, each with a part of the problem. The tests of limits have more of the grammar.
var badValues = []struct {
	variable, problem string
	values            []string
}{
	{"NATS_URL", "expected nats://host:port", []string{"http://h", "localhost:4222", "nats://:4222", "nats://h:65536", "nats://h,", "nats://a b", "nats://a:4222;nats://b:4222"}},
	{"NATS_URL", "mixes WebSocket", []string{"nats://h,ws://h"}},
	{"NATS_STREAM", "not a JetStream name; expected up to 255 bytes", []string{"a.b", "a b", "a\xff", strings.Repeat("s", 256)}},
	{"NATS_CONSUMER", "not a JetStream name", []string{"a*", "a/b"}},
	{"NATS_SUBJECT", "without wildcards, white space and empty tokens, not starting with '$'", []string{"notify.>", "*", "a b", "a..b", "a.", "$JS.x"}},
	{"NATS_INBOX", "not a subject prefix", []string{"_INBOX.>"}},
	{"NATS_PROVISION", "expected true, false, 1 or 0", []string{"yes"}},
	{"NATS_ACK_WAIT", "duration above 0 and up to 366d", []string{"30", "0s", "367d"}},
	{"NATS_REPLICAS", "expected auto, 1, 3 or 5", []string{"2"}},
	{"ROOM_STREAM", "not a JetStream name", []string{"a.b"}},
	{"ROOM_MAX", "from 1 to 1000000", []string{"0", "1000001"}},
	{"STREAM_MAX_BYTES", "not a size", []string{"GiB", "64Mb", "1.5GiB"}},
	{"STREAM_MAX_AGE", "not a duration from 1m to 366d", []string{"30"}},
	{"DLQ_STREAM", "not a JetStream name", []string{"a>"}},
	{"DLQ_SUBJECT", "without wildcards", []string{"d.*"}},
	{"DLQ_MAX_PER_SUBJECT", "from 1 to 1000000", []string{"0", "1000001"}},
	{"DLQ_MAX_BYTES", "not a size", []string{"-1"}},
	{"DLQ_MAX_BYTES", "smaller than 1MiB", []string{"256"}},
	{"DLQ_MAX_BYTES", "out of range", []string{"8388608TiB", "99999999999999999999B"}},
	{"DLQ_MAX_AGE", "or 0 for no bound", []string{"59s"}},
	{"JOURNAL_STREAM", "not a JetStream name", []string{"a b"}},
	{"JOURNAL_AGE", "or 0 for no journal", []string{"59s", "24"}},
	{"JOURNAL_MAX_BYTES", "smaller than 1MiB", []string{"256"}},

	{"REDIS_URL", "expected redis://host:port/0", []string{"http://h", "redis:///0", "localhost:6379", "redis://h:66666"}},
	{"REDIS_URL", "number of a database", []string{"redis://h/one", "redis://h/0/1"}},
	{"REDIS_URL", "not a query", []string{"redis://h?%zz"}},
	{"REDIS_URL", "?addr=host:port", []string{"redis://h?addr=two"}},
	{"REDIS_URL", "?master_name=name", []string{"redis://h?master_name="}},
	{"REDIS_URL", "skip_verify", []string{
		"rediss://h?skip_verify=true", "rediss://h?skip_verify=false", "rediss://h/0?skip_verify", "rediss://h?%73kip%5Fverify=1",
		"rediss://h?db=0&skip_verify=no&skip_verify=1", "rediss://h?addr=two:6379&skip_verify=1", "rediss://h?master_name=main&skip_verify=1",
	}},
	{"REDIS_URL", "only database 0", []string{"redis://h/1?addr=two:6379"}},
	{"REDIS_PREFIX", "braces or white space", []string{"{a}", "a b"}},
	{"REDIS_TIMEOUT", "duration above 0", []string{"-1s"}},
	{"REDIS_FAILURE", "expected hold, local, open or closed", []string{"panic"}},
	{"REDIS_GRACE", "expected 0, or one such as", []string{"-1s", "367d"}},
	{"REDIS_SCRIPTING", "expected eval or function", []string{"lua", "auto"}},

	{"GLOBAL_LIMIT", "<count>/<window>", []string{"100"}},
	{"CATEGORY_LIMIT", "whole number", []string{"-1/30m"}},
	{"LIMITS", "path=limit", []string{"payments", "a=1/1h,,,b=1/1h"}},
	{"GUARANTEES", "no slots", []string{"security=0"}},
	{"LIMITS_BUCKET", "not the name of a key-value bucket; expected letters, digits, '-' and '_'", []string{"a.b", "a b", "*", "größe"}},
	{"LIMITS_BUCKET", "up to 252 bytes", []string{strings.Repeat("b", 253)}},
	{"SHADOW_LIMITS", "not level=limit", []string{"payments"}},
	{"DENY_CACHE_TTL", "expected 0, or one such as", []string{"1"}},
	{"SHADOW", "expected true, false, 1 or 0", []string{"TRUE"}},

	{"PAIR_TTL", "not a duration from 1ms to 366d; expected one such as 90m, 12h, 7d or 1d12h", []string{
		"0", "-1h", "367d", "for ever", "1h+2/2h", "1h;burst=1",
	}},
	{"REMIND", "not a duration from 1s to 366d; expected one such as 90m, 4h or 1d, or 0 for no reminders", []string{"999ms", "367d", "-4h", "4", "off"}},
	{"SUMMARY_INTERVAL", "from 1s to 366d; expected one such as 30m, 12h or 1d, or 0 for no summaries", []string{"999ms", "367d", "-1s", "30"}},
	{"FOLD", `entry "1h" is not path=duration; expected path=duration,… such as payments.>=1h,payments.refunds=off`, []string{"1h"}},
	{"FOLD", `" is not a duration from 1ms to 366d`, []string{"a=0", "a=on"}},
	{"FOLD", "upper-case", []string{"A.>=off"}},
	{"FLAP", "not <changes>/<window> with 2 to 20 changes within 1s to 24h", []string{"4", "1/20m", "21/20m", "4/25h", "4/999ms", "none", "log:4/20m"}},
	{"DELAY", `entry "2h" is not path=duration; expected path=duration,… such as security=6h,payments.>=2h`, []string{"2h"}},
	{"DELAY", "is not path=duration", []string{"a=1h,"}},
	{"DELAY", `" is not a duration from 1ms to 366d`, []string{"a=0", "a=366d1ms"}},
	{"DELAY", `entry "a.>.b=1h"`, []string{"a.>.b=1h"}},
	{"DELAY", "upper-case", []string{"A.>=1h"}},
	{"DELAY", `"a.>" is given twice`, []string{"a.>=1h,a=1h,a.>=2h"}},
	{"DELAY", `"global" is reserved, use >`, []string{"global=1h"}},

	{"SINK", "expected slack or console", []string{"email"}},
	{"SLACK_CHANNEL", "expected one name such as #alerts", []string{"a b", "#a,#b", "##a", "#", "https://x.slack.com/archives/C0123456789"}},
	{"SLACK_ROUTES", "empty level", []string{"a..b=#c"}},
	{"SLACK_ROUTES", `"#c d" is not a channel`, []string{"a=#c d"}},
	{"SLACK_ROUTES", "is reserved, use NOTIFIER_SLACK_CHANNEL", []string{"*=#c", "global=#c"}},
	{"SLACK_MENTIONS", `entry "@here" is not path=mention; expected path=mention,… such as`, []string{"@here"}},
	{"SLACK_MENTIONS", `" is not @here, @channel, @everyone, the ID of a user or group, or the handle of a group`, []string{
		"a=here", "a=@here+", "a=<!here>", "a=@Oncall", "a=@C0123ABCD", "a=@" + strings.Repeat("h", 81), "a=@jane doe", "a=@x>", "a=@x|y", "a=@été", "a=@B0123ABCD",
	}},
	{"SLACK_MENTIONS", `"@here" is set twice`, []string{"a=@here+@here"}},
	{"SLACK_MENTIONS", "may hold only", []string{"a.>=@here"}},
	{"SLACK_MENTIONS", "is reserved, use *", []string{"global=@here", "category=@here"}},
	{"SLACK_WEBHOOK_URL", "expected https://hooks.slack.com", []string{"ftp://h", "https:///x", "https://h/x\n"}},
	{"SLACK_API_URL", "expected one such as https://", []string{"slack.example.com", "https://h/api?x=y"}},
	{"SLACK_TIMEOUT", "duration above 0", []string{"ten"}},
	{"SLACK_LOOKUP", "expected auto or off", []string{"on"}},
	{"SLACK_SETTLE", "expected 0, or one such as", []string{"2"}},
	{"SLACK_RATE", "not a rate; expected <count>/<window> with a count from 1, such as 1/s", []string{
		"1", "0/1s", "token:1/s", "log:1/s", "token:9/s;burst=5", "1/s+30/1m", "1/s+none", "1/367d",
	}},
	{"SLACK_WORKSPACE_RATE", "not a rate", []string{"5", "0/1s"}},
	{"SLACK_UPDATE_RATE", "not a rate", []string{"50", "0/1m"}},
	{"SLACK_LOOKUP_RATE", "not a rate", []string{"50", "0/1m"}},
	{"SLACK_BURST", "from 1 to 100", []string{"0", "101"}},
	{"SLACK_BURST", "not a whole number", []string{"none"}},

	{"EVENT_MAX_AGE", "expected 0, or one such as", []string{"1day"}},
	{"EVENT_MAX_BYTES", "out of range; expected a whole number from 1 to 67108864", []string{"0", "67108865", "99999999999999999999"}},
	{"CONCURRENCY", "not a whole number", []string{"0x10", "1.5"}},
	{"CONCURRENCY", "from 1 to 1024", []string{"1025"}},
	{"METRICS_MAX_CATEGORIES", "from 1 to 10000", []string{"10001", "0"}},
	{"PAGE_ADDR", "expected host:port or :port with a port from 0 to 65535, or off", []string{"8081", "http://127.0.0.1:8081"}},
	{"HTTP_ADDR", "expected host:port or :port with a port from 0 to 65535, or off", []string{"8080", "a b:80", ":http"}},
	{"LOG_LEVEL", "expected debug, info, warn or error", []string{"loud"}},
	{"LOG_FORMAT", "expected json or text", []string{"xml"}},
	{"DRAIN", "not a duration", []string{"-1s", "5"}},
	{"SHUTDOWN_TIMEOUT", "duration above 0", []string{"0"}},

	{"NATS_CREDS_FILE", "cannot be read", []string{strings.Repeat("x", 300)}},
	{"NATS_CREDS_FILE", "there is no such file", []string{"<absent>"}},
	{"NATS_CREDS_FILE", "is a folder", []string{"<folder>"}},
	{"NATS_CREDS_FILE", "is empty", []string{"<empty>"}},
	{"REDIS_TLS_CA_FILE", "holds no certificate", []string{"<text>"}},
	{"SLACK_TEMPLATE_FILE", "larger than 262144", []string{"<huge>"}},
	{"NATS_TOKEN_FILE", "larger than 65536", []string{"<large>"}},
	{"REDIS_PASSWORD_FILE", "is empty", []string{"<line feed>", "<line end>"}},
	{"REDIS_PASSWORD_FILE", "holds a line end", []string{"<lines>"}},
	{"REDIS_PASSWORD", "holds a line end", []string{"secret\r", "secret\n", "se\ncret"}},
	{"NATS_USER", "holds a line end", []string{"worker\r"}},
	{"REDIS_URL_FILE", "expected redis://", []string{"<text>"}},
}

// badTogether are settings that exclude each other, with the variable and a part of the problem.
var badTogether = map[string]struct {
	set      env
	variable string
	problem  string
}{
	"token with a line feed": {env{"SLACK_TOKEN": "t\r\n", "SLACK_CHANNEL": "#c"}, "SLACK_TOKEN", "white space"},
	"certificate absent":     {env{"REDIS_TLS_CERT_FILE": "<absent>", "REDIS_TLS_KEY_FILE": "<key>"}, "REDIS_TLS_CERT_FILE", "there is no such file"},
	"flap beyond the pairs":  {env{"FLAP": "4/20m", "PAIR_TTL": "19m"}, "FLAP", "its window is longer than NOTIFIER_PAIR_TTL=19m"},
	"key a folder":           {env{"NATS_TLS_CERT_FILE": "<certificate>", "NATS_TLS_KEY_FILE": "<folder>"}, "NATS_TLS_KEY_FILE", "is a folder"},
	"key of another":         {env{"NATS_TLS_CERT_FILE": "<another certificate>", "NATS_TLS_KEY_FILE": "<key>"}, "NATS_TLS_CERT_FILE", "does not go with"},

	"ack wait as short as a post": {
		env{"NATS_ACK_WAIT": "3s", "SLACK_TIMEOUT": "1s", "REDIS_TIMEOUT": "1s"}, "NATS_ACK_WAIT",
		"not longer than one post may take, 3s by NOTIFIER_SLACK_TIMEOUT=1s, NOTIFIER_REDIS_TIMEOUT=1s; expected more",
	},
	"ack wait as short as a post with a mention": {
		env{"NATS_ACK_WAIT": "5s", "SLACK_TIMEOUT": "1s", "REDIS_TIMEOUT": "1s", "SLACK_MENTIONS": "a=@here"}, "NATS_ACK_WAIT",
		"not longer than one post may take, 5s by NOTIFIER_SLACK_TIMEOUT=1s, NOTIFIER_REDIS_TIMEOUT=1s and NOTIFIER_SLACK_MENTIONS; expected more",
	},
	"default ack wait": {env{"SLACK_TIMEOUT": "28s"}, "NATS_ACK_WAIT", "not longer than one post may take, 30s by NOTIFIER_SLACK_TIMEOUT=28s"},
	"guarantees above the global limit": {
		env{"GLOBAL_LIMIT": "100/30m+30/1m", "GUARANTEES": "a=20,b=11"}, "GUARANTEES",
		"cannot be kept with NOTIFIER_GLOBAL_LIMIT: guarantees of 31 slots together are more than the global limit 30/1m has",
	},
	"guarantees above the default": {env{"GUARANTEES": "a=101"}, "GUARANTEES", "more than the global limit 100/30m has"},
	"guarantees of no limit":       {env{"GLOBAL_LIMIT": "none", "GUARANTEES": "a=1"}, "GUARANTEES", "a sliding log"},
	"guarantees of a bucket":       {env{"GLOBAL_LIMIT": "token:100/1h", "GUARANTEES": "a=1"}, "GUARANTEES", "it is token:100/1h"},
	"guarantees above the shadow's global limit": {
		env{"GUARANTEES": "a=60", "SHADOW_LIMITS": "global=50/30m"}, "SHADOW_LIMITS", "cannot be tried out: shadow limits: guarantees of 60 slots",
	},
	"token and webhook": {
		env{"SLACK_TOKEN": "t", "SLACK_CHANNEL": "#c", "SLACK_WEBHOOK_URL": "https://h/x"}, "SLACK_WEBHOOK_URL", "set together with NOTIFIER_SLACK_TOKEN",
	},
	"token without a channel": {env{"SLACK_TOKEN": "t"}, "SLACK_CHANNEL", "not set, but NOTIFIER_SLACK_TOKEN is"},
	"handle and webhook": {
		env{"SLACK_WEBHOOK_URL": "https://h/x", "SLACK_MENTIONS": "a=@here,b=@U01+@oncall"}, "SLACK_MENTIONS",
		`a webhook cannot look up the handle "@oncall" of b; expected the ID of the group, such as @S0123456789, or NOTIFIER_SLACK_TOKEN`,
	},
	"page at the metrics":      {env{"HTTP_ADDR": "127.0.0.1:1", "PAGE_ADDR": "127.0.0.1:1"}, "PAGE_ADDR", "the same address as NOTIFIER_HTTP_ADDR=127.0.0.1:1; expected another port"},
	"page at default metrics":  {env{"PAGE_ADDR": "127.0.0.1:8080"}, "PAGE_ADDR", "the same address as NOTIFIER_HTTP_ADDR=:8080"},
	"no sink":                  {env{"SINK": ""}, "SINK", "nowhere to send to"},
	"slack without a way":      {env{"SINK": "slack"}, "SINK", "without a way to post"},
	"same stream":              {env{"NATS_STREAM": "S", "DLQ_STREAM": "S"}, "DLQ_STREAM", "the same stream as NOTIFIER_NATS_STREAM"},
	"room in the stream":       {env{"NATS_STREAM": "S", "ROOM_STREAM": "S"}, "ROOM_STREAM", "the same stream as NOTIFIER_NATS_STREAM"},
	"letters in the room":      {env{"DLQ_STREAM": "S", "ROOM_STREAM": "S"}, "DLQ_STREAM", "the same stream as NOTIFIER_ROOM_STREAM"},
	"limits in the stream":     {env{"NATS_STREAM": "KV_X", "LIMITS_BUCKET": "X"}, "LIMITS_BUCKET", "the same stream as NOTIFIER_NATS_STREAM"},
	"journal in the room":      {env{"JOURNAL_STREAM": "S", "ROOM_STREAM": "S"}, "JOURNAL_STREAM", "the same stream as NOTIFIER_ROOM_STREAM"},
	"letters in the journal":   {env{"DLQ_SUBJECT": "notify-journal.dead"}, "DLQ_SUBJECT", `overlaps "notify-journal", where the journal is`},
	"same subject":             {env{"DLQ_SUBJECT": "notify"}, "DLQ_SUBJECT", "overlaps NOTIFIER_NATS_SUBJECT"},
	"subject under the other":  {env{"DLQ_SUBJECT": "notify.dead"}, "DLQ_SUBJECT", "overlaps NOTIFIER_NATS_SUBJECT"},
	"subject above the other":  {env{"NATS_SUBJECT": "a.b", "DLQ_SUBJECT": "a"}, "DLQ_SUBJECT", "overlaps NOTIFIER_NATS_SUBJECT"},
	"letters' subject waits":   {env{"DLQ_SUBJECT": "notify-room.dead"}, "DLQ_SUBJECT", `overlaps "notify-room", where events wait`},
	"inbox among events":       {env{"NATS_INBOX": "notify.inbox"}, "NATS_INBOX", "overlaps NOTIFIER_NATS_SUBJECT"},
	"inbox in the room":        {env{"NATS_INBOX": "notify-room"}, "NATS_INBOX", `overlaps "notify-room"`},
	"inbox among dead letters": {env{"NATS_INBOX": "notify-dlq.inbox"}, "NATS_INBOX", "overlaps NOTIFIER_DLQ_SUBJECT"},
	"authorities without TLS":  {env{"INGEST_TLS_CLIENT_CA_FILE": "<certificate>"}, "INGEST_TLS_CERT_FILE", "not set, but NOTIFIER_INGEST_TLS_CLIENT_CA_FILE is"},
	"certificate of no key":    {env{"INGEST_TLS_CERT_FILE": "<certificate>"}, "INGEST_TLS_KEY_FILE", "not set, but NOTIFIER_INGEST_TLS_CERT_FILE is"},
	"certificate without key":  {env{"NATS_TLS_CERT_FILE": "<certificate>"}, "NATS_TLS_KEY_FILE", "not set, but NOTIFIER_NATS_TLS_CERT_FILE is"},
	"key without certificate":  {env{"REDIS_TLS_KEY_FILE": "<key>"}, "REDIS_TLS_CERT_FILE", "not set, but NOTIFIER_REDIS_TLS_KEY_FILE is"},
	"password without a user":  {env{"NATS_PASSWORD": "p"}, "NATS_USER", "not set, but NOTIFIER_NATS_PASSWORD is"},
	"token and user":           {env{"NATS_USER": "u", "NATS_TOKEN": "t"}, "NATS_TOKEN", "set together with NOTIFIER_NATS_USER"},
	"credentials and user":     {env{"NATS_CREDS_FILE": "<text>", "NATS_USER": "u"}, "NATS_USER", "set together with NOTIFIER_NATS_CREDS_FILE"},

	"unknown":                   {env{"NAST_URL": "x"}, "NAST_URL", "perhaps NOTIFIER_NATS_URL"},
	"unknown like a port link":  {env{"HTTP_PORT": "8080"}, "HTTP_PORT", "perhaps NOTIFIER_HTTP_ADDR"},
	"unknown bare port":         {env{"PORT": "8080"}, "PORT", "no such setting"},
	"unknown lower case":        {env{"slack_rate": "x"}, "slack_rate", "perhaps NOTIFIER_SLACK_RATE"},
	"unknown file":              {env{"SLACK_TOKN_FILE": "x"}, "SLACK_TOKN_FILE", "perhaps NOTIFIER_SLACK_TOKEN_FILE"},
	"unknown file of no secret": {env{"SLACK_CHANNEL_FILE": "x"}, "SLACK_CHANNEL_FILE", "perhaps NOTIFIER_SLACK_CHANNEL"},
}

// badSecretFiles are files without a readable secret, with a part of the problem.
var badSecretFiles = map[string]string{
	"<absent>": "there is no such file", "<folder>": "is a folder", "<pipe>": "is empty", "<empty>": "is empty", "<blanks>": "nothing but blanks",
}

// Each rule has a case. Settings with one mistake have one fault.
func TestFaults(t *testing.T) {
	files := newFiles(t)
	check := func(name string, set env, variable, problem string) {
		t.Run(name, func(t *testing.T) {
			faults := loadFaults(t, base(files.in(set)))
			testkit.Require(t, len(faults) == 1, "%d faults, want 1:\n%v", len(faults), &faults)
			testkit.Equal(t, faults[0].Variable, "NOTIFIER_"+variable, "variable")
			testkit.Contains(t, "problem", faults[0].Problem, problem)
			line := faults.Error()
			if strings.ContainsAny(line, "\r\n") || !strings.HasPrefix(line, "NOTIFIER_"+variable) || !strings.HasSuffix(line, ": "+faults[0].Problem) {
				t.Errorf("got %q, want one line with the variable and the problem", line)
			}
		})
	}
	for _, bad := range badValues {
		for _, value := range bad.values {
			check(bad.variable+"="+value, env{bad.variable: value}, bad.variable, bad.problem)
		}
	}
	for name, bad := range badTogether {
		check(name, bad.set, bad.variable, bad.problem)
	}
	for name, value := range secretValues {
		for file, problem := range badSecretFiles {
			check(name+"_FILE="+file, withNeeds(name, env{name + "_FILE": file}), name+"_FILE", problem)
		}
		both := env{name: value, name + "_FILE": write(t, value)}
		check(name+" and its file", withNeeds(name, both), name+"_FILE", "set together with NOTIFIER_"+name)
	}
}

// withNeeds adds the setting that a secret requires.
func withNeeds(secret string, set env) env {
	needs := map[string]env{"NATS_PASSWORD": {"NATS_USER": "u"}, "SLACK_TOKEN": {"SLACK_CHANNEL": "#c"}}
	maps.Copy(set, needs[secret])
	return set
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
	testkit.Equal(t, strings.Count(faults.Error(), "\n")+1, len(want), "lines of the error")
}

// TestLowerCasePrefix sets a variable whose whole name is in lower case. The worker would run with the default instead.
func TestLowerCasePrefix(t *testing.T) {
	t.Setenv("notifier_global_limit", "5/1m")
	faults := loadFaults(t, base(nil))
	testkit.Equal(t, faults.Error(), "notifier_global_limit=(hidden): no such setting; expected perhaps NOTIFIER_GLOBAL_LIMIT", "faults")
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
			faults := loadFaults(t, base(tt.set))
			testkit.Check(t, strings.HasPrefix(faults.Error(), tt.want), "got  %s\nwant %s", faults.Error(), tt.want)
		})
	}
}

// Errors of the template's check are faults among the others. The check is not called for an unreadable file.
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
			testkit.SetSettings(t, base(env{"SLACK_TEMPLATE_FILE": tt.file, "LOG_LEVEL": "loud"}))
			_, _, err := config.Load(config.Options{CheckTemplate: func(text string) error {
				testkit.Equal(t, text, "text of the template", "asked about")
				return tt.err
			}})
			faults := new(config.Faults)
			testkit.Require(t, errors.As(err, &faults), "error %v, want *Faults", err)
			var got []string
			for line := range strings.SplitSeq(faults.Error(), "\n") {
				if !strings.HasPrefix(line, "NOTIFIER_LOG_LEVEL") {
					got = append(got, line)
				}
			}
			testkit.Check(t, slices.EqualFunc(got, tt.want, strings.HasPrefix), "got  %q\nwant %q", got, tt.want)
		})
	}
}
