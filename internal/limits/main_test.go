package limits

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func parse(t testing.TB, text string) Limits {
	t.Helper()
	return testkit.Must(Parse(text))(t)
}

func newPlan(t testing.TB, global, category, rules string) Plan {
	t.Helper()
	plan := Plan{Global: parse(t, global), Category: parse(t, category)}
	if rules != "" {
		var faults []error
		if plan.Rules, faults = ParseRules(rules); len(faults) > 0 {
			t.Fatal(faults)
		}
	}
	return plan
}

// parseOverrides reads no overrides from "".
func parseOverrides(t testing.TB, text string) []Override {
	t.Helper()
	if text == "" {
		return nil
	}
	overrides, faults := ParseOverrides(text)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return overrides
}

func newTree(t testing.TB, global, category, rules string) *Tree {
	t.Helper()
	return testkit.Must(NewTree(newPlan(t, global, category, rules)))(t)
}
