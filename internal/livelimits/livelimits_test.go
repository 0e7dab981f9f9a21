package livelimits

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// The log lists the rules in the form of the settings, up to a bound.
func TestLimitTexts(t *testing.T) {
	t.Parallel()
	texts := func(rules string, guarantees ...limits.Guarantee) []string {
		t.Helper()
		parsed, errs := limits.ParseRules(rules)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		tree := testkit.Must(limits.NewTree(limits.Plan{
			Global: testkit.Must(limits.Parse("100/30m"))(t), Category: testkit.Must(limits.Parse("10/30m+3/1m"))(t),
			Rules: parsed, Guarantees: guarantees,
		}))(t)
		return limitTexts(tree)
	}
	testkit.EqualSlices(t, texts("payments.*=none", limits.Guarantee{Path: "security", Slots: 5}),
		[]string{"global=100/30m", "category=10/30m+3/1m", "payments.*=none", "security=5 guaranteed"}, "rules")

	var many []string
	for i := range mostLogged {
		many = append(many, fmt.Sprintf("service%d=1/1m", i))
	}
	bounded := texts(strings.Join(many, ","))
	testkit.Equal(t, len(bounded), mostLogged+1, "texts")
	testkit.Equal(t, bounded[mostLogged], "and 2 more", "the last text")
}
