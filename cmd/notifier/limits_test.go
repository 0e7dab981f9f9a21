package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// limitsServers sets the settings to these, and to servers of their own.
func limitsServers(t *testing.T, settings map[string]string) (*servertest.NATS, *servertest.Redis) {
	t.Helper()
	natsServer, redisServer := servertest.StartNATS(t), servertest.StartRedis(t)
	all := map[string]string{"NATS_URL": natsServer.URL, "REDIS_URL": redisServer.URL()}
	maps.Copy(all, settings)
	setenv(t, all)
	return natsServer, redisServer
}

// mustLimits runs a command line that has to work, and returns the words of what it prints.
func mustLimits(t *testing.T, arguments ...string) string {
	t.Helper()
	output, problems, err := execute(t.Context(), "", append([]string{"limits"}, arguments...)...)
	if err != nil || problems != "" {
		t.Errorf("limits %q: %v, %q", arguments, err, problems)
	}
	return strings.TrimSuffix(fields(output), "\n")
}

// requireLimits compares lines of words.
func requireLimits(t *testing.T, what, got string, want ...string) {
	t.Helper()
	if lines := strings.Join(want, "\n"); got != lines {
		t.Errorf("%s prints\n%s\nwant\n%s", what, got, lines)
	}
}

func openKeyValue(t *testing.T, natsServer *servertest.NATS) jetstream.KeyValue {
	t.Helper()
	js := servertest.JetStream(t, natsServer.URL)
	return testkit.Must(js.KeyValue(t.Context(), "notifier-limits"))(t)
}

func TestLimits(t *testing.T) {
	limitsServers(t, map[string]string{"CATEGORY_LIMIT": "10/30m", "LIMITS": "payments=40/30m,debug.*=none"})
	requireLimits(t, "limits at first", mustLimits(t),
		"LEVEL LIMIT FROM USED",
		"global 100/30m default 0 of 100",
		"category 10/30m environment 0 of 10",
		"payments 40/30m environment 0 of 40",
		"debug.* none environment",
		"revision 0 of the bucket notifier-limits",
	)
	for _, change := range []struct {
		arguments []string
		says      string
	}{
		{[]string{"set", "payments", "50/30m"}, "payments is 50/30m (revision 1)"},
		{[]string{"set", "global", "3/60s + 200/30m"}, "global is 3/1m+200/30m (revision 2)"},
		{[]string{"set", "debug.*", "token:100/1h;burst=20"}, "debug.* is token:100/1h;burst=20 (revision 3)"},
		{[]string{"set", "errors.disk", "0/1h"}, "errors.disk is 0/1h (revision 4)"},
		{[]string{"set", "category", "5/30m", "--shadow"}, "shadow category is 5/30m (revision 5)"},
		{[]string{"set", "payments", "none"}, "payments is none (revision 6)"},
		{[]string{"unset", "global"}, "global is what the settings say (revision 7)"},
	} {
		requireLimits(t, strings.Join(change.arguments, " "), mustLimits(t, change.arguments...), change.says)
	}
	requireLimits(t, "limits", mustLimits(t),
		"LEVEL LIMIT FROM USED",
		"global 100/30m default 0 of 100",
		"category 10/30m environment 0 of 10",
		"payments none live",
		"debug.* token:100/1h;burst=20 live 0 of 20",
		"errors.disk 0/1h live 0 of 0",
		"shadow category 5/30m live",
		"revision 7 of the bucket notifier-limits",
	)

	history := mustLimits(t, "history")
	when := regexp.MustCompile(`\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}`)
	testkit.Equal(t, len(when.FindAllString(history, -1)), 7, "changes have a time")
	requireLimits(t, "history", when.ReplaceAllString(history, "then"),
		"REVISION WHEN BY LEVEL LIMIT",
		"1 then - payments 50/30m",
		"2 then - global 3/1m+200/30m",
		"3 then - debug.* token:100/1h;burst=20",
		"4 then - errors.disk 0/1h",
		"5 then - shadow category 5/30m",
		"6 then - payments none",
		"7 then - global (unset)",
	)

	requireLimits(t, "rollback 2", mustLimits(t, "rollback", "2"),
		"changed: debug.*", "changed: errors.disk", "changed: global", "changed: payments", "changed: shadow category")
	requireLimits(t, "rollback 2 again", mustLimits(t, "rollback", "2"), "nothing to change")
	requireLimits(t, "limits after the rollback", mustLimits(t),
		"LEVEL LIMIT FROM USED",
		"global 3/1m+200/30m live 0 of 3",
		"category 10/30m environment 0 of 10",
		"payments 50/30m live 0 of 50",
		"debug.* none environment",
		"revision 12 of the bucket notifier-limits",
	)
	requireLimits(t, "unset of the last", mustLimits(t, "unset", "payments"), "payments is what the settings say (revision 13)")
}

