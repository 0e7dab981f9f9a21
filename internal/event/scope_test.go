package event_test

import (
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func scopes(t testing.TB, texts ...string) event.Scopes[string] {
	t.Helper()
	var entries []event.ScopeEntry[string]
	for _, text := range texts {
		s := testkit.Must(event.ParseScope(text))(t)
		entries = append(entries, event.ScopeEntry[string]{Scope: s, Value: text})
	}
	return testkit.Must(event.NewScopes(entries))(t)
}

func TestParseScope(t *testing.T) {
	t.Parallel()
	for _, text := range []string{">", "a", "a.>", "*", "*.>", "payments.*.failed", "payments.*.>", "a.b.c.d.e.f.g.>", "a.b.c.d.e.f.g.h"} {
		testkit.Equal(t, testkit.Must(event.ParseScope(text))(t).String(), text, "scope")
	}
	parse := func(text string) error {
		s, err := event.ParseScope(text)
		testkit.Equal(t, s, event.Scope{}, "scope beside an error")
		if err != nil && !strings.HasPrefix(err.Error(), "scope ") {
			t.Errorf("ParseScope(%q) = %v, want an error that begins with what it is of", text, err)
		}
		return err
	}
	wantTextFaults(t, "ParseScope", parse, map[string][]string{
		`scope "" is empty`:                  {""},
		`scope ".>" is empty`:                {".>"},
		"may hold only":                      {">.>", ">.a", "a>", "a.>.b", "a.>.>"},
		"empty level":                        {"a..>"},
		"upper-case":                         {"Payments.>"},
		"whole level":                        {"pay*.>"},
		"no category has more than 8 levels": {"a.b.c.d.e.f.g.h.>"},
		"9 levels":                           {"a.b.c.d.e.f.g.h.i"},
		"129 bytes":                          {strings.Repeat("a", 129)},
		"…":                                  {strings.Repeat("\x00", 99)},
	})
}

func TestScopesLookup(t *testing.T) {
	t.Parallel()
	given := []string{"payments.>", "payments", "payments.refunds.>", "*.refunds", "*.audit.>", "a.*.c", "a.b.*", "*.b.>", "a.*.>"}
	for _, test := range []struct {
		category, want, wantWithAll string
	}{
		{"payments", "payments", "payments"},
		{"payments.charges", "payments.>", "payments.>"},
		{"payments.charges.failed.x", "payments.>", "payments.>"},
		{"payments.refunds", "*.refunds", "*.refunds"}, // a match of the whole category before the scopes above
		{"payments.refunds.failed", "payments.refunds.>", "payments.refunds.>"},
		{"payments.audit", "payments.>", "payments.>"},
		{"payments.audit.x", "*.audit.>", "*.audit.>"}, // a scope of two levels before one of one level
		{"a.b.c", "a.*.c", "a.*.c"},
		{"a.b.x", "a.b.*", "a.b.*"},
		{"a.x.y", "a.*.>", "a.*.>"},
		{"a.b.x.y", "a.*.>", "a.*.>"}, // the literal further left first
		{"x.b.x.y", "*.b.>", "*.b.>"},
		{"orders", "", ">"},
		{"orders.audit", "", ">"},
		{"a", "", ">"},
		{"a.b", "", ">"},
	} {
		if got, ok := scopes(t, given...).Lookup(test.category); got != test.want || ok != (test.want != "") {
			t.Errorf("Lookup(%q) = %q, %t, want %q", test.category, got, ok, test.want)
		}
		if got, ok := scopes(t, append([]string{">"}, given...)...).Lookup(test.category); got != test.wantWithAll || !ok {
			t.Errorf("with '>': Lookup(%q) = %q, %t, want %q", test.category, got, ok, test.wantWithAll)
		}
	}
	var zero event.Scopes[int]
	_, ok := zero.Lookup("a.b")
	testkit.Check(t, !ok && len(zero.Entries()) == 0, "zero Scopes: got an entry, want none")
}
