package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestReport(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := &report{out: &out}
	r.ok("settings", "")
	r.warn("redis", "one\ntwo")
	r.fail("nats", "not there")
	if want := "ok    settings\nwarn  redis: one; two\nFAIL  nats: not there\n"; out.String() != want || r.failures != 1 {
		t.Errorf("printed %q with %d failures, want %q with 1", out.String(), r.failures, want)
	}
}

func TestIndent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "  ", "a": "  a", "a\nb\n": "  a\n  b\n", "a\n  b": "  a\n    b"} {
		testkit.Equal(t, indent(text), want, "indent(%q)", text)
	}
}

// Errors of the servers come with the settings that are to be looked at.
func TestExplain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"NOAUTH Authentication required.": "NOTIFIER_REDIS_PASSWORD", "WRONGPASS invalid username-password pair": "NOTIFIER_REDIS_PASSWORD",
		"NOPERM this user has no permissions": "configs/redis", "WRONGTYPE Operation against a key": "NOTIFIER_REDIS_PREFIX",
		"MOVED 1 127.0.0.1:7000": "?addr=host:port", "CROSSSLOT Keys in request": "?addr=host:port", "i/o timeout": "NOTIFIER_REDIS_URL",
	} {
		got := explainRedis(errors.New(text))
		if !strings.HasPrefix(got, text) || !strings.Contains(got, want) {
			t.Errorf("%q is explained as %q, want %q in it", text, got, want)
		}
	}
	for err, want := range map[error]string{
		nats.ErrAuthorization: "NOTIFIER_NATS_USER", nats.ErrNoServers: "NOTIFIER_NATS_URL", nats.ErrTimeout: "",
	} {
		got := explainNATS(fmt.Errorf("connecting to nats: %w", err))
		if !strings.Contains(got, err.Error()) || !strings.Contains(got, want) {
			t.Errorf("%q is explained as %q, want %q in it", err, got, want)
		}
	}
	for _, err := range []error{nats.ErrNoResponders, fmt.Errorf("wrapped: %w", nats.ErrNoResponders)} {
		if got := explain(err); !errors.Is(got, err) || !strings.Contains(got.Error(), "start one first") {
			t.Errorf("%v is explained as %v", err, got)
		}
	}
	if got := explain(nats.ErrTimeout); !errors.Is(got, nats.ErrTimeout) || got.Error() != nats.ErrTimeout.Error() {
		t.Errorf("a timeout is explained as %v", got)
	}
}

func TestCheckOffline(t *testing.T) {
	setenv(t, map[string]string{"SINK": "console", "GLOBAL_LIMIT": "5/1h", "CATEGORY_LIMIT": "50/1h", "LIMITS": "payments.*=3/1m"})
	out, _, err := execute(t.Context(), "", "check", "--offline")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ok    settings\n", "warn  settings: ", "\nlimits\n  ", "5/1h", "50/1h", "payments.*", "3/1m"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not print %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "nats") || strings.Contains(out, "redis") {
		t.Errorf("it looks at the servers:\n%s", out)
	}
}

// What is missing is printed, the status is 1, and the tree is there all the same.
func TestCheck(t *testing.T) {
	natsServer, redisServer := servertest.StartNATS(t), servertest.StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	setenv(t, map[string]string{"SINK": "console", "NATS_URL": natsServer.URL, "REDIS_URL": redisServer.URL()})
	out, _, err := execute(t.Context(), "", "check")
	if !errors.Is(err, errReported) {
		t.Errorf("the error is %v, want that it is reported", err)
	}
	for _, want := range []string{"ok    nats: connected", "ok    redis: answers", "ok    redis scripts", "FAIL  redis eviction: ", "warn  redis persistence: ", "ok    sink: console", "\nlimits\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not print %q:\n%s", want, out)
		}
	}
	redisServer.CLI("CONFIG", "SET", "maxmemory-policy", noEviction)
	if out, _, err := execute(t.Context(), "", "check"); err != nil || strings.Contains(out, "FAIL") {
		t.Errorf("with everything there: %v\n%s", err, out)
	}
	for key := range strings.FieldsSeq(redisServer.CLI("KEYS", "*")) {
		if left := redisServer.CLI("PTTL", key); left == "-1" {
			t.Errorf("the key %s is left for ever", key)
		}
	}

	setenv(t, map[string]string{"SINK": "console", "NATS_URL": "nats://" + unused(t), "REDIS_URL": "redis://" + unused(t)})
	out, _, err = execute(t.Context(), "", "check")
	if !errors.Is(err, errReported) {
		t.Errorf("the error is %v, want that it is reported", err)
	}
	for _, want := range []string{"FAIL  nats: ", "NOTIFIER_NATS_URL", "FAIL  redis: ", "connection refused"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not print %q:\n%s", want, out)
		}
	}
}

// A user with half of what functions need is told which right is missing, also where another worker has loaded them.
func TestCheckFunctions(t *testing.T) {
	natsServer, redisServer := servertest.StartNATS(t), servertest.StartRedis(t)
	for _, test := range []struct{ lacks, prints string }{
		{"", "ok    redis scripts"},
		{"fcall", "lacks the right +fcall "},
		{"function|load", "lacks the right +function|load "},
	} {
		rights := []string{"ACL", "SETUSER", "user", "reset", "on", ">password", "~*", "+@all"}
		if test.lacks != "" {
			rights = append(rights, "-"+test.lacks)
		}
		redisServer.CLI(rights...)
		setenv(t, map[string]string{
			"SINK": "console", "NATS_URL": natsServer.URL, "REDIS_URL": "redis://user:password@" + redisServer.Addr, "REDIS_SCRIPTING": "function",
		})
		out, _, err := execute(t.Context(), "", "check")
		if works := test.lacks == ""; errors.Is(err, errReported) == works || !strings.Contains(out, test.prints) {
			t.Errorf("without %q: %v\n%s", test.lacks, err, out)
		}
	}
}