// Guarantees, and the shadow limits of the settings, are shown too.
func TestLimitsOfTheSettings(t *testing.T) {
	limitsServers(t, map[string]string{
		"GLOBAL_LIMIT": "30/30m", "GUARANTEES": "security=20", "SHADOW_LIMITS": "global=25/30m,category=10/30m,a.*=1/1h",
	})
	mustLimits(t, "set", "category", "7/1h", "--shadow")
	requireLimits(t, "limits", mustLimits(t),
		"LEVEL LIMIT FROM USED",
		"global 30/30m environment 0 of 30",
		"category 10/30m default 0 of 10",
		"shadow global 25/30m environment",
		"shadow category 7/1h live",
		"shadow a.* 1/1h environment",
		"20 slots of each global window belong to security",
		"revision 1 of the bucket notifier-limits",
	)
}

// What is wrong with a command line has status 2, and changes nothing; what cannot be done has status 1.
func TestLimitsStatus(t *testing.T) {
	limitsServers(t, map[string]string{"GUARANTEES": "security=20"})
	mustLimits(t, "set", "payments", "1/1h")
	for name, test := range map[string]struct {
		arguments []string
		status    int
		says      string
	}{
		"a word":                              {[]string{"bogus"}, exitUsage, "bogus"},
		"no path":                             {[]string{"set"}, exitUsage, "expected: notifier limits set PATH LIMIT"},
		"no limit":                            {[]string{"set", "payments"}, exitUsage, "expected: notifier limits set PATH LIMIT"},
		"too much":                            {[]string{"set", "payments", "1/1h", "2/1h"}, exitUsage, "expected: "},
		"nothing to unset":                    {[]string{"unset"}, exitUsage, "expected: notifier limits unset PATH"},
		"no revision":                         {[]string{"rollback"}, exitUsage, "expected: notifier limits rollback REVISION"},
		"history of one":                      {[]string{"history", "payments"}, exitUsage, "payments"},
		"an unknown flag":                     {[]string{"set", "payments", "1/1h", "--bogus"}, exitUsage, "unknown flag"},
		"a shadow of the history":             {[]string{"history", "--shadow"}, exitUsage, "unknown flag"},
		"not a limit":                         {[]string{"set", "payments", "lots"}, exitUsage, "<count>/<window>"},
		"an algorithm that is none":           {[]string{"set", "payments", "bucket:1/1h"}, exitUsage, "not one of the algorithms"},
		"an empty limit":                      {[]string{"set", "payments", ""}, exitUsage, "<count>/<window>"},
		"upper case":                          {[]string{"set", "Payments", "1/1h"}, exitUsage, "upper-case"},
		"an empty token":                      {[]string{"set", "payments..x", "1/1h"}, exitUsage, "empty"},
		"half a wildcard":                     {[]string{"set", "pay*", "1/1h"}, exitUsage, "pay*"},
		"the key of a wildcard":               {[]string{"set", "payments.=", "1/1h"}, exitUsage, "payments.="},
		"the key of a shadow":                 {[]string{"set", "shadow/payments", "1/1h"}, exitUsage, "shadow/payments"},
		"all first levels":                    {[]string{"set", "*", "1/1h"}, exitUsage, "use category"},
		"less than is guaranteed":             {[]string{"set", "global", "19/30m"}, exitUsage, "guarantees of 20 slots"},
		"less than is guaranteed, the shadow": {[]string{"set", "global", "19/30m", "--shadow"}, exitUsage, "guarantees of 20 slots"},
		"no log to guarantee by":              {[]string{"set", "global", "token:100/1h"}, exitUsage, "a sliding log"},
		"unset not a name":                    {[]string{"unset", "Pay ments"}, exitUsage, "not the name of a limit"},
		"unset what is not set":               {[]string{"unset", "errors"}, exitFailure, "no such override is set"},
		"unset the shadow":                    {[]string{"unset", "payments", "--shadow"}, exitFailure, "no such override is set"},
		"not a revision":                      {[]string{"rollback", "last"}, exitUsage, `"last" is not a revision`},
		"a negative revision":                 {[]string{"rollback", "--", "-1"}, exitUsage, `"-1" is not a revision`},
		"adopt what":                          {[]string{"adopt", "1", "--yes"}, exitUsage, `unknown command "1"`},
		"nobody to ask":                       {[]string{"adopt"}, exitUsage, "there is nobody to ask: use --yes"},
		"an author of the history":            {[]string{"history", "--as", "ann"}, exitUsage, "unknown flag"},
		"revision 0":                          {[]string{"rollback", "0"}, exitFailure, "there is no revision 0, the newest is 1"},
		"a revision to come":                  {[]string{"rollback", "2"}, exitFailure, "there is no revision 2, the newest is 1"},
	} {
		t.Run(name, func(t *testing.T) {
			arguments := append([]string{"limits"}, test.arguments...)
			if status := silenced(t, arguments...); status != test.status {
				t.Errorf("the exit status is %d, want %d", status, test.status)
			}
			output, _, err := execute(t.Context(), "", arguments...)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v, want %q", err, test.says)
			}
			testkit.Equal(t, output, "", "it prints")
		})
	}
	testkit.Equal(t, silenced(t, "limits"), exitOK, "the exit status of limits")
	requireLimits(t, "limits afterwards", mustLimits(t),
		"LEVEL LIMIT FROM USED",
		"global 100/30m default 0 of 100",
		"category 10/30m default 0 of 10",
		"payments 1/1h live 0 of 1",
		"20 slots of each global window belong to security",
		"revision 1 of the bucket notifier-limits",
	)
	setenv(t, map[string]string{"GLOBAL_LIMIT": "lots"})
	testkit.Equal(t, silenced(t, "limits", "set", "payments", "1/1h"), exitUsage, "with bad settings the exit status")
}

