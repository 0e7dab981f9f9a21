package config_test

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Equivalent texts have one shared value and hash. Other texts have others.
func TestShared(t *testing.T) {
	for _, test := range []struct{ variable, text, same, other string }{
		{"GLOBAL_LIMIT", "100/30m", "100/1800s", "50/30m"},
		{"LIMITS", "payments=5/1m, security=none", "security=none,payments=5/1m", "payments=6/1m,security=none"},
		{"GUARANTEES", "payments=5,security=6", "security = 6, payments = 5", "payments=6,security=5"},
		{"SHADOW_LIMITS", "global=5/1m,payments=6/1m", "payments=6/1m,global=5/1m", "global=5/1m"},
		{"DELAY", "payments=5m,>=1m", ">=1m,payments=5m", ">=1m"},
		{"SLACK_ROUTES", "payments=#a,security=#b", "security=#b,payments=#a", "payments=#b,security=#a"},
		{"PAIR_TTL", "1d", "24h", "2d"},
		{"REMIND", "4h", "240m", "0"},
		{"NATS_ACK_WAIT", "32s500ms", "32500ms", "33s"},
		{"FLAP", "4/20m", "4/1200s", "off"},
		{"FOLD", "payments=1h,>=off", ">=off, payments=1h", ">=1h"},
		{"EVENT_MAX_BYTES", "1024", "1024", "1025"},
		{"SHADOW", "true", "true", "false"},
		{"REDIS_FAILURE", "hold", "hold", "open"},
		{"SLACK_RATE", "1/s", "1/1s", "2/s"},
		{"SLACK_WORKSPACE_RATE", "5/s", "5/1s", "6/s"},
		{"SLACK_UPDATE_RATE", "50/m", "50/1m", "none"},
		{"SLACK_LOOKUP_RATE", "50/m", "50/1m", "1/m"},
	} {
		t.Run(test.variable, func(t *testing.T) {
			hashOf := func(text string) (value, hash string) {
				settings := loadBase(t, env{test.variable: text})
				return settings.Shared["NOTIFIER_"+test.variable], settings.Shared.Hash()
			}
			for _, text := range []string{test.text, test.other} {
				shown, _ := hashOf(text)
				again, _ := hashOf(shown)
				testkit.Equal(t, again, shown, "the value that others see for %q, as a setting", text)
			}
			value, hash := hashOf(test.text)
			same, sameHash := hashOf(test.same)
			other, otherHash := hashOf(test.other)
			testkit.Check(t, value != "" && value == same && hash == sameHash,
				"got %q for %q and %q for %q, want one value", value, test.text, same, test.same)
			testkit.Check(t, value != other && hash != otherHash, "got %q for %q and %q for %q, want two values", value, test.text, other, test.other)
		})
	}
}

// TestSharedSink has a worker whose sink follows from its webhook, and a worker that names the sink.
func TestSharedSink(t *testing.T) {
	named := loadBase(t, env{"SINK": config.SinkSlack, "SLACK_WEBHOOK_URL": "http://127.0.0.1:1/services/a"}).Shared
	derived := loadBase(t, env{"SINK": "", "SLACK_WEBHOOK_URL": "http://127.0.0.1:1/services/a"}).Shared
	testkit.EqualMaps(t, derived, named, "shared settings")
}

// Settings of one worker are not shared, and no secret is.
func TestNotShared(t *testing.T) {
	shared := loadBase(t, env{"NATS_USER": "worker", "NATS_PASSWORD": "hidden-1", "REDIS_PASSWORD": "hidden-2"}).Shared
	for _, variable := range []string{
		"NATS_URL", "REDIS_URL", "NATS_PASSWORD", "SLACK_TOKEN", "SLACK_WEBHOOK_URL", "HTTP_ADDR", "LOG_LEVEL", "CONCURRENCY", "NATS_CREDS_FILE",
	} {
		value, found := shared["NOTIFIER_"+variable]
		testkit.Check(t, !found, "NOTIFIER_%s is shared: %q", variable, value)
	}
	table := config.Table()
	for variable := range shared {
		at := slices.IndexFunc(table, func(s config.Setting) bool { return s.Variable == variable })
		testkit.Check(t, at >= 0 && !table[at].Secret, "%s is shared, and is no setting or a secret", variable)
	}
}

// WithShared reads the limits of another worker, with their origins.
func TestLimitsOfShared(t *testing.T) {
	theirs := loadBase(t, env{"GLOBAL_LIMIT": "50/30m", "LIMITS": "payments=5/1m", "GUARANTEES": "payments=3", "SHADOW_LIMITS": "category=1/1m", "SHADOW": "true",
		"LIMITS_BUCKET": "theirs"}).Shared
	own := loadBase(t, env{"LIMITS": "search=7/1m", "CATEGORY_LIMIT": "1/1m", "LIMITS_BUCKET": "own"})
	read := testkit.Must(own.WithShared(theirs))(t).Limits
	plan := read.Plan()
	if plan.Global.String() != "50/30m" || plan.Category.String() != "10/30m" || len(plan.Rules) != 1 || plan.Rules[0].Pattern.String() != "payments" ||
		len(plan.Guarantees) != 1 || len(read.ShadowLimits) != 1 || !read.Shadow || read.Bucket != "theirs" {
		t.Errorf("got the limits %+v, want the limits and the bucket of the other worker", read)
	}
	testkit.EqualMaps(t, plan.Origins, map[string]limits.Origin{
		"global": limits.FromEnvironment, "category": limits.FromDefault, "payments": limits.FromEnvironment,
	}, "origins")
	_, err := own.WithShared(map[string]string{"NOTIFIER_GLOBAL_LIMIT": "lots"})
	testkit.Fails(t, "an unreadable limit", err, nil)
}

// WithShared reads the streams, delays and ages of another worker. It keeps the other settings.
func TestSettingsOfShared(t *testing.T) {
	theirs := loadBase(t, env{"GLOBAL_LIMIT": "50/30m", "SHADOW": "true", "DELAY": "a=2h,b.>=90m", "NATS_STREAM": "EVENTS", "JOURNAL_STREAM": "WHY",
		"EVENT_MAX_AGE": "36h", "NATS_ACK_WAIT": "32500ms"}).Shared
	own := loadBase(t, env{"DELAY": "c=1h", "ROOM_STREAM": "OWN", "NATS_INBOX": "_INBOX_own"})
	delete(theirs, "NOTIFIER_ROOM_STREAM") // as from a worker of another version
	read := testkit.Must(own.WithShared(theirs))(t)
	testkit.EqualSlices(t, []any{
		read.Limits.Plan().Global.String(), read.Limits.Shadow, read.Delay.For("a"), read.Delay.For("b.x"), read.Delay.For("c"), read.NATS.Stream,
		read.Journal.Stream, read.Event.MaxAge, read.Room.Stream, read.NATS.Inbox, read.NATS.AckWait,
	}, []any{"50/30m", true, 2 * time.Hour, 90 * time.Minute, time.Duration(0), "EVENTS", "WHY", 36 * time.Hour, "OWN", "_INBOX_own", 32500 * time.Millisecond}, "settings")
	_, err := own.WithShared(map[string]string{"NOTIFIER_DELAY": "soon"})
	testkit.Fails(t, "an unreadable delay", err, nil)
}
