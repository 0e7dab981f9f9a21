package cli

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// limitsServers starts NATS and Redis, and sets the settings to them and to these.
func limitsServers(t *testing.T, settings map[string]string) (*servertest.NATS, *servertest.Redis) {
	t.Helper()
	natsServer, redisServer := servertest.StartNATS(t), servertest.StartRedis(t)
	all := map[string]string{"NATS_URL": natsServer.URL, "REDIS_URL": redisServer.URL()}
	maps.Copy(all, settings)
	testkit.SetSettings(t, all)
	return natsServer, redisServer
}

// mustLimits runs a command line without an error and returns the words of its output.
func mustLimits(t *testing.T, line string) string {
	t.Helper()
	return strings.TrimSuffix(fields(mustRun(t, "", strings.Split(strings.TrimSpace("limits "+line), " ")...)), "\n")
}

// requireLimits runs a command line without an error and compares the words of its output, without times and generations.
func requireLimits(t *testing.T, line string, want ...string) {
	t.Helper()
	if line == "" {
		want = append(want, "no worker answers: these are the limits of the settings here")
	}
	testkit.Equal(t, withoutTimes(mustLimits(t, line)), strings.Join(want, "\n"), "limits %s prints", line)
}

const limitsHeading = "LEVEL LIMIT FROM USED"

const noBucket = "the bucket notifier-limits is absent: a worker that starts creates it, and so do limits set and mute"

func TestLimits(t *testing.T) {
	limitsServers(t, map[string]string{
		"CATEGORY_LIMIT": "10/30m", "LIMITS": "payments=40/30m,debug.*=none", "SHADOW_LIMITS": "global=25/30m,category=11/30m,payments=none,a.*=1/1h",
	})
	requireLimits(t, "",
		limitsHeading,
		"global 100/30m default 0 of 100",
		"category 10/30m environment 0 of 10",
		"payments 40/30m environment 0 of 40",
		"debug.* none environment",
		"shadow global 25/30m environment",
		"shadow category 11/30m environment",
		"shadow payments none environment",
		"shadow a.* 1/1h environment",
		noBucket,
	)
	for _, change := range [][2]string{
		{"set payments 50/30m", "payments is 50/30m (revision 1)"},
		{"set global 3/60s+200/30m", "global is 3/1m+200/30m (revision 2)"},
		{"set debug.* token:100/1h;burst=20", "debug.* is token:100/1h;burst=20 (revision 3)"},
		{"set errors.disk 0/1h", "errors.disk is 0/1h (revision 4)\n" +
			"warning: nothing of it is sent any more; notifier mute does that until an end, and then reports what was dropped"},
		{"set category 5/30m --shadow --as ann", "shadow category is 5/30m (revision 5)"},
		{"unset global", "global is unset: the settings apply (revision 6)"},
	} {
		requireLimits(t, change[0], change[1])
	}
	requireLimits(t, "",
		limitsHeading,
		"global 100/30m default 0 of 100",
		"category 10/30m environment 0 of 10",
		"payments 50/30m live 0 of 50",
		"debug.* token:100/1h;burst=20 live 0 of 20",
		"errors.disk 0/1h live 0 of 0",
		"shadow global 25/30m environment",
		"shadow category 5/30m live",
		"shadow payments none environment",
		"shadow a.* 1/1h environment",
		"revision 6 of the bucket notifier-limits",
	)
	requireLimits(t, "history",
		"REVISION WHEN BY LEVEL OLD NEW",
		"1 then me payments (unset) 50/30m",
		"2 then me global (unset) 3/1m+200/30m",
		"3 then me debug.* (unset) token:100/1h;burst=20",
		"4 then me errors.disk (unset) 0/1h",
		"5 then ann shadow category (unset) 5/30m",
		"6 then me global 3/1m+200/30m (unset)",
	)
	requireLimits(t, "rollback 2",
		"debug.*: token:100/1h;burst=20 -> (unset) (revision 7)",
		"errors.disk: 0/1h -> (unset) (revision 8)",
		"global: (unset) -> 3/1m+200/30m (revision 9)",
		"shadow category: 5/30m -> (unset) (revision 10)",
	)
	requireLimits(t, "rollback 2", "nothing to change")
}