// Who may not create the bucket sees the limits of the settings, and can change nothing.
func TestLimitsWithoutBucket(t *testing.T) {
	limitsServers(t, map[string]string{"NATS_PROVISION": "false", "LIMITS_BUCKET": "team-limits"})
	requireLimits(t, "limits", mustLimits(t),
		"LEVEL LIMIT FROM USED",
		"global 100/30m default 0 of 100",
		"category 10/30m default 0 of 10",
		"the bucket team-limits is absent: nothing can be changed while workers run",
	)
	requireLimits(t, "history", mustLimits(t, "history"), "")
	for _, arguments := range [][]string{{"set", "payments", "1/1h"}, {"unset", "payments"}, {"rollback", "1"}} {
		arguments = append([]string{"limits"}, arguments...)
		_, _, err := execute(t.Context(), "", arguments...)
		if !errors.Is(err, overrides.ErrNoBucket) || !strings.Contains(err.Error(), "team-limits (NOTIFIER_NATS_PROVISION=true has it created)") {
			t.Errorf("%q: %v, want that the bucket is absent, and what helps", arguments, err)
		}
		testkit.Equal(t, silenced(t, arguments...), exitFailure, "the exit status of %q", arguments)
	}
	testkit.Equal(t, silenced(t, "limits", "set", "payments", "lots"), exitUsage, "the exit status of a limit that is none")
}

