package config_test

import (
	"crypto/tls"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestAccepted(t *testing.T) {
	for name, variables := range map[string]env{
		"token and console":            {"SLACK_TOKEN": "t", "SLACK_CHANNEL": "#c"},
		"slack by name":                {"SINK": "slack", "SLACK_WEBHOOK_URL": "http://127.0.0.1:1/hook"},
		"port zero":                    {"HTTP_ADDR": "127.0.0.1:0"},
		"listen on IPv6":               {"HTTP_ADDR": "[::1]:8080"},
		"one host and port zero":       {"HTTP_ADDR": "127.0.0.1:0", "PAGE_ADDR": "127.0.0.1:0"},
		"one port and two hosts":       {"HTTP_ADDR": "127.0.0.1:1", "PAGE_ADDR": "127.0.0.2:1"},
		"nothing listens":              {"HTTP_ADDR": "off", "PAGE_ADDR": "off"},
		"web socket":                   {"NATS_URL": "wss://one,ws://two:80"},
		"IPv6 server":                  {"NATS_URL": "nats://[::1]:4222", "REDIS_URL": "redis://[::1]:6379"},
		"Sentinel":                     {"REDIS_URL": "redis://one:26379/2?master_name=main&addr=two:26379"},
		"Cluster, database 0":          {"REDIS_URL": "redis://one:6379/0?addr=two:6379"},
		"user alone":                   {"NATS_USER": "u"},
		"exotic but literal subject":   {"NATS_SUBJECT": "Notify.äö.x-y"},
		"subjects that share a start":  {"NATS_SUBJECT": "notify", "DLQ_SUBJECT": "notify2"},
		"reserved words inside a path": {"LIMITS": "global.x=1/1m,category.*=none", "SLACK_ROUTES": "x.global=#c,*.x=#d"},
		"guarantees of a mixed limit":  {"GLOBAL_LIMIT": "token:5/1m+30/30m", "GUARANTEES": "security=30"},
		"longest name of a bucket":     {"LIMITS_BUCKET": strings.Repeat("b", 252)},
		"shadow of no limit":           {"SHADOW_LIMITS": "global=none,category=0/1h"},
		"ack wait just long enough":    {"NATS_ACK_WAIT": "3001ms", "SLACK_TIMEOUT": "1s", "REDIS_TIMEOUT": "1s"},
		"unknown but empty":            {"NAST_URL": ""},
		"fractions of a second":        {"SLACK_RATE": "10000000/1ms", "SUMMARY_INTERVAL": "1s500ms", "PAIR_TTL": "1ms"},
		"every kind of mention":        {"SLACK_MENTIONS": "*=@here,a=@channel,a.b=@everyone,a.*.c=@U0123ABCD+@W0123ABCD+@S0123ABCD,d=@0n.call_team-2"},
		"delays of everything":         {"DELAY": ">=1h,*=1ms,*.>=366d,x.global=1h,global.>=1h", "ROOM_MAX": "1000000"},
		"mentions and a webhook":       {"SINK": "", "SLACK_WEBHOOK_URL": "https://h/x", "SLACK_MENTIONS": "a=@here+@channel,b=@S0123ABCD+@everyone"},
		"a handle in the console":      {"SLACK_MENTIONS": "a=@oncall"},
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

func TestSecretFiles(t *testing.T) {
	for name, value := range secretValues {
		for _, end := range []string{"", "\n", "\r\n"} {
			t.Run(name+end, func(t *testing.T) {
				c := loadBase(t, withNeeds(name, env{name: "", name + "_FILE": write(t, value+end)}))
				testkit.Equal(t, values(reflect.ValueOf(c), "")[name], value, "value")
				if name == "NATS_URL" && !c.NATS.URLSet || name == "REDIS_URL" && !c.Redis.URLSet {
					t.Error("got an address that is not set, want it set")
				}
			})
		}
	}
}

// Each rule has its origin. A setting equal to its default still has the origin environment.
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
			c := loadBase(t, tt.set)
			plan := c.Limits.Plan()
			testkit.EqualMaps(t, plan.Origins, tt.want, "origins")
			if plan.Global.String() != "100/30m" || plan.Category.String() != "10/30m" || len(plan.Rules) != len(c.Limits.Rules) ||
				!slices.Equal(plan.Guarantees, c.Limits.Guarantees) {
				t.Errorf("got the plan %+v, want that of %+v", plan, c.Limits)
			}
			if want := tt.set["GUARANTEES"] != ""; (len(plan.Guarantees) == 1 && plan.Guarantees[0] == limits.Guarantee{Path: "security", Slots: 20}) != want {
				t.Errorf("got the guarantees %v, want the one of the settings", plan.Guarantees)
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
			c, _ := load(t, tt.set, config.Options{Sink: tt.fallback})
			testkit.Equal(t, c.Sink, tt.want, "sink")
		})
	}
}

func TestAddressOptions(t *testing.T) {
	o := config.Options{Defaults: map[string]string{
		"NOTIFIER_HTTP_ADDR": "127.0.0.1:8080", "NOTIFIER_PAGE_ADDR": "127.0.0.1:8081", "NOTIFIER_INGEST_ADDR": "127.0.0.1:8082",
	}}
	c, _ := load(t, base(nil), o)
	testkit.Equal(t, c.HTTP, config.HTTP{Addr: "127.0.0.1:8080"}, "default")
	testkit.Equal(t, c.Page, config.Page{Addr: "127.0.0.1:8081"}, "default")
	testkit.Equal(t, c.Ingest.Addr, "127.0.0.1:8082", "default")
	c, _ = load(t, base(env{"HTTP_ADDR": ":1", "PAGE_ADDR": "off", "INGEST_ADDR": "off"}), o)
	testkit.Equal(t, c.HTTP, config.HTTP{Addr: ":1", AddrSet: true}, "set")
	testkit.Equal(t, c.Page, config.Page{AddrSet: true}, "set")
	testkit.Equal(t, c.Ingest.AddrSet && c.Ingest.Addr == "", true, "set")
}