// TestRemovingBesideUnreadableReports has a worker whose report cannot be read. What is set can still be removed. What depends on the settings of the
// workers cannot be shown or set.
func TestRemovingBesideUnreadableReports(t *testing.T) {
	natsServer, _ := limitsServers(t, nil)
	requireLimits(t, "set payments 1/1h", "payments is 1/1h (revision 1)")
	mustRun(t, "", "mute", "orders", "--for", "1h", "--reason", "migration")
	unreadable(t, natsServer.URL, `{"instance": 7}`)
	for line, want := range map[string]string{
		"limits unset payments": "payments is unset: the settings apply", "unmute orders": "orders",
	} {
		out, problems, err := execute(t.Context(), "", strings.Fields(line)...)
		testkit.NoError(t, err)
		testkit.Contains(t, line+" prints", out, want)
		testkit.Contains(t, line+" warns", problems, "no worker answers with its limits, so the bucket is that of the settings here: ")
	}
	for _, line := range []string{"limits", "limits set payments 2/1h", "mute orders --for 1h --reason again"} {
		requireFailure(t, Failure, line, "reading a worker's report")
	}
}

// limitsFaults are command lines with their status and error.
var limitsFaults = []struct {
	line   string
	status int
	says   string
}{
	{"set payments lots", Usage, "<count>/<window>"},
	{"set Payments 1/1h", Usage, "upper-case"},
	{"set payments.= 1/1h", Usage, "payments.="}, // the key of a wildcard
	{"set shadow/payments 1/1h", Usage, "shadow/payments"},
	{"set * 1/1h", Usage, "use category"},
	{"set global 19/30m", Usage, "guarantees of 20 slots"},
	{"set global 19/30m --shadow", Usage, "guarantees of 20 slots"},
	{"set global token:100/1h", Usage, "a sliding log"},
	{"unset Pay!ments", Usage, "not the name of a limit"},
	{"unset errors", Failure, "no such override is set"},
	{"unset payments --shadow", Failure, "no such override is set"},
	{"set payments 2/1h --for 0s", Usage, "--for 0s is not between 1s and 366d"},
	{"set payments 2/1h --for 367d", Usage, "--for 367d is not between"},
	{"set payments 2/1h --for -2h", Usage, `"-2h" for "--for" flag: expected a number with a unit`},
	{"set payments 2/1h --for 2", Usage, `"2" for "--for" flag: expected a number with a unit, such as 30m, 2h or 7d`},
	{"unset payments --for 2h", Usage, "unknown flag"},
	{"rollback 0", Failure, "there is no revision 0, the newest is 1"},
	{"rollback 2", Failure, "there is no revision 2, the newest is 1"},
}

// A wrong change has status 2. An impossible one has status 1. Neither changes a limit.
func TestLimitsFaults(t *testing.T) {
	limitsServers(t, map[string]string{"GUARANTEES": "security=20"})
	mustLimits(t, "set payments 1/1h")
	for _, test := range limitsFaults {
		requireFailure(t, test.status, "limits "+test.line, test.says)
	}
	testkit.Contains(t, "limits", mustLimits(t, ""), "\npayments 1/1h live 0 of 1\n", "\n20 slots of each global window belong to security\n", "\nrevision 1 of ")
}

// A rollback to a limit that workers would ignore changes nothing. A worker that starts with such a limit would take no events.
func TestLimitsRollbackIsChecked(t *testing.T) {
	limitsServers(t, nil)
	mustLimits(t, "set global 30/30m")
	mustLimits(t, "unset global")
	t.Setenv("NOTIFIER_GUARANTEES", "security=50")
	requireFailure(t, Usage, "limits rollback 1", "rolling back to revision 1: workers would ignore global: ", "guarantees of 50 slots")
	t.Setenv("NOTIFIER_GUARANTEES", "")
	testkit.Contains(t, "limits rollback 1", mustLimits(t, "rollback 1"), "global: (unset) -> 30/30m (revision 3)")
}