// Of two who set the same limit at once, each succeeds or is told that the other was faster; the last success is in force.
func TestLimitsSetAtOnce(t *testing.T) {
	limitsServers(t, nil)
	mustLimits(t) // creates the bucket
	const rivals = 8
	var (
		setting   sync.WaitGroup
		mu        sync.Mutex
		revisions = make(map[string]string) // of those that were stored -> the limit
	)
	for i := range rivals {
		setting.Go(func() {
			limit := fmt.Sprintf("%d/1h", i+1)
			output, _, err := execute(t.Context(), "", "limits", "set", "payments", limit)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				_, revision, _ := strings.Cut(strings.TrimSuffix(output, ")\n"), "(revision ")
				revisions[revision] = limit
			case !errors.Is(err, overrides.ErrConflict):
				t.Errorf("set %s: %v, want success or a conflict", limit, err)
			}
		})
	}
	setting.Wait()
	if len(revisions) == 0 {
		t.Fatal("nobody was successful")
	}
	last := revisions[fmt.Sprint(len(revisions))]
	if shown := mustLimits(t); !strings.Contains(shown, "payments "+last+" live") {
		t.Errorf("after %v this is in force:\n%s", revisions, shown)
	}
}

// The limits are known without Redis; what is used is not, which is a failure.
func TestLimitsWithoutRedis(t *testing.T) {
	_, redisServer := limitsServers(t, map[string]string{"REDIS_TIMEOUT": "200ms"})
	redisServer.Kill()
	mustLimits(t, "set", "payments", "5/1h") // needs NATS alone
	output, _, err := execute(t.Context(), "", "limits")
	if err == nil || !strings.Contains(err.Error(), "what is used is not known: redis: ") || !strings.Contains(err.Error(), "NOTIFIER_REDIS_URL") {
		t.Errorf("the error is %v, want that redis is away, and the setting", err)
	}
	requireLimits(t, "limits", strings.TrimSuffix(fields(output), "\n"),
		"LEVEL LIMIT FROM USED",
		"global 100/30m default",
		"category 10/30m default",
		"payments 5/1h live",
		"revision 1 of the bucket notifier-limits",
	)
	testkit.Equal(t, silenced(t, "limits"), exitFailure, "the exit status")
}

func TestLimitsWithoutNATS(t *testing.T) {
	setenv(t, map[string]string{"NATS_URL": "nats://" + unused(t)})
	_, _, err := execute(t.Context(), "", "limits", "set", "payments", "1/1h")
	if err == nil || !strings.HasPrefix(err.Error(), "nats: ") || !strings.Contains(err.Error(), "NOTIFIER_NATS_URL") {
		t.Errorf("the error is %v, want one that names nats and the setting", err)
	}
	if usage := new(usageError); errors.As(err, &usage) {
		t.Error("it counts as a fault of the command line")
	}
}

