package simulate

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var decoder = event.Decoder{Prefix: "notify", MaxBytes: 4000}

func unwatched(int64, int64) {}

// newLimiter makes a limiter for limits in the form of the settings. rules may be "".
func newLimiter(t testing.TB, global, category, rules string) *Limiter {
	t.Helper()
	plan := limits.Plan{Global: testkit.Must(limits.Parse(global))(t), Category: testkit.Must(limits.Parse(category))(t)}
	if rules != "" {
		var faults []error
		if plan.Rules, faults = limits.ParseRules(rules); len(faults) > 0 {
			t.Fatal(faults)
		}
	}
	return NewLimiter(Options{
		Tree: testkit.Must(limits.NewTree(plan))(t), Retention: time.Hour, PairTTL: 24 * time.Hour,
		Fold: func(category string) time.Duration { return map[string]time.Duration{"folded": time.Hour}[category] },
	})
}

func readLines(t testing.TB, text string) *History {
	t.Helper()
	return testkit.Must(ReadLines(t.Context(), strings.NewReader(text), decoder, unwatched))(t)
}

// replay reads lines and evaluates their events.
func replay(t testing.TB, lines string, evaluator Evaluator) Report {
	t.Helper()
	return testkit.Must(readLines(t, lines).Replay(t.Context(), evaluator, unwatched))(t)
}

// evaluatorFunc is an Evaluator of one function.
type evaluatorFunc func(events []Event) ([]Verdict, error)

func (f evaluatorFunc) Evaluate(events []Event) ([]Verdict, error) {
	return f(events)
}

// midnight is second 0 of the tests.
var midnight = time.Date(2026, time.March, 1, 0, 0, 0, 0, time.UTC)

// lineAt is an event of a category at a second. members holds further members such as `, "cost": 2`.
func lineAt(second float64, category, members string) string {
	at := midnight.Add(time.Duration(second * float64(time.Second)))
	return `{"time": "` + at.Format(time.RFC3339Nano) + `", "category": "` + category + `"` + members + "}\n"
}

func alert(status, fingerprint string) string {
	return `{"status": "` + status + `", "labels": {"alertname": "Disk"}, "startsAt": "2020-01-01T00:00:00Z", "fingerprint": "` + fingerprint + `"}`
}

// groupAt is a group of alerts of a category at a second.
func groupAt(second float64, category string, alerts ...string) string {
	return lineAt(second, category, `, "alerts": [`+strings.Join(alerts, ", ")+`]`)
}

func firing(key string) string   { return `, "status": "firing", "key": "` + key + `"` }
func resolved(key string) string { return `, "status": "resolved", "key": "` + key + `"` }
