package page

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// outline prints a tree in one line. Parentheses hold the paths below a path.
func outline(branches []*branch) string {
	var all []string
	for _, b := range branches {
		text := fmt.Sprintf("%s:%d", b.Path, len(b.Limits))
		if len(b.Below) > 0 {
			text += "(" + outline(b.Below) + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func TestTree(t *testing.T) {
	t.Parallel()
	used := func(path string, n, size int64) status.Limit {
		return status.Limit{Path: path, Limit: fmt.Sprintf("%d/1m", size), Used: n, Size: size}
	}
	tests := []struct {
		name    string
		limits  []status.Limit
		changes []status.Change
		filter  string
		want    string
	}{
		{"nothing", nil, nil, "", ""},
		{"the fullest first", []status.Limit{used("", 1, 10), used("a", 1, 10), used("b", 9, 10), used("c", 5, 10)}, nil, "", ":1(b:1 c:1 a:1)"},
		{"by what is below", []status.Limit{used("a", 1, 10), used("a.x", 10, 10), used("b", 9, 10)}, nil, "", "a:1(a.x:1) b:1"},
		{"two limits of one path", []status.Limit{used("a", 1, 10), used("a", 1, 5)}, nil, "", "a:2"},
		{"a gap", []status.Limit{used("", 1, 10), used("a.b.c", 1, 10)}, nil, "", ":1(a.b.c:1)"},
		{"no slots", []status.Limit{used("a", 9, 10), used("b", 0, 0)}, nil, "", "b:1 a:1"},
		{"filtered, with what is above", []status.Limit{used("", 1, 9), used("a", 1, 9), used("a.x", 1, 9), used("b", 1, 9)}, nil, " A.X", ":1(a:1(a.x:1))"},
		{"filtered away", []status.Limit{used("", 1, 9), used("a", 1, 9)}, nil, "x", ""},
		{"muted and not used", []status.Limit{used("a", 1, 9)}, []status.Change{{Path: "debug.noise"}}, "", "a:1 debug.noise:0"},
	}
	for _, test := range tests {
		testkit.Equal(t, outline(grow(test.limits, test.changes, test.filter).Branches), test.want, "%s", test.name)
	}
	var many []status.Limit
	for i := range 10_000 {
		many = append(many, used(fmt.Sprintf("c%d", i), int64(i), 10_000))
	}
	cut := grow(many, nil, "")
	testkit.Equal(t, len(cut.Branches), maxLimits-1, "paths of 10,000, beside the root")
	testkit.Equal(t, cut.Branches[0].Path, "c9999", "the fullest")
	testkit.Equal(t, cut.Hidden, 10_000-len(cut.Branches), "limits that are not shown")
}

func TestChart(t *testing.T) {
	t.Parallel()
	c := draw(busy().Minutes)
	testkit.Equal(t, c.Most, int64(590), "events in the busiest minute")
	for i, want := range []string{"sent 59 1770", "dropped 590 17700", "waiting 2 120"} {
		testkit.Equal(t, fmt.Sprint(c.Lines[i].Name, " ", c.Lines[i].Last, " ", c.Lines[i].Sum), want, "line")
	}
	points := strings.Fields(c.Lines[1].Points)
	testkit.Equal(t, len(points), 60, "points")
	testkit.Equal(t, points[0], "10.0,120.0", "the oldest point")
	testkit.Equal(t, points[59], "600.0,0.0", "the newest point")
	testkit.Equal(t, draw(nil).Lines[0].Points, "", "points of no minutes")
}

func TestTexts(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		testkit.Equal(t, count(n), want, "count")
	}
	for n, want := range map[int64]string{0: "0 B", 1536: "1.5 KiB", 1 << 30: "1 GiB"} {
		testkit.Equal(t, bytes1024(n), want, "size")
	}
}