// Values that workers ignore are named, and do not stand in the way of changes.
func TestLimitsOfBadValues(t *testing.T) {
	natsServer, _ := limitsServers(t, map[string]string{"GUARANTEES": "security=20"})
	mustLimits(t, "set", "payments", "5/1h")
	kv := openKeyValue(t, natsServer)
	for key, value := range map[string]string{"payments": "lots", "global": "10/30m", "=": "1/1h"} {
		testkit.Must(kv.PutString(t.Context(), key, value))(t)
	}
	mustLimits(t, "set", "errors", "1/1h")
	shown := mustLimits(t)
	for _, want := range []string{
		"\nglobal 100/30m default 0 of 100\n", "\nerrors 1/1h live 0 of 1\n", "\npayments 5/1h live 0 of 5\n",
		`keep its last good limit: limit "lots"`, "keep its last good limit: guarantees of 20 slots", `keep its last good limit: "*" is reserved`,
		"workers ignore what payments is set to in revision ", "\nrevision 5 of the bucket",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("it does not print %q:\n%s", want, shown)
		}
	}
	mustLimits(t, "unset", "global")
	mustLimits(t, "set", "payments", "6/1h")
	mustLimits(t, "unset", "*")
	if shown := mustLimits(t); strings.Contains(shown, "workers ignore") || !strings.Contains(shown, "\npayments 6/1h live 0 of 6\n") {
		t.Errorf("after the values are good it prints\n%s", shown)
	}
}

// admit has events of a category judged by these settings and the live limits, and all admitted.
func admit(t *testing.T, category string, events int) {
	t.Helper()
	settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
	if err != nil {
		t.Fatal(err)
	}
	tree := testkit.Must(limits.NewTree(settings.Limits.Plan()))(t)
	client := testkit.Must(newRedisClient(settings.Redis, slog.New(slog.DiscardHandler)))(t)
	defer func() { _ = client.Close() }()
	store := newStore(client, settings.Redis, throttle.Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour})
	for i := range events {
		id := fmt.Sprintf("%s-%d", category, i)
		result := testkit.Must(store.Decide(t.Context(), []throttle.Request{{
			ID: id, Message: throttle.Message{Stream: "S", Sequence: uint64(i), Stored: time.Now()}, Category: category, Cost: 1,
		}}))(t)
		if got := result.Decisions[0].Verdict; got != throttle.Admitted {
			t.Fatalf("verdict of %s is %d, want %d", id, got, throttle.Admitted)
		}
	}
}

// What is used is right for each kind of level and algorithm, whatever the prefix of the keys: that of another
// deployment is not this one's, though it would match this one's as a pattern.
func TestLimitsUsed(t *testing.T) {
	windows := "100/30m+fixed:90/366d"
	settings := map[string]string{
		"GLOBAL_LIMIT": windows, "CATEGORY_LIMIT": "10/30m",
		"LIMITS": "payments=40/30m,payments.*=counter:8/366d,*.slow=token:100/366d;burst=4,queue=leaky:60/366d,jobs.*=inflight:3/1h,quiet=7/1h",
	}
	natsServer, redisServer := servertest.StartNATS(t), servertest.StartRedis(t)
	for i, prefix := range []string{`a*b?[c-d]\x`, `aXXbYc\x`, `a*b?c\x`} {
		settings["NATS_URL"], settings["REDIS_URL"], settings["REDIS_PREFIX"] = natsServer.URL, redisServer.URL(), prefix
		setenv(t, settings)
		if i > 0 { // the others
			admit(t, "errors", 9)
			admit(t, "others", 9)
			continue
		}
		for category, events := range map[string]int{
			"errors": 3, "disk": 5, "disk.full": 1, // the deeper one counts at its first level
			"payments.cards": 2, "payments.refunds": 4, "payments.refunds.failed": 1,
			"any.slow": 2, "queue": 1, "jobs.a": 2, "jobs.b": 3,
		} {
			admit(t, category, events)
		}
	}
	settings["REDIS_PREFIX"] = `a*b?[c-d]\x`
	setenv(t, settings)
	shown := strings.Split(mustLimits(t), "\n")
	for _, want := range []string{
		"global " + windows + " environment 24 of 90",
		"category 10/30m environment 6 of 10 (disk), 4 paths in use",
		"payments 40/30m environment 7 of 40",
		"payments.* counter:8/366d environment 5 of 8 (payments.refunds), 2 paths in use",
		"*.slow token:100/366d;burst=4 environment 2 of 4 (any.slow)",
		"queue leaky:60/366d environment 1 of 60",
		"jobs.* inflight:3/1h environment 3 of 3 (jobs.b), 2 paths in use",
		"quiet 7/1h environment 0 of 7",
	} {
		if !slices.Contains(shown, want) {
			t.Errorf("it does not print %q:\n%s", want, strings.Join(shown, "\n"))
		}
	}
	// A changed limit is compared with what was used before.
	mustLimits(t, "set", "disk", "2/30m")
	if shown := mustLimits(t); !strings.Contains(shown, "\ndisk 2/30m live 6 of 2\n") {
		t.Errorf("after a limit is lowered it prints\n%s", shown)
	}
}

