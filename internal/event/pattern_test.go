package event_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func pattern(t testing.TB, text string) event.Pattern {
	t.Helper()
	return testkit.Must(event.ParsePattern(text))(t)
}

func table(t testing.TB, patterns ...string) event.Table[string] {
	t.Helper()
	var entries []event.Entry[string]
	for _, text := range patterns {
		entries = append(entries, event.Entry[string]{Pattern: pattern(t, text), Value: text})
	}
	return testkit.Must(event.NewTable(entries))(t)
}

func TestParsePattern(t *testing.T) {
	t.Parallel()
	for text, depth := range map[string]int{
		"*": 1, "a": 1, "payments.*": 2, "*.*.failed": 3, "a.*.c.*.e.*.g.*": 8, "global": 1,
	} {
		p := pattern(t, text)
		testkit.Equal(t, p.String(), text, "pattern")
		testkit.Equal(t, p.Depth(), depth, "depth of %q", text)
	}
	parse := func(text string) error {
		p, err := event.ParsePattern(text)
		testkit.Equal(t, p, event.Pattern{}, "pattern beside an error")
		return err
	}
	wantTextFaults(t, "ParsePattern", parse, map[string][]string{
		"is empty":      {""},
		"empty level":   {"a.", ".."},
		"upper-case":    {"Payments.*"},
		"whole level":   {"pay*", "**"},
		"may hold only": {"a.>", "a b"},
		"9 levels":      {"*.*.*.*.*.*.*.*.*"},
		"129 bytes":     {strings.Repeat("a", 129)},
	})
	zero := (event.Pattern{})
	testkit.Check(t, zero.Depth() == 0 && !zero.Matches("a") && !zero.Matches(""), "zero Pattern: got one with levels, want an empty one")
}

func TestPatternMatches(t *testing.T) {
	t.Parallel()
	for text, test := range map[string]struct{ matches, others []string }{
		"a":               {[]string{"a"}, []string{"b", "ab", "a.b"}},
		"*":               {[]string{"a"}, []string{"a.b"}},
		"a.*":             {[]string{"a.b"}, []string{"a", "b.b", "a.b.c"}},
		"*.b":             {[]string{"a.b"}, []string{"a.c"}},
		"*.*.c":           {[]string{"a.b.c"}, nil},
		"a.*.c":           {nil, []string{"a.b.d"}},
		"*.*.*.*.*.*.*.*": {[]string{"a.b.c.d.e.f.g.h"}, nil},
	} {
		for _, path := range slices.Concat(test.matches, test.others) {
			testkit.Equal(t, pattern(t, text).Matches(path), slices.Contains(test.matches, path), "%q matches %q", text, path)
		}
	}
}

func TestPatternCompareOrdersTheMoreSpecificFirst(t *testing.T) {
	t.Parallel()
	want := []string{
		"a", "b", "*",
		"a.b", "a.c", "a.*", "b.*", "*.a", "*.*",
		"a.b.c", "a.*.c", "a.b.*", "*.b.c", "a.*.*", "*.b.*", "*.*.c", "*.*.*",
	}
	patterns := make([]event.Pattern, 0, len(want))
	for _, text := range want {
		patterns = append(patterns, pattern(t, text))
	}
	for i, p := range patterns {
		for j, q := range patterns {
			testkit.Equal(t, p.Compare(q), cmp.Compare(i, j), "%q.Compare(%q)", p, q)
		}
	}
}

func TestTableLookup(t *testing.T) {
	t.Parallel()
	entries := table(t, "*.*", "payments.*", "*.refunds", "payments.refunds", "payments", "a.*.c", "a.b.*", "*.b.c")
	for path, want := range map[string]string{
		"payments":                  "payments",
		"orders":                    "",
		"payments.refunds":          "payments.refunds",
		"payments.charges":          "payments.*",
		"orders.refunds":            "*.refunds",
		"orders.new":                "*.*",
		"payments.refunds.f":        "",
		"a.b.c":                     "a.*.c",
		"a.b.x":                     "a.b.*",
		"x.b.c":                     "*.b.c",
		"x.y.z":                     "",
		"a.b.c.d.e.f.g.h":           "",
		"a.b.c.d.e.f.g.h.i.j.k.l.m": "",
		"":                          "",
	} {
		entry, ok := entries.Lookup(path)
		testkit.Check(t, ok == (want != "") && entry.Pattern.String() == want && entry.Value == want,
			"Lookup(%q) = %+v, %t, want %q", path, entry, ok, want)
	}
}

