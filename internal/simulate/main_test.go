package simulate

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var decoder = event.Decoder{Prefix: "notify", MaxBytes: 4000}

// unwatched is a Progress that nobody looks at.
func unwatched(int64, int64) {}

// newLimiter makes a limiter for limits of the form that the settings have; rules may be "".
func newLimiter(t testing.TB, global, category, rules string) *Limiter {
	t.Helper()
	return NewLimiter(tree(t, global, category, rules), time.Hour, 24*time.Hour)
}

func tree(t testing.TB, global, category, rules string) *limits.Tree {
	t.Helper()
	tree, err := limits.NewTree(limits.Plan{Global: parseLimits(t, global), Category: parseLimits(t, category), Rules: parseRules(t, rules)})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func parseLimits(t testing.TB, text string) limits.Limits {
	t.Helper()
	return testkit.Must(limits.Parse(text))(t)
}

func parseRules(t testing.TB, text string) []limits.Rule {
	t.Helper()
	if text == "" {
		return nil
	}
	rules, faults := limits.ParseRules(text)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return rules
}

func readLines(t testing.TB, text string) *History {
	t.Helper()
	return testkit.Must(ReadLines(t.Context(), strings.NewReader(text), decoder, unwatched))(t)
}

// midnight is the time of the second 0 of these tests.
var midnight = time.Date(2026, time.March, 1, 0, 0, 0, 0, time.UTC)

// lineAt is an event in a category at a second, with further members such as `, "cost": 2`.
func lineAt(second float64, category, members string) string {
	at := midnight.Add(time.Duration(second * float64(time.Second)))
	return `{"time": "` + at.Format(time.RFC3339Nano) + `", "category": "` + category + `"` + members + "}\n"
}
