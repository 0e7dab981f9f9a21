package event_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestValidatePath(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"a", "0", "_", "-", "errors", "global", "category", "default", "payments.refunds.failed",
		"a.b.c.d.e.f.g.h", "on-call_2.x", strings.Repeat("a", event.MaxPathBytes),
	} {
		testkit.Equal(t, event.ValidatePath(path), nil, "ValidatePath(%q)", path)
	}
	wantTextFaults(t, "ValidatePath", event.ValidatePath, map[string][]string{
		"is empty":      {""},
		"empty level":   {".", ".a", "a.", "a..b"},
		"upper-case":    {"A", "a.bC"},
		"may hold only": {"*", "a.*", "a>", "a b", "a\n", "a\x00", "ünder", "\xff", "🔥"},
		"9 levels":      {"a.b.c.d.e.f.g.h.i"},
		"129 bytes":     {strings.Repeat("a", event.MaxPathBytes+1)},
		"10000 bytes":   {strings.Repeat("a.", 5_000)},
	})
}

// wantTextFaults reads bad texts, listed by a part of their errors.
func wantTextFaults(t *testing.T, name string, read func(text string) error, faults map[string][]string) {
	t.Helper()
	for want, texts := range faults {
		for _, text := range texts {
			if err := read(text); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300 {
				t.Errorf("%s(%.300q) = %v, want a short error with %q", name, text, err, want)
			}
		}
	}
}

func TestFirstLevel(t *testing.T) {
	t.Parallel()
	for category, want := range map[string]string{"": "_", "a": "a", "payments.refunds.failed": "payments"} {
		testkit.Equal(t, event.FirstLevel(category), want, "FirstLevel(%q)", category)
	}
	for subject, want := range map[string]string{
		"notify": "_", "notify.": "_", "notify..a": "_", "notifya": "_", "notify-room.a": "_", "other.a": "_", "notify.é.a": "_", "notify.*": "_", "notify.a b": "_",
		"notify.a": "a", "notify.A.b": "a", "notify.a.é": "a", "notify.a..b": "a", "notify.a.": "a", "notify.a.b.c.d.e.f.g.h.i": "a",
		"notify." + strings.Repeat("a", event.MaxPathBytes+1): "_",
	} {
		testkit.Equal(t, (event.Decoder{Prefix: "notify"}).FirstLevelOf(subject), want, "FirstLevelOf(%q)", subject)
	}
}

func TestIsBelow(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", "a", "a.b"} {
		testkit.Equal(t, event.IsBelow("a.b", path), true, "a.b below %q", path)
	}
	for _, path := range []string{"a.b.c", "a.bc", "b", "."} {
		testkit.Equal(t, event.IsBelow("a.b", path), false, "a.b below %q", path)
	}
}

func TestPrefixes(t *testing.T) {
	t.Parallel()
	for path, want := range map[string][]string{
		"payments":                {"payments"},
		"payments.refunds.failed": {"payments", "payments.refunds", "payments.refunds.failed"},
		"a.b.c.d.e.f.g.h": {
			"a", "a.b", "a.b.c", "a.b.c.d", "a.b.c.d.e", "a.b.c.d.e.f", "a.b.c.d.e.f.g", "a.b.c.d.e.f.g.h",
		},
	} {
		testkit.EqualSlices(t, slices.Collect(event.Prefixes(path)), want, "Prefixes(%q)", path)
	}
	for prefix := range event.Prefixes("a.b.c") {
		testkit.Equal(t, prefix, "a", "prefix before the end of the loop")
		break
	}
}

func TestCategoryOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		prefix, subject, category string
	}{
		{"notify", "notify", ""},
		{"notify", "notify.errors", "errors"},
		{"notify", "notify.Payments.REFUNDS", "payments.refunds"},
		{"notify", "notify.notify", "notify"},
		{"prod.notify", "prod.notify", ""},
		{"prod.notify", "prod.notify.a.b", "a.b"},
		{"notify", "notify." + strings.Repeat("a", 128), strings.Repeat("a", 128)},
	} {
		category, bare, err := event.Decoder{Prefix: test.prefix}.CategoryOf(test.subject)
		testkit.Check(t, category == test.category && bare == (test.category == "") && err == nil,
			"CategoryOf(%q) = %q, %t, %v, want %q", test.subject, category, bare, err, test.category)
	}
	for fault, subjects := range map[string][]string{
		"is empty":      {"notify."},
		"empty level":   {"notify..a"},
		`"🔥"`:           {"notify.🔥"},
		"may hold only": {"notify.\u212aelvin"}, // the Kelvin sign, which Unicode folds to k
		"below":         {"notifyerrors", "other.errors", ""},
	} {
		for _, subject := range subjects {
			category, bare, err := event.Decoder{Prefix: "notify"}.CategoryOf(subject)
			checkFault(t, err, event.ReasonBadCategory, fault)
			testkit.Check(t, category == "" && !bare, "CategoryOf(%q): got %q, %t, want none beside a fault", subject, category, bare)
		}
	}
}

func TestCategoryOfAllocatesNothing(t *testing.T) { // counts allocations, so not in parallel
	d := event.Decoder{Prefix: "notify"}
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := d.CategoryOf("notify.payments.refunds.failed"); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("CategoryOf allocates %v times, want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		for prefix := range event.Prefixes("payments.refunds.failed") {
			testkit.Check(t, prefix != "", "got an empty prefix, want none")
		}
	}); n != 0 {
		t.Errorf("Prefixes allocates %v times, want 0", n)
	}
}

func FuzzCategory(f *testing.F) {
	for _, subject := range []string{
		"notify", "notify.", "notify.a", "notify.A.b", "notify.a..b", "notify.🔥", "notify.\xff", "other",
		"notify.a.b.c.d.e.f.g.h.i", "notify." + strings.Repeat("x", 200), "notify.\u212a", "notify.global",
	} {
		f.Add(subject)
	}
	f.Fuzz(func(t *testing.T, subject string) {
		category, bare, err := event.Decoder{Prefix: "notify"}.CategoryOf(subject)
		if err != nil {
			checkFault(t, err, event.ReasonBadCategory, "")
			testkit.Check(t, category == "" && !bare, "CategoryOf(%q): got %q, %t, want none beside an error", subject, category, bare)
			return
		}
		if bare {
			testkit.Check(t, subject == "notify" && category == "", "CategoryOf(%q): got %q, bare, want notify alone to be bare", subject, category)
			return
		}
		if err := event.ValidatePath(category); err != nil {
			t.Errorf("CategoryOf(%q): got %q (%v), want a category", subject, category, err)
		}
		testkit.Equal(t, strings.EqualFold("notify."+category, subject), true, "%q has the levels of %q", category, subject)
		prefixes := slices.Collect(event.Prefixes(category))
		testkit.Check(t, len(prefixes) <= event.MaxTokens && prefixes[len(prefixes)-1] == category,
			"Prefixes(%q): got %q, want at most %d with the category last", category, prefixes, event.MaxTokens)
		for _, prefix := range prefixes {
			testkit.Check(t, event.ValidatePath(prefix) == nil && utf8.ValidString(prefix), "prefix of %q: got %q, want a category", category, prefix)
		}
	})
}
