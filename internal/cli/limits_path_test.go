package cli

import (
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// The output lists each rule that matches the path or one above it. Rules in force have their usage.
func TestLimitsOfAPath(t *testing.T) {
	limitsServers(t, map[string]string{
		"CATEGORY_LIMIT": "10/30m", "LIMITS": "payments=40/30m,payments.*=8/30m,payments.refunds=2/30m+9/2h,*.slow=1/1h",
	})
	mustLimits(t, "")
	admit(t, "payments.refunds", 2)
	shown := mustLimits(t, "payments.refunds")
	at := strings.Index(shown, " in ")
	testkit.Require(t, at >= 0, "got\n%s\nwant a next slot", shown)
	next := strings.Fields(shown[at:])[1]
	testkit.Equal(t, strings.Replace(shown, next, "a while", 1), strings.Join([]string{
		"PATH LEVEL LIMIT FROM USED NEXT SLOT",
		"(all) global 100/30m default 2 of 100 now",
		"payments category 10/30m environment replaced by the rule of payments",
		"payments payments 40/30m environment 2 of 40 now",
		"payments.refunds payments.* 8/30m environment replaced by the rule of payments.refunds",
		"payments.refunds payments.refunds 2/30m environment 2 of 2 in a while",
		"payments.refunds payments.refunds 9/2h environment 2 of 9 now",
		"an event of payments.refunds would be denied now by payments.refunds 2/30m",
		"no worker answers: these are the limits of the settings here",
	}, "\n"), "of payments.refunds")
	testkit.Contains(t, "limits search", mustLimits(t, "search"), "an event of search would be sent now")

	got := decoded[shownLimits](t, "limits payments.refunds --json")
	if len(got.Path) != 6 || !got.Path[4].InForce || got.Path[4].Used != 2 || got.Path[4].Next == nil ||
		got.Path[3].InForce || got.Path[3].Instead != "payments.refunds" {
		t.Errorf("got %+v, want six rules, the fifth in force and full", got.Path)
	}
	got = decoded[shownLimits](t, "limits --json")
	if len(got.Levels) != 6 || got.Levels[0] != (shownLevel{Use: limits.Use{Level: "global", Limit: "100/30m", Used: 2, Size: 100}, From: "default", Paths: 1}) {
		t.Errorf("got %+v, want six levels, two slots of the first in use", got.Levels)
	}
	t.Setenv("NOTIFIER_SHADOW", "true")
	testkit.Contains(t, "limits payments.refunds in shadow mode", mustLimits(t, "payments.refunds"),
		"an event of payments.refunds would be denied now by payments.refunds 2/30m; NOTIFIER_SHADOW=true sends it anyway\n")
}

// The rules of each key stand below the rules of their path, with the use of the key that the argument names.
func TestLimitsOfAKey(t *testing.T) {
	limitsServers(t, map[string]string{"CATEGORY_LIMIT": "10/30m", "LIMITS": "*@key=5/1h,payments@key=2/1h"})
	mustLimits(t, "")
	admitOfKey(t, "payments.refunds", "db-1", 2)
	admitOfKey(t, "payments", "db-2", 1)
	admitOfKey(t, "deploys", "db-2", 1)
	shown := mustLimits(t, "payments@db-1")
	next := strings.Fields(shown[strings.Index(shown, " in ")+1:])[1]
	testkit.Equal(t, strings.Replace(shown, next, "a while", 1), strings.Join([]string{
		"PATH LEVEL LIMIT FROM USED NEXT SLOT",
		"(all) global 100/30m default 4 of 100 now",
		"payments category 10/30m environment 3 of 10 now",
		"payments@db-1 *@key 5/1h environment replaced by the rule of payments@key",
		"payments@db-1 payments@key 2/1h environment 2 of 2 in a while",
		`an event of payments with the key "db-1" would be denied now by payments@key 2/1h`,
		"no worker answers: these are the limits of the settings here",
	}, "\n"), "of a full key")
	testkit.Contains(t, "limits payments@new", mustLimits(t, "payments@new"),
		"payments@new payments@key 2/1h environment 0 of 2", "an event of payments with the key \"new\" would be sent now\n")
	testkit.Contains(t, "limits payments", mustLimits(t, "payments"),
		"payments payments@key 2/1h environment counted for each key",
		"an event of payments would be sent now, unless its key has filled payments@key 2/1h")
	testkit.Contains(t, "limits", mustLimits(t, ""), "*@key 5/1h environment 1 key in use", "payments@key 2/1h environment 2 keys in use")
	testkit.Equal(t, mustLimits(t, "set payments.*@key 1/1h"), "payments.*@key is 1/1h (revision 1)", "set prints")
	testkit.Contains(t, "limits payments.refunds@db-2", mustLimits(t, "payments.refunds@db-2"),
		"payments@db-2 payments@key 2/1h environment 1 of 2", "payments.refunds@db-2 payments.*@key 1/1h live 0 of 1")
	testkit.Equal(t, mustLimits(t, "unset payments.*@key"), "payments.*@key is unset: the settings apply (revision 2)", "unset prints")

	got := decoded[shownLimits](t, "limits payments@db-1 --json")
	if row := got.Path[len(got.Path)-1]; len(got.Path) != 4 || !row.OfKey || !row.InForce || row.Path != "payments@db-1" || row.Used != 2 || row.Next == nil {
		t.Errorf("got %+v, want four rules, the last one of a full key", got.Path)
	}
	got = decoded[shownLimits](t, "limits --json")
	last := got.Levels[len(got.Levels)-1]
	testkit.Check(t, last.Level == "payments@key" && last.Keys == 2, "got %+v, want two keys in use of the last level", got.Levels)
}

// set warns of a limit that never denies, and of one below the current usage.
func TestLimitsSetWarns(t *testing.T) {
	limitsServers(t, map[string]string{"GLOBAL_LIMIT": "100/30m", "CATEGORY_LIMIT": "10/30m"})
	admit(t, "payments.refunds", 3)
	for _, test := range []struct{ line, want string }{
		{"set payments 20/30m", ""},
		{"set payments.refunds 20/30m", "20/30m of payments.refunds never denies anything: payments above it allows no more than 20/30m"},
		{"set category 100/30m", "100/30m of category never denies anything: global above it allows no more than 100/30m"},
		{"set *.slow 100/30m", "global above it allows no more"},
		{"set search 200/30m --shadow", ""},
		{"set payments 2/30m", "3 of 2 are used, so nothing more of it is sent"},
		{"set payments 0/30m", "nothing of it is sent any more; notifier mute"},
		{"set payments 2/30m", "3 of 2 are used"},
		{"set global 2/30m", "3 of 2 are used, so nothing more of it is sent"},
		{"set payments 40/1h", "global 2/30m is full: nothing is sent before "},
		{"set deploys.* 1/1h", "global 2/30m is full: nothing is sent before "},
		{"set global none", "nothing bounds all events together now: "},
		{"set payments.refunds 1/1h", ""},
	} {
		shown := mustLimits(t, test.line)
		testkit.Check(t, strings.Contains(shown, "warning: ") == (test.want != "") && strings.Contains(shown, test.want),
			"%s prints %q, want %q", test.line, shown, test.want)
	}
}
