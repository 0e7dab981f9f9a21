package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/status"
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

// On a terminal long lines are wrapped, and indented below the mark.
func TestCheckWraps(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := &check{out: &out, width: 80}
	detail := strings.TrimSpace(strings.Repeat("a long explanation ", 20))
	c.warn("redis", detail)
	for line := range strings.Lines(out.String()) {
		testkit.AtMost(t, len(strings.TrimSuffix(line, "\n")), 80, "columns of %q", line)
	}
	testkit.Equal(t, strings.ReplaceAll(out.String(), "\n      ", " "), "warn  redis: "+detail+"\n", "the whole line")
}

// A check that somebody ends in its middle reports no failure of what it was asking.
func TestCheckIsEnded(t *testing.T) {
	testkit.SetSettings(t, map[string]string{"SINK": "console", "NATS_URL": servertest.StartNATS(t).URL, "REDIS_URL": servertest.StartRedis(t).URL()})
	ctx, end := context.WithCancel(t.Context())
	end()
	out, _, err := execute(ctx, "", "check")
	testkit.Fails(t, "error", err, context.Canceled)
	testkit.Equal(t, strings.Contains(out, "FAIL"), false, "it reports a failure in %s", out)
}

// check warns of a Redis without persistence, and of a cluster that is addressed like a single server. Each key that it leaves expires.
func TestCheckOfRedis(t *testing.T) {
	natsServer, redisServer := servertest.StartNATS(t), servertest.StartRedis(t)
	testkit.SetSettings(t, map[string]string{"SINK": "console", "NATS_URL": natsServer.URL, "REDIS_URL": redisServer.URL(), "LIMITS": "payments.*=3/1m"})
	out, _, err := execute(t.Context(), "", "check")
	testkit.NoError(t, err)
	testkit.Contains(t, "check", out, "ok    settings\n", "ok    redis: answers", "warn  redis persistence: ", "ok    sink: console",
		"\nlimits: from this shell's settings: no worker answers\n  ", "payments.*")
	for key := range strings.FieldsSeq(redisServer.CLI("KEYS", "*")) {
		left := redisServer.CLI("PTTL", key)
		testkit.Check(t, left != "-1", "the key %s has no expiry", key)
	}
	testkit.Equal(t, strings.Contains(out, "redis cluster"), false, "a single server is the node of a cluster")

	t.Setenv("NOTIFIER_REDIS_URL", servertest.StartCluster(t, 1).Nodes[0].URL())
	out, _, err = execute(t.Context(), "", "check")
	testkit.NoError(t, err)
	const ofCluster = "warn  redis cluster: the server is a node of a cluster, which may give the keys to another node"
	testkit.Contains(t, "check of a node that has all keys", out, ofCluster)

	t.Setenv("NOTIFIER_REDIS_URL", "redis://"+servertest.OldRedis(t, "7.2.4\r\nvalkey_version:8.0.1\r\nserver_mode:cluster"))
	out, _, err = execute(t.Context(), "", "check")
	testkit.Fails(t, "error", err, errReported) // the stand-in runs no scripts
	testkit.Contains(t, "check of a node of Valkey 8", out, ofCluster)
}

// check warns of a bucket of live limits that loses keys or keeps few changes, until provision has repaired it.
func TestCheckOfTheBucket(t *testing.T) {
	natsServer, _ := limitsServers(t, map[string]string{"SINK": "console"})
	js := testkit.Must(jetstream.New(servertest.Connect(t, natsServer.URL)))(t)
	testkit.Must(js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "notifier-limits", History: 3, TTL: time.Hour}))(t)
	const warning = "warn  bucket of live limits: notifier provision would change notifier-limits: history 64, was 3; ttl unlimited, was 1h0m0s; "
	out, _, _ := execute(t.Context(), "", "check")
	testkit.Contains(t, "check", out, warning)
	_, _, err := execute(t.Context(), "", "provision")
	testkit.NoError(t, err)
	out, _, err = execute(t.Context(), "", "check")
	testkit.NoError(t, err)
	testkit.Equal(t, strings.Contains(out, "bucket of live limits"), false, "it warns of the repaired bucket in %s", out)
}

