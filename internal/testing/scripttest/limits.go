package scripttest

import (
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Plan reads the limits of a plan. The text of the rules may be empty.
func Plan(t testkit.Test, global, category, rules string) limits.Plan {
	t.Helper()
	plan := limits.Plan{Global: testkit.Must(limits.Parse(global))(t), Category: testkit.Must(limits.Parse(category))(t)}
	plan.Rules = parsed(t, limits.ParseRules, rules)
	return plan
}

// Tree returns the tree of a plan.
func Tree(t testkit.Test, global, category, rules string) *limits.Tree {
	t.Helper()
	return testkit.Must(limits.NewTree(Plan(t, global, category, rules)))(t)
}

// Guarded returns a plan with guarantees, whose text may be empty.
func Guarded(t testkit.Test, plan limits.Plan, guarantees string) limits.Plan {
	t.Helper()
	plan.Guarantees = parsed(t, limits.ParseGuarantees, guarantees)
	return plan
}

// Ruleset returns the limits of a plan, with a shadow if there are overrides for it.
func Ruleset(t testkit.Test, plan limits.Plan, shadow string) limits.Ruleset {
	t.Helper()
	return testkit.Must(limits.NewRuleset(plan, nil, parsed(t, limits.ParseOverrides, shadow), nil))(t)
}

// parsed reads a list; nil for the empty text.
func parsed[T any](t testkit.Test, parse func(text string) ([]T, []error), text string) []T {
	t.Helper()
	if text == "" {
		return nil
	}
	list, faults := parse(text)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return list
}