// Without the bucket the list has the limits of the settings. Changes fail.
func TestLimitsWithoutBucket(t *testing.T) {
	limitsServers(t, map[string]string{"NATS_PROVISION": "false", "LIMITS_BUCKET": "team-limits"})
	requireLimits(t, "",
		limitsHeading,
		"global 100/30m default 0 of 100",
		"category 10/30m default 0 of 10",
		"the bucket team-limits is absent: nothing can be changed while workers run",
	)
	requireLimits(t, "history", "the bucket team-limits is absent: nothing can be changed while workers run")
	for _, line := range []string{"set payments 1/1h", "unset payments", "rollback 1", "adopt --yes"} {
		requireFailure(t, Failure, "limits "+line, "team-limits (notifier provision creates it)")
	}
	requireFailure(t, Usage, "limits set payments lots")
}

// A command that only shows, or that can change nothing, creates no bucket. A new bucket would put the limits of the settings in force.
func TestLimitsCreateNoBucket(t *testing.T) {
	limitsServers(t, nil)
	testkit.Contains(t, "mutes", mustRun(t, "", "mutes"), "nothing is muted")
	mustLimits(t, "payments")
	requireLimits(t, "history", noBucket)
	for _, line := range []string{"limits unset payments", "limits rollback 1", "limits adopt --yes", "unmute payments"} {
		requireFailure(t, Failure, line, "notifier-limits (notifier provision creates it)")
	}
	testkit.Contains(t, "limits", mustLimits(t, ""), noBucket)
	mustLimits(t, "set payments 5/1h")
}

// TestLimitsInTheWorkersBucket mutes a path from a shell whose settings name another bucket than the workers' settings. The command creates
// none, since a new bucket would outdate the limits of all workers.
func TestLimitsInTheWorkersBucket(t *testing.T) {
	natsServer, _ := limitsServers(t, map[string]string{"LIMITS_BUCKET": "team-limits"})
	reports(t, natsServer.URL, status.Report{Worker: status.Worker{Name: "pod-1", Instance: "one", Settings: loadSettings(t).Shared}})
	muted := func(bucket, want string) {
		t.Helper()
		t.Setenv("NOTIFIER_LIMITS_BUCKET", bucket)
		testkit.Eventually(t, "the worker answers in time", func() bool {
			out, _, err := execute(t.Context(), "", "mute", "search", "--for", "1h", "--reason", "upgrade")
			return strings.Contains(fmt.Sprint(out, err), want)
		})
	}
	muted("another", "team-limits (notifier provision creates it)")
	t.Setenv("NOTIFIER_LIMITS_BUCKET", "team-limits")
	mustRun(t, "", "provision")
	t.Setenv("NOTIFIER_NATS_PROVISION", "false")
	muted("a-third", "search is muted until ")
	t.Setenv("NOTIFIER_LIMITS_BUCKET", "team-limits")
	testkit.Contains(t, "mutes", mustRun(t, "", "mutes"), "search")
}

// Without Redis the use is not known, and the status is 1.
func TestLimitsWithoutRedis(t *testing.T) {
	_, redisServer := limitsServers(t, map[string]string{"REDIS_TIMEOUT": "200ms"})
	redisServer.Kill()
	requireFailure(t, Failure, "limits set payments 5/1h", "revision 1 is stored", "redis does not know the revision", "NOTIFIER_REDIS_URL")
	requireFailure(t, Failure, "limits", "what is used is not known: redis: ", "NOTIFIER_REDIS_URL")
	output, _, _ := execute(t.Context(), "", "limits")
	testkit.Equal(t, fields(output), limitsHeading+"\nglobal 100/30m default not known\ncategory 10/30m default not known\npayments 5/1h live not known\n"+
		"revision 1 of the bucket notifier-limits\nno worker answers: these are the limits of the settings here", "it prints")
	for _, line := range []string{"limits --json", "limits payments --json"} {
		requireFailure(t, Failure, line, "what is used is not known: redis: ")
		output, _, _ = execute(t.Context(), "", strings.Fields(line)...)
		testkit.Contains(t, "the output of "+line, output, `"unknown":["what is used is not known: redis: `)
	}
}

