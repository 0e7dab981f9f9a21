package cli

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Every output shows the end of a limit. The history shows who set it, when, and the value before.
func TestLimitsThatEnd(t *testing.T) {
	natsServer, _ := limitsServers(t, nil)
	for _, change := range [][2]string{
		{"set payments 5/30m --as ann", "payments is 5/30m (revision 1)"},
		{"set payments 6/30m --for 2h --as bob", "payments is 6/30m until then, then 5/30m again (revision 2)"},
		{"set payments 7/30m --for 1d", "payments is 7/30m until then, then 5/30m again (revision 3)"},
		{"set search 8/30m --for 90m", "search is 8/30m until then, then what the settings say (revision 4)"},
		{"set category 9/30m --shadow --for 1w", "shadow category is 9/30m until then, then what the settings say (revision 5)"},
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
	if len(shown.Levels) < 4 || shown.Levels[2].Until.IsZero() || !shown.Levels[1].Until.IsZero() {
		t.Errorf("got %+v, want an end of the third level alone", shown.Levels)
	}
	testkit.Contains(t, "limits search", withoutTimes(mustLimits(t, "search")), "search search 8/30m live until then 0 of 8")
	putLive(t, natsServer, "payments", "lots")
	requireFailure(t, Failure, "limits set payments 1/1h --for 1h", "cannot be in force again", "unset it first")
}
