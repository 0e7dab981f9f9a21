package limits

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func pathString(path []Node) string {
	var nodes []string
	for _, node := range path {
		nodes = append(nodes, fmt.Sprintf("%s[%s %s]", node.Place(), node.Level, node.Limits))
	}
	return strings.Join(nodes, " ")
}

func TestTreePath(t *testing.T) {
	t.Parallel()
	tree := newTree(t, "100/30m", "10/30m", strings.Join([]string{
		" payments = 40/30m", "payments.* =5/10m", "payments.refunds=6/10m", "payments.*.failed=7/1h", "*.refunds.failed=8/1h",
		"*.*.*=9/1h", "security=none", "security.login=3/1m", "*.quiet=none", "debug=0/1h",
	}, ","))
	for category, want := range map[string]string{
		"errors":                  "[global 100/30m] errors[category 10/30m]",
		"global":                  "[global 100/30m] global[category 10/30m]",
		"payments":                "[global 100/30m] payments[payments 40/30m]",
		"payments.cards":          "[global 100/30m] payments[payments 40/30m] payments.cards[payments.* 5/10m]",
		"payments.refunds":        "[global 100/30m] payments[payments 40/30m] payments.refunds[payments.refunds 6/10m]",
		"payments.refunds.failed": "[global 100/30m] payments[payments 40/30m] payments.refunds[payments.refunds 6/10m] payments.refunds.failed[payments.*.failed 7/1h]",
		"orders.refunds.failed":   "[global 100/30m] orders[category 10/30m] orders.refunds.failed[*.refunds.failed 8/1h]",
		"a.b.c":                   "[global 100/30m] a[category 10/30m] a.b.c[*.*.* 9/1h]",
		"a.b.c.d":                 "[global 100/30m] a[category 10/30m] a.b.c[*.*.* 9/1h]",
		"security":                "[global 100/30m]",
		"security.login":          "[global 100/30m] security.login[security.login 3/1m]",
		"payments.quiet":          "[global 100/30m] payments[payments 40/30m] payments.quiet[payments.* 5/10m]",
		"errors.quiet":            "[global 100/30m] errors[category 10/30m]",
		"debug.x":                 "[global 100/30m] debug[debug 0/1h]",
		"":                        "[global 100/30m]",
	} {
		testkit.Equal(t, pathString(tree.Path(category)), want, "path to %s", category)
	}
}

// The most specific rule of each key adds a node below its path, whatever the rule of the path is. Events without a key have no such node.
func TestTreePathOfKey(t *testing.T) {
	t.Parallel()
	tree := newTree(t, "100/30m", "10/30m", "payments=40/30m,*@key=2/1h,payments@key=1/1h,payments.*@key=3/1h,payments.refunds@key=none,quiet@key=none,off=none")
	for category, want := range map[string]string{
		"payments":         "[global 100/30m] payments[payments 40/30m] payments@K[payments@key 1/1h]",
		"payments.cards":   "[global 100/30m] payments[payments 40/30m] payments@K[payments@key 1/1h] payments.cards@K[payments.*@key 3/1h]",
		"payments.refunds": "[global 100/30m] payments[payments 40/30m] payments@K[payments@key 1/1h]",
		"deploys.web":      "[global 100/30m] deploys[category 10/30m] deploys@K[*@key 2/1h]",
		"quiet":            "[global 100/30m] quiet[category 10/30m]",
		"off":              "[global 100/30m] off@K[*@key 2/1h]",
		"":                 "[global 100/30m]",
	} {
		testkit.Equal(t, pathString(tree.PathOfKey(category, "K")), want, "path of a key to %s", category)
		testkit.Equal(t, strings.Contains(pathString(tree.Path(category)), "@"), false, "the path of %s without a key has a node of a key", category)
	}
}

// A hash stands for one key, and does not show the key.
func TestHashOfKey(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, key := range []string{"a", "b", "db-1", "db-2", strings.Repeat("x", 64), "a@b", "A", " a"} {
		hash := HashOfKey(key)
		if other, known := seen[hash]; known || len(hash) != 22 || strings.ContainsAny(hash, "@:{} \n") {
			t.Errorf("hash of %q: got %q, want 22 safe characters, unlike %q", key, hash, other)
		}
		seen[hash] = key
	}
	testkit.Equal(t, HashOfKey(""), "", "hash of no key")
}

func TestSplitKey(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{"a": {"a", ""}, "a.b@db": {"a.b", "db"}, "a@b@c": {"a", "b@c"}, "a@": {"a", ""}} {
		path, key := SplitKey(text)
		testkit.Equal(t, [2]string{path, key}, want, "path and key of %q", text)
	}
}

func TestTreeWithoutLimits(t *testing.T) {
	t.Parallel()
	tree := newTree(t, "none", "none", "a.b=1/1h")
	testkit.Equal(t, pathString(tree.Path("a")), "", "path")
	testkit.Equal(t, pathString(tree.Path("a.b.c")), "a.b[a.b 1/1h]", "path")
	testkit.Equal(t, tree.LongestWindow(), time.Hour, "longest window")
	testkit.Equal(t, newTree(t, "none", "none", "").LongestWindow(), 0, "longest window of no limits")
}

func TestTreeLevels(t *testing.T) {
	t.Parallel()
	tree := newTree(t, "100/30m", "10/30m+1/1s", "b.*=1/2h,a@key=7/1h,a=none,a.b=5/1d")
	testkit.Equal(t, pathString(tree.Levels()), "[global 100/30m] [category 10/30m+1/1s] [b.* 1/2h] [a.b 5/1d] [a@key 7/1h]", "levels")
	testkit.Equal(t, tree.LongestWindow(), 24*time.Hour, "longest window")
	drawn := tree.String()
	testkit.Contains(t, "tree", drawn, "global    100/30m\n", "category  10/30m+1/1s", "    b.*  1/2h\n", "  a  none\n", "    a.b  5/1d\n", "  a@key  7/1h (each key)\n")
}

func TestTreeRuleGivenTwice(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"a=1/1h": "limit rules: ", "a@key=1/1h": "of each key: "} {
		rules := newPlan(t, "none", "none", text).Rules
		_, err := NewTree(Plan{Rules: append(rules, rules...)})
		testkit.Fails(t, text+" twice", err, nil, want)
	}
}

// Considered lists each rule that matches the path or a parent. One rule wins at each path.
func TestConsidered(t *testing.T) {
	t.Parallel()
	tree := newTree(t, "100/1h", "10/1h", "a.*=4/1h,a.b=2/1h,*.b=3/1h,c=none,*@key=1/1h,c@key=2/1h")
	for category, want := range map[string]string{
		"a.b": "[ global true] [a category true] [a *@key true] [a.b a.* false] [a.b a.b true] [a.b *.b false]",
		"a.c": "[ global true] [a category true] [a *@key true] [a.c a.* true]",
		"c":   "[ global true] [c category false] [c c true] [c *@key false] [c c@key true]",
		"d.e": "[ global true] [d category true] [d *@key true]",
	} {
		var got []string
		for _, rule := range tree.Considered(category) {
			got = append(got, fmt.Sprint([]any{rule.Path, rule.Level, rule.Wins}))
			testkit.Equal(t, rule.OfKey, strings.HasSuffix(rule.Level, "@key"), "%s is of each key", rule.Level)
		}
		testkit.Equal(t, strings.Join(got, " "), want, "rules for %s", category)
	}
}