func TestTableNearest(t *testing.T) {
	t.Parallel()
	entries := table(t, "payments", "payments.*.failed", "*.audit")
	for path, want := range map[string]string{
		"payments":                  "payments",
		"payments.refunds":          "payments",
		"payments.audit":            "*.audit",
		"payments.refunds.failed":   "payments.*.failed",
		"payments.refunds.failed.x": "payments.*.failed",
		"payments.refunds.done":     "payments",
		"orders.audit.x.y":          "*.audit",
		"orders":                    "",
		"orders.new":                "",
	} {
		entry, ok := entries.Nearest(path)
		testkit.Equal(t, ok, want != "", "there is an entry near %q", path)
		testkit.Equal(t, entry.Pattern.String(), want, "pattern nearest to %q", path)
	}
}

func TestTableKeepsItsEntries(t *testing.T) {
	t.Parallel()
	given := []event.Entry[int]{{pattern(t, "b"), 1}, {pattern(t, "*"), 2}, {pattern(t, "a"), 3}}
	entries := testkit.Must(event.NewTable(given))(t)
	want := slices.Clone(given)
	given[0].Value = 99
	entries.Entries()[1].Value = 99
	testkit.EqualSlices(t, entries.Entries(), want, "Entries()")
	var zero event.Table[int]
	_, ok := zero.Nearest("a.b")
	testkit.Check(t, !ok && len(zero.Entries()) == 0, "zero Table: got an entry, want none")
}

func TestNewTableReportsEveryFault(t *testing.T) {
	t.Parallel()
	a, b := pattern(t, "a"), pattern(t, "b.*")
	_, err := event.NewTable([]event.Entry[int]{{a, 1}, {b, 2}, {a, 3}, {b, 4}, {a, 5}, {event.Pattern{}, 6}})
	want := "pattern \"a\" is given twice\npattern \"b.*\" is given twice\na pattern is empty"
	testkit.Equal(t, fmt.Sprint(err), want, "error")
}

func FuzzPattern(f *testing.F) {
	for _, pair := range [][3]string{
		{"*", "a", "a"}, {"a.*", "*.b", "a.b"}, {"a.*.c", "a.b.*", "a.b.c"}, {"A", "pay*", "x"}, {"", "..", ""},
		{"*.*.*.*.*.*.*.*", "a.b.c.d.e.f.g.h", "a.b.c.d.e.f.g.h"}, {"🔥", "\xff", "a.>"},
	} {
		f.Add(pair[0], pair[1], pair[2])
	}
	f.Fuzz(func(t *testing.T, one, other, path string) {
		p, err := event.ParsePattern(one)
		tokens := strings.Split(one, ".")
		for i, token := range tokens {
			if token == "*" {
				tokens[i] = "x"
			}
		}
		testkit.Equal(t, err == nil, event.ValidatePath(strings.Join(tokens, ".")) == nil, "%q is a pattern (%v)", one, err)
		if err != nil {
			return
		}
		testkit.Equal(t, p.String(), one, "pattern")
		testkit.Equal(t, p.Depth(), strings.Count(one, ".")+1, "depth of %q", one)
		q, err := event.ParsePattern(other)
		if err != nil {
			return
		}
		testkit.Check(t, p.Compare(q) == -q.Compare(p) && (p.Compare(q) == 0) == (p == q),
			"%q.Compare(%q): got %d and %d, want opposites, 0 for equal patterns", p, q, p.Compare(q), q.Compare(p))
		if event.ValidatePath(path) != nil || p == q {
			return
		}
		both := testkit.Must(event.NewTable([]event.Entry[int]{{p, 1}, {q, 2}}))(t)
		entry, ok := both.Lookup(path)
		testkit.Require(t, ok == (p.Matches(path) || q.Matches(path)), "Lookup(%q) in %q and %q: got %t, want %t", path, p, q, ok, !ok)
		if !ok {
			return
		}
		testkit.Equal(t, entry.Pattern.Matches(path), true, "%q matches %q", entry.Pattern, path)
		if p.Matches(path) && q.Matches(path) && entry.Pattern != slices.MinFunc([]event.Pattern{p, q}, event.Pattern.Compare) {
			t.Errorf("Lookup(%q) in %q and %q: got %q, want the first in order", path, p, q, entry.Pattern)
		}
	})
}