// The list names values that workers ignore. They do not prevent changes.
func TestLimitsOfBadValues(t *testing.T) {
	natsServer, _ := limitsServers(t, map[string]string{"GUARANTEES": "security=20"})
	mustLimits(t, "set payments 5/1h")
	for key, value := range map[string]string{"payments": "lots", "global": "10/30m", "=": "1/1h"} {
		putLive(t, natsServer, key, value)
	}
	mustLimits(t, "set errors 1/1h")
	testkit.Contains(t, "limits", mustLimits(t, ""),
		"\nglobal 100/30m default 0 of 100\n", "\nerrors 1/1h live 0 of 1\n", "\npayments 5/1h live 0 of 5\n",
		`keep its last good limit: limit "lots"`, "keep its last good limit: guarantees of 20 slots", `keep its last good limit: "*" is reserved`,
		"workers ignore what payments is set to in revision ", "\nrevision 5 of the bucket",
		"\na worker that starts takes no events: the live limit of global is not readable, and no earlier value is known: guarantees of 20 slots",
	)
	t.Setenv("NOTIFIER_SINK", "console")
	if out, _, err := execute(t.Context(), "", "check"); !errors.Is(err, errReported) ||
		!strings.Contains(out, "FAIL  live limits: a worker that starts takes no events: the live limit of global") {
		t.Errorf("check: got %v and\n%s", err, out)
	}
	for _, line := range []string{"unset global", "set payments 6/1h", "unset *"} {
		mustLimits(t, line)
	}
	if shown := mustLimits(t, ""); strings.Contains(shown, "workers ignore") || !strings.Contains(shown, "\npayments 6/1h live 0 of 6\n") {
		t.Errorf("after a repair: got\n%s\nwant no ignored value", shown)
	}
}

// putLive stores a value of a live limit as an operator with another program does.
func putLive(t *testing.T, server *servertest.NATS, key, value string) {
	t.Helper()
	m := nats.NewMsg("$KV.notifier-limits." + key)
	m.Data = []byte(value)
	trusted.Mark(m.Header)
	testkit.Must(servertest.JetStream(t, server.URL).PublishMsg(t.Context(), m))(t)
}

// admit takes slots for events of a category. Each event must be admitted.
func admit(t *testing.T, category string, events int) {
	t.Helper()
	admitOfKey(t, category, "", events)
}

// admitOfKey is admit for events with a key.
func admitOfKey(t *testing.T, category, key string, events int) {
	t.Helper()
	settings := loadSettings(t)
	tree := testkit.Must(limits.NewTree(settings.Limits.Plan()))(t)
	client := testkit.Must(setup.Redis(settings.Redis))(t)
	defer func() { _ = client.Close() }()
	shared := setup.Store(client, settings.Redis, store.Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour})
	for i := range events {
		id := fmt.Sprintf("%s-%s-%d", category, key, i)
		result := testkit.Must(shared.Decide(t.Context(), []store.Request{{
			ID: id, Message: store.Message{Stream: "S", Sequence: uint64(i), Stored: time.Now()}, Category: category, Key: key, Cost: 1,
		}}))(t)
		got := result.Decisions[0].Verdict
		testkit.Require(t, got == store.Admitted, "verdict of %s is %d, want %d", id, got, store.Admitted)
	}
}

// usedByCategory is the number of admitted events of each category.
var usedByCategory = map[string]int{
	"errors": 3, "disk": 5, "disk.full": 1, // the deeper one counts at its first level
	"payments.cards": 2, "payments.refunds": 4, "payments.refunds.failed": 1,
	"any.slow": 2, "queue": 1, "jobs.a": 2, "jobs.b": 3,
}

