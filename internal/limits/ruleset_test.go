package limits

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestNewRuleset(t *testing.T) {
	t.Parallel()
	parse := func(text string) []Override { return parseOverrides(t, text) }
	plan := newPlan(t, "100/1h", "10/1h", "a=5/1h")
	rules := testkit.Must(NewRuleset(plan, parse("a=6/1h,b=7/1h"), parse("a=8/1h,c=9/1h"), parse("c=1/1h,category=2/1h")))(t)
	for path, want := range map[string][2]string{"a": {"6/1h", "8/1h"}, "b": {"7/1h", "7/1h"}, "c": {"10/1h", "1/1h"}, "d": {"10/1h", "2/1h"}} {
		got := [2]string{rules.Tree.Path(path)[1].Limits.String(), rules.Shadow.Path(path)[1].Limits.String()}
		testkit.Equal(t, got, want, "%s: limits in force and in the shadow", path)
	}
	if rules, err := NewRuleset(plan, parse("a=6/1h"), nil, nil); err != nil || rules.Shadow != nil {
		t.Errorf("a shadow of no overrides: %v, %v", rules.Shadow, err)
	}
	plan.Guarantees = []Guarantee{{Path: "a", Slots: 50}}
	_, err := NewRuleset(plan, parse("global=49/1h"), nil, nil)
	testkit.Fails(t, "limits that cannot keep the guarantees", err, nil)
	_, err = NewRuleset(plan, nil, parse("global=49/1h"), nil)
	testkit.Fails(t, "a shadow that cannot keep the guarantees", err, nil, "shadow")
}

func TestPositions(t *testing.T) {
	t.Parallel()
	ordered := []Position{{}, {1, 1}, {1, 2}, {2, 0}, {2, 1}}
	for i, p := range ordered {
		for j, q := range ordered {
			testkit.Equal(t, p.Before(q), i < j, "%v before %v", p, q)
		}
	}
	for p, want := range map[Position]string{{}: "none", {1_766_000_000_123, 2}: "revision 2 of generation 1766000000123 (2025-12-17T19:33:20Z)"} {
		testkit.Equal(t, p.String(), want, "position")
	}
}