// Without the right to look for keys, what is used is shown for the places that rules name.
func TestLimitsUsedWithoutScan(t *testing.T) {
	_, redisServer := limitsServers(t, map[string]string{"LIMITS": "payments=40/30m,payments.*=8/30m"})
	admit(t, "payments.cards", 2)
	admit(t, "errors", 3)
	redisServer.CLI("acl", "setuser", "default", "-scan")
	requireLimits(t, "limits", mustLimits(t),
		"LEVEL LIMIT FROM USED",
		"global 100/30m default 5 of 100",
		"category 10/30m default 0 of 10",
		"payments 40/30m environment 2 of 40",
		"payments.* 8/30m environment 0 of 8",
		"revision 0 of the bucket notifier-limits",
	)
}

// The user of the sample configuration has the rights for all of this, and that of the workers for looking.
func TestLimitsRights(t *testing.T) {
	for _, user := range []string{"OPERATOR", "NOTIFIER", "LIMITS", "REPLAYER", "PRODUCER"} {
		t.Setenv("NATS_"+user+"_PASSWORD", "secret")
	}
	parsed := testkit.Must(server.ProcessConfigFile("../../configs/nats/notifier.conf"))(t)
	parsed.HTTPPort = 0
	natsServer := servertest.StartNATS(t, func(o *server.Options) { *o = *parsed.Clone() })
	redisServer := servertest.StartRedis(t)
	as := func(user, provision string) {
		setenv(t, map[string]string{
			"NATS_URL": natsServer.URL, "REDIS_URL": redisServer.URL(),
			"NATS_USER": user, "NATS_PASSWORD": "secret", "NATS_PROVISION": provision, "NATS_INBOX": "_INBOX_" + user,
		})
	}
	as("limits", "false")
	t.Setenv("NOTIFIER_NATS_INBOX", "")
	if _, _, err := execute(t.Context(), "", "limits", "history"); err == nil || !strings.Contains(err.Error(), "NOTIFIER_NATS_INBOX is the prefix") {
		t.Errorf("with the prefix of the workers: %v", err)
	}
	as("operator", "true")
	mustLimits(t)
	as("limits", "false")
	mustLimits(t, "set", "payments.*", "1/1h")
	mustLimits(t, "set", "payments.*", "2/1h", "--shadow")
	mustLimits(t, "unset", "payments.*")
	mustLimits(t, "rollback", "1", "--as", "ann")
	history := regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`).ReplaceAllString(mustLimits(t, "history"), "then")
	requireLimits(t, "history", history,
		"REVISION WHEN BY LEVEL LIMIT",
		"1 then limits payments.* 1/1h",
		"2 then limits shadow payments.* 2/1h",
		"3 then limits payments.* (unset)",
		"4 then ann payments.* 1/1h",
		"5 then ann shadow payments.* (unset)",
	)
	inForce(t, redisServer, limits.Position{Generation: 1 << 50, Revision: 3})
	mustLimits(t, "adopt", "--yes")
	as("notifier", "false")
	if shown := mustLimits(t); !strings.Contains(shown, "\npayments.* 1/1h live 0 of 1\n") {
		t.Errorf("the worker's user sees\n%s", shown)
	}
}