// Usage is counted for each kind of level and each algorithm. Deployments whose prefixes look like patterns of each other do not mix.
func TestLimitsUsed(t *testing.T) {
	const prefix, windows = `a*b?[c-d]\x`, "100/30m+fixed:90/366d"
	limitsServers(t, map[string]string{
		"GLOBAL_LIMIT": windows, "CATEGORY_LIMIT": "10/30m",
		"LIMITS": "payments=40/30m,payments.*=counter:8/366d,*.slow=token:100/366d;burst=4,queue=leaky:60/366d,jobs.*=inflight:3/1h,quiet=7/1h",
	})
	for _, other := range []string{`aXXbYc\x`, `a*b?c\x`} {
		t.Setenv("NOTIFIER_REDIS_PREFIX", other)
		admit(t, "errors", 9)
		admit(t, "others", 9)
	}
	t.Setenv("NOTIFIER_REDIS_PREFIX", prefix)
	for category, events := range usedByCategory {
		admit(t, category, events)
	}
	requireLimits(t, "",
		limitsHeading,
		"global "+windows+" environment 24 of 90",
		"category 10/30m environment 6 of 10 (disk), 4 paths in use",
		"payments 40/30m environment 7 of 40",
		"payments.* counter:8/366d environment 5 of 8 (payments.refunds), 2 paths in use",
		"*.slow token:100/366d;burst=4 environment 2 of 4 (any.slow)",
		"queue leaky:60/366d environment 1 of 60",
		"jobs.* inflight:3/1h environment 3 of 3 (jobs.b), 2 paths in use",
		"quiet 7/1h environment 0 of 7",
		noBucket,
	)
	// A changed limit is compared with what was used before.
	mustLimits(t, "set disk 2/30m")
	testkit.Contains(t, "limits", mustLimits(t, ""), "\ndisk 2/30m live 6 of 2\n")
}

// Without the right to scan and without a worker, the list has the usage of the paths that rules name. It also has the usage of the paths that
// workers report, unless a worker has not read the usage.
func TestLimitsUsedWithoutScan(t *testing.T) {
	natsServer, redisServer := limitsServers(t, map[string]string{"LIMITS": "payments=40/30m,payments.*=8/30m"})
	admit(t, "payments.cards", 2)
	admit(t, "errors", 3)
	redisServer.CLI("acl", "setuser", "default", "-scan")
	requireLimits(t, "",
		limitsHeading,
		"global 100/30m default 5 of 100",
		"category 10/30m default not known",
		"payments 40/30m environment 2 of 40",
		"payments.* 8/30m environment not known",
		"what is used of category, payments.* is not known: the Redis user may not SCAN",
		noBucket,
	)
	worker := status.Worker{Settings: loadSettings(t).Shared}
	reports(t, natsServer.URL, status.Report{Worker: worker, Limits: []status.Limit{{Use: limits.Use{Level: "category", Path: "errors", Used: 3}}}})
	testkit.Contains(t, "limits with a report", mustLimits(t, ""), "\ncategory 10/30m default 3 of 10 (errors)\n")
	reports(t, natsServer.URL, status.Report{Worker: worker, LimitsUnread: true})
	testkit.Contains(t, "limits with a report without the usage", mustLimits(t, ""), "\ncategory 10/30m default not known\n")
}

// asSampleUser has commands log in as a user of the sample configuration. The operator alone creates streams and buckets.
func asSampleUser(t *testing.T, natsServer *servertest.NATS, redisServer *servertest.Redis, user string) {
	t.Helper()
	testkit.SetSettings(t, map[string]string{
		"NATS_URL": natsServer.URL, "REDIS_URL": redisServer.URL(), "NATS_USER": user, "NATS_PASSWORD": "secret", "NATS_INBOX": "_INBOX_" + user,
		"NATS_PROVISION": fmt.Sprint(user == "operator"),
	})
}