func TestWarnings(t *testing.T) {
	tomorrow := time.Now().Add(24 * time.Hour)
	ended, endedKey := testkit.CertificateUntil(t, "ingest", time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC))
	ending, endingKey := testkit.CertificateUntil(t, "nats", tomorrow)
	valid, validKey := testkit.CertificateUntil(t, "redis", tomorrow.Add(7*24*time.Hour))
	for name, tt := range map[string]struct {
		set  env
		want []string // starts of the warnings
	}{
		"a burst without a pace": {
			env{"SLACK_RATE": "none", "SLACK_BURST": "5"}, []string{"NOTIFIER_SLACK_BURST has no effect: NOTIFIER_SLACK_RATE is none"},
		},
		"no pace, no burst": {env{"SLACK_RATE": "none"}, nil},
		"a stream that forgets first": {
			env{"STREAM_MAX_AGE": "1h"}, []string{"NOTIFIER_STREAM_MAX_AGE=1h is not above NOTIFIER_EVENT_MAX_AGE=1h: the stream loses an event"},
		},
		"a stream that forgets last":  {env{"STREAM_MAX_AGE": "61m"}, nil},
		"a stream that never forgets": {env{"STREAM_MAX_AGE": "0"}, nil},
		"webhook with channels": {
			env{"SLACK_WEBHOOK_URL": "https://h/x", "SLACK_CHANNEL": "#c", "SLACK_ROUTES": "a=#b"},
			[]string{"NOTIFIER_SLACK_CHANNEL has no effect", "NOTIFIER_SLACK_ROUTES has no effect"},
		},
		"folds that nothing reports": {
			env{"SLACK_WEBHOOK_URL": "https://h/x", "FOLD": "a=off,b=1h", "SUMMARY_INTERVAL": "0"}, []string{"NOTIFIER_FOLD: nothing reports folded events"},
		},
		"flapping keys that nothing reports": {
			env{"SLACK_WEBHOOK_URL": "https://h/x", "FLAP": "4/20m", "SUMMARY_INTERVAL": "0"}, []string{"NOTIFIER_FLAP: nothing reports folded events"},
		},
		"folds in digests": {env{"SLACK_WEBHOOK_URL": "https://h/x", "FOLD": ">=1h"}, nil},
		"certificates that end": {
			env{
				"INGEST_TLS_CERT_FILE": ended, "INGEST_TLS_KEY_FILE": endedKey, "NATS_TLS_CERT_FILE": ending, "NATS_TLS_KEY_FILE": endingKey,
				"REDIS_TLS_CERT_FILE": valid, "REDIS_TLS_KEY_FILE": validKey,
			},
			[]string{
				"NOTIFIER_NATS_TLS_CERT_FILE: the certificate ends at " + tomorrow.UTC().Format(time.RFC3339),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, warnings := load(t, base(tt.set), config.Options{})
			testkit.Check(t, slices.EqualFunc(warnings, tt.want, strings.HasPrefix), "got  %q\nwant %q", warnings, tt.want)
		})
	}
	for proxy, isWarned := range map[string]bool{
		"http://user:p%zz@host": true, "http://user:p%@host": true, "http://user:p%25@host": false, "host:3128": false, "": false,
	} {
		t.Setenv("HTTPS_PROXY", "")
		t.Setenv("https_proxy", proxy)
		t.Setenv("HTTP_PROXY", proxy)
		_, warnings := load(t, base(nil), config.Options{})
		testkit.Equal(t, len(warnings) == 2, isWarned, "warnings about the proxy %q: %q", proxy, warnings)
		if isWarned && (!strings.HasPrefix(strings.Join(warnings, ""), "https_proxy has no effect") || strings.Contains(strings.Join(warnings, ""), "zz")) {
			t.Errorf("warnings about the proxy %q: %q", proxy, warnings)
		}
	}
}

func TestTLSClientConfig(t *testing.T) {
	t.Parallel()
	certificate, key := testkit.Certificate(t, "notifier")
	_, otherKey := testkit.Certificate(t, "notifier")

	if got, err := (config.TLS{}).ClientConfig(); got != nil || err != nil {
		t.Errorf("without files: got %v, %v, want neither", got, err)
	}

	files := config.TLS{CAFile: certificate, CertFile: certificate, KeyFile: key}
	got := testkit.Must(files.ClientConfig())(t)
	testkit.Check(t, got.RootCAs != nil && len(got.Certificates) == 1 && got.MinVersion == tls.VersionTLS12 && !got.InsecureSkipVerify,
		"got %+v, want an authority, a certificate and TLS 1.2", got)

	for name, files := range map[string]config.TLS{
		"authorities absent":    {CAFile: filepath.Join(t.TempDir(), "absent")},
		"authorities not PEM":   {CAFile: write(t, "text")},
		"key of another":        {CertFile: certificate, KeyFile: otherKey},
		"certificate without a": {CertFile: certificate},
	} {
		_, err := files.ClientConfig()
		testkit.Fails(t, name, err, nil)
	}
}