// Without JetStream check reports that once, and nothing that follows from it.
func TestCheckWithoutJetStream(t *testing.T) {
	plain := servertest.StartNATS(t, func(o *server.Options) { o.JetStream = false })
	testkit.SetSettings(t, map[string]string{"SINK": "console", "NATS_URL": plain.URL, "REDIS_URL": servertest.StartRedis(t).URL()})
	out, _, err := execute(t.Context(), "", "check")
	testkit.Fails(t, "error", err, errReported)
	testkit.Contains(t, "check", out, "FAIL  nats jetstream: ")
	for _, subject := range []string{"live limits", "power failures"} {
		testkit.Equal(t, strings.Contains(out, subject), false, "it reports %s in %s", subject, out)
	}
}

// check names the right that a user of functions lacks, also after another worker has loaded them, and a server that has none.
func TestCheckFunctions(t *testing.T) {
	natsServer, redisServer := servertest.StartNATS(t), servertest.StartRedis(t)
	type user struct{ lacks, prints string }
	users := []user{{"", "ok    redis scripts"}, {"fcall", "lacks the right +fcall "}, {"function|load", "lacks the right +function|load "}}
	hasFunctions := servertest.HasFunctions(t)
	if !hasFunctions {
		users = []user{{"", "is older than 7.0: NOTIFIER_REDIS_SCRIPTING=function needs functions"}}
	}
	for _, test := range users {
		rights := []string{"ACL", "SETUSER", "user", "reset", "on", ">password", "~*", "+@all"}
		if test.lacks != "" {
			rights = append(rights, "-"+test.lacks)
		}
		redisServer.CLI(rights...)
		testkit.SetSettings(t, map[string]string{
			"SINK": "console", "NATS_URL": natsServer.URL, "REDIS_URL": "redis://user:password@" + redisServer.Addr, "REDIS_SCRIPTING": "function",
		})
		out, _, err := execute(t.Context(), "", "check")
		if works := test.lacks == "" && hasFunctions; errors.Is(err, errReported) == works || !strings.Contains(out, test.prints) {
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
		testkit.Contains(t, "check", out, "FAIL  nats: nats-server 2.11.9 at "+host+" is older than 2.12.8: the room needs message schedules, and older servers let a producer delete the events of others\n", want)
	}
	requireFailure(t, Failure, "dlq list", "nats-server 2.11.9 at ")
}

// check shows the limits of the running workers. It warns of settings here that differ.
func TestCheckTheWorkersLimits(t *testing.T) {
	natsServer, _ := limitsServers(t, map[string]string{"SINK": "console"})
	settings := loadSettings(t).Shared
	settings["NOTIFIER_SINK"], settings["NOTIFIER_GLOBAL_LIMIT"] = "console", "60/30m"
	reports(t, natsServer.URL, status.Report{
		Worker:  status.Worker{Name: "pod-1", Instance: "one", Revision: "7:12", Settings: settings, Ready: true, Failing: "cannot store dead letters: no space"},
		Changes: []status.Change{{Path: "payments", Limit: "70/30m"}},
	})
	checked := func() (found checkReport, text string) {
		t.Helper()
		testkit.Eventually(t, "the worker answers in time", func() bool {
			var err error
			text, _, err = execute(t.Context(), "", "check", "--json")
			if err != nil && !errors.Is(err, errReported) {
				t.Fatal(err)
			}
			testkit.NoError(t, json.Unmarshal([]byte(text), &found))
			return found.LimitsFrom == "1 worker (revision 12)"
		})
		return found, text
	}
	found, text := checked()
	testkit.Check(t, found.OK && len(found.Limits) == 3 && found.Limits[2] == (shownLevel{Use: limits.Use{Level: "payments", Limit: "70/30m"}, From: "live"}),
		"got %+v, want three limits, the last one live", found)
	testkit.Contains(t, "check", text,
		`{"mark":"warn","subject":"worker pod-1","detail":"failing: cannot store dead letters: no space"}`,
		`{"mark":"ok","subject":"settings of the workers","detail":"1 worker has the settings here"}`,
		`{"mark":"warn","subject":"limit without effect","detail":"70/30m of payments never denies anything: global above it allows no more than 60/30m"}`,
	)
	t.Setenv("NOTIFIER_GLOBAL_LIMIT", "50/30m")
	_, text = checked()
	testkit.Contains(t, "check", text, "NOTIFIER_GLOBAL_LIMIT is 50/30m on your side, 60/30m on pod-1")
}

// check names the row of the table of power failures, and what the users may not ask for.
func TestCheckOfPower(t *testing.T) {
	const system = `
		accounts {
			SYS { users: [ { user: sys, password: s } ], exports: [ { service: "$SYS.REQ.SERVER.PING.VARZ" } ] }
			A { jetstream: enabled, users: [ { user: u, password: p } ], imports: [ { service: { account: SYS, subject: "$SYS.REQ.SERVER.PING.VARZ" } } ] }
		}
		system_account: SYS
		no_auth_user: u
		`
	for _, test := range []struct {
		nats, redis, right, want string
	}{
		{system + "jetstream { sync_interval: always }", "everysec", "+@all", "servers of NATS 1, sync_interval always, appendfsync everysec: row 1, always, everysec of docs/delivery.md"},
		{system, "always", "+@all", "servers of NATS 1, sync_interval 2m0s, appendfsync always: row 1, 2m, always of docs/delivery.md"},
		{"", "always", "-config", "servers of NATS 1; unknown: sync_interval (the NATS user may not ask for it), appendfsync (the Redis user may not ask for it); the table"},
		{"", "", "+@all", "servers of NATS 1, appendfsync none; unknown: sync_interval"},
	} {
		arguments := []string{"--appendonly", "yes", "--appendfsync", test.redis}
		if test.redis == "" {
			arguments = nil
		}
		natsServer, redisServer := servertest.StartNATSProcess(t, test.nats), servertest.StartRedis(t, arguments...)
		redisServer.CLI("ACL", "SETUSER", "user", "reset", "on", ">password", "~*", "+@all", test.right)
		testkit.SetSettings(t, map[string]string{
			"SINK": "console", "NATS_URL": natsServer.URL, "REDIS_URL": "redis://user:password@" + redisServer.Addr,
		})
		_, _, err := execute(t.Context(), "", "provision")
		testkit.NoError(t, err)
		out, _, err := execute(t.Context(), "", "check")
		testkit.NoError(t, err)
		testkit.Contains(t, "check", out, "ok    power failures: "+test.want)
	}
}

// TestRowsOfPower checks that the table of power failures has each row that check names.
func TestRowsOfPower(t *testing.T) {
	t.Parallel()
	page := testkit.Text(t, "../../docs/delivery.md")
	for _, servers := range []string{"1", "2", "3", "5"} {
		for _, interval := range []string{"always", "1s", "10s", "11s", "2m0s", "1h0m0s"} {
			for _, fsync := range []string{"always", "everysec", "no", "none"} {
				named := powerRow(servers, interval, fsync)
				row := strings.Split(strings.TrimPrefix(strings.TrimPrefix(named, "more than "), "row "), ", ")
				testkit.Check(t, strings.Contains(page, fmt.Sprintf("\n| %s | `%s` | `%s` |", row[0], row[1], row[2])),
					"check names %q, which is not in the table", named)
			}
		}
	}
	for _, test := range [][4]string{
		{"1", "2m0s", "none", "more than row 1, 2m, everysec"},
		{"2", "1h0m0s", "always", "more than row 1, 2m, always"},
		{"3", "11s", "everysec", "row 3, 2m, everysec"},
		{"5", "1s", "no", "more than row 3, 10s, everysec"},
		{"3", "always", "always", "row 3, always, always"},
	} {
		testkit.Equal(t, powerRow(test[0], test[1], test[2]), test[3], "%v", test)
	}
}

// The settings leave the end of this certificate to ingest, which watches it.
func TestCheckWarnsOfTheCertificateOfIngest(t *testing.T) {
	certificate, key := testkit.CertificateUntil(t, "ingest", time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC))
	testkit.SetSettings(t, map[string]string{"SINK": "console", "INGEST_TLS_CERT_FILE": certificate, "INGEST_TLS_KEY_FILE": key})
	testkit.Contains(t, "check", mustRun(t, "", "check", "--offline"), "warn  settings: NOTIFIER_INGEST_TLS_CERT_FILE: the certificate ended at 2020-01-02T03:04:05Z\n")
}
