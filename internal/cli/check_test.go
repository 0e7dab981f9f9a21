package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestCheckPrints(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := &check{out: &out}
	c.ok("settings", "")
	c.found(sink.Checked{Subject: "redis", Err: errors.New("one\ntwo"), Warning: true})
	c.found(sink.Checked{Subject: "nats", Err: errors.New("not there")})
	testkit.Equal(t, out.String(), "ok    settings\nwarn  redis: one; two\nFAIL  nats: not there\n", "it prints")
	testkit.Equal(t, c.failures, 1, "failures")
}

// check warns of a Redis without persistence. Each key that it leaves expires.
func TestCheckOfRedis(t *testing.T) {
	natsServer, redisServer := servertest.StartNATS(t), servertest.StartRedis(t)
	testkit.SetSettings(t, map[string]string{"SINK": "console", "NATS_URL": natsServer.URL, "REDIS_URL": redisServer.URL(), "LIMITS": "payments.*=3/1m"})
	out, _, err := execute(t.Context(), "", "check")
	testkit.NoError(t, err)
	testkit.Contains(t, "check", out, "ok    settings\n", "ok    redis: answers", "warn  redis persistence: ", "ok    sink: console",
		"\nlimits: from this shell's settings: no worker answers\n  ", "payments.*")
	for key := range strings.FieldsSeq(redisServer.CLI("KEYS", "*")) {
		if left := redisServer.CLI("PTTL", key); left == "-1" {
			t.Errorf("the key %s has no expiry", key)
		}
	}
}

// check names the right that a user of functions lacks, also after another worker has loaded them.
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
		testkit.SetSettings(t, map[string]string{
			"SINK": "console", "NATS_URL": natsServer.URL, "REDIS_URL": "redis://user:password@" + redisServer.Addr, "REDIS_SCRIPTING": "function",
		})
		out, _, err := execute(t.Context(), "", "check")
		if works := test.lacks == ""; errors.Is(err, errReported) == works || !strings.Contains(out, test.prints) {
			t.Errorf("without %q: got %v and\n%s\nwant %q in it", test.lacks, err, out, test.prints)
		}
	}
}

// check names servers that are too old, and servers without scripts.
func TestCheckNamesUnfitServers(t *testing.T) {
	oldNATS, oldRedis := servertest.OldNATS(t, "2.11.9"), servertest.OldRedis(t, "5.0.14")
	without := servertest.StartRedis(t, "--rename-command", "EVAL", "", "--rename-command", "EVALSHA", "")
	for addr, want := range map[string]string{
		oldRedis:     "FAIL  redis scripts: Redis 5.0.14 at " + oldRedis + " is older than 6.2: the scripts need ZMSCORE\n",
		without.Addr: "the server runs no Lua scripts (Valkey 9.1 has them in a module, which loadmodule libvalkeylua.so loads",
	} {
		testkit.SetSettings(t, map[string]string{"SINK": "console", "NATS_URL": oldNATS, "REDIS_URL": "redis://" + addr})
		out, _, err := execute(t.Context(), "", "check")
		testkit.Fails(t, "error", err, errReported)
		host := strings.TrimPrefix(oldNATS, "nats://")
		testkit.Contains(t, "check", out, "FAIL  nats: nats-server 2.11.9 at "+host+" is older than 2.12: the room needs message schedules\n", want)
	}
	requireFailure(t, Failure, "dlq list", "nats-server 2.11.9 at ")
}