// The users limits, replayer and notifier of the sample configuration have the rights for their commands.
func TestSampleRights(t *testing.T) {
	natsServer := servertest.StartSampleNATS(t, "../../configs/nats/notifier.conf")
	redisServer := servertest.StartRedis(t)
	as := func(user string) { asSampleUser(t, natsServer, redisServer, user) }
	as("limits")
	t.Setenv("NOTIFIER_NATS_INBOX", "")
	requireFailure(t, Failure, "limits history", "NOTIFIER_NATS_INBOX is the prefix")
	as("operator")
	mustRun(t, "", "provision")
	as("limits")
	for _, line := range []string{
		"set payments.* 1/1h", "set payments.* 2/1h --shadow", "unset payments.*", "rollback 1 --as ann",
	} {
		mustLimits(t, line)
	}
	requireLimits(t, "history",
		"REVISION WHEN BY LEVEL OLD NEW",
		"1 then limits payments.* (unset) 1/1h",
		"2 then limits shadow payments.* (unset) 2/1h",
		"3 then limits payments.* 1/1h (unset)",
		"4 then ann payments.* (unset) 1/1h",
		"5 then ann shadow payments.* 2/1h (unset)",
	)
	inForce(t, redisServer, limits.Position{Generation: 1 << 50, Revision: 3})
	mustLimits(t, "adopt --yes")
	as("notifier")
	testkit.Contains(t, "limits", mustLimits(t, ""), "\npayments.* 1/1h live 0 of 1\n")

	js := servertest.JetStream(t, natsServer.URL, nats.UserInfo("operator", "secret"), nats.CustomInboxPrefix("_INBOX_operator"))
	createDeadLetters(t, js)
	for _, id := range []string{"order-1", "order-2"} {
		putLetter(t, js, "rejected", id, "text", "no_text")
	}
	as("replayer")
	requireDLQ(t, "replay order-1", "replayed 1 letter")
	requireDLQ(t, "drop order-2 --yes", "dropped 1 letter")
	requireDLQ(t, "list", "no dead letters")
}

// Every output shows the end of a limit. The history shows who set it, when, and the value before.
func TestLimitsThatEnd(t *testing.T) {
	natsServer, _ := limitsServers(t, nil)
	for _, change := range [][2]string{
		{"set payments 5/30m --as ann", "payments is 5/30m (revision 1)"},
		{"set payments 6/30m --for 2h --as bob", "payments is 6/30m until then, then 5/30m again (revision 2)"},
		{"set payments 7/30m --for 1d", "payments is 7/30m until then, then 5/30m again (revision 3)"},
		{"set search 8/30m --for 90m", "search is 8/30m until then, then the settings apply (revision 4)"},
		{"set category 9/30m --shadow --for 1w", "shadow category is 9/30m until then, then the settings apply (revision 5)"},
	} {
		requireLimits(t, change[0], change[1])
	}
	requireLimits(t, "",
		limitsHeading,
		"global 100/30m default 0 of 100",
		"category 10/30m default 0 of 10",
		"payments 7/30m live until then 0 of 7",
		"search 8/30m live until then 0 of 8",
		"shadow category 9/30m live until then",
		"revision 5 of the bucket notifier-limits",
	)
	requireLimits(t, "history",
		"REVISION WHEN BY LEVEL OLD NEW",
		"1 then ann payments (unset) 5/30m",
		"2 then bob payments 5/30m 6/30m for 2h, until then",
		"3 then me payments 6/30m 7/30m for 1d, until then",
		"4 then me search (unset) 8/30m for 1h30m, until then",
		"5 then me shadow category (unset) 9/30m for 1w, until then",
	)
	history := decoded[shownHistory](t, "limits history --json")
	bob := history.Changes[1]
	if len(history.Changes) != 5 || bob.By != "bob" || bob.Level != "payments" || *bob.Old != "5/30m" || bob.New != "6/30m" ||
		bob.Until.Sub(bob.At).Round(time.Second) != 2*time.Hour {
		t.Errorf("got %+v, want five changes, the second by bob for 2h", history)
	}
	shown := decoded[shownLimits](t, "limits --json")
	testkit.Check(t, len(shown.Levels) >= 4 && !shown.Levels[2].Until.IsZero() && shown.Levels[1].Until.IsZero(),
		"got %+v, want an end of the third level alone", shown.Levels)
	testkit.Contains(t, "limits search", withoutTimes(mustLimits(t, "search")), "search search 8/30m live until then 0 of 8")
	putLive(t, natsServer, "payments", "lots")
	requireFailure(t, Failure, "limits set payments 1/1h --for 1h", "cannot be in force again", "unset it first")
}
