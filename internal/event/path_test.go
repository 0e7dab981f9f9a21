package event_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestValidatePath(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"a", "0", "_", "-", "errors", "global", "category", "default", "payments.refunds.failed",
		"a.b.c.d.e.f.g.h", "on-call_2.x", strings.Repeat("a", event.MaxPathBytes),
	} {
		if err := event.ValidatePath(path); err != nil {
			t.Errorf("ValidatePath(%q) = %v, want nil", path, err)
		}
	}
	for path, want := range map[string]string{
		"":                  "is empty",
		".":                 "empty level",
		".a":                "empty level",
		"a.":                "empty level",
		"a..b":              "empty level",
		"A":                 "upper-case",
		"a.bC":              "upper-case",
		"*":                 "may hold only",
		"a.*":               "may hold only",
		"a>":                "may hold only",
		"a b":               "may hold only",
		"a\n":               "may hold only",
		"a\x00":             "may hold only",
		"ünder":             "may hold only",
		"\xff":              "may hold only",
		"🔥":                 "may hold only",
		"a.b.c.d.e.f.g.h.i": "9 levels",
		strings.Repeat("a", event.MaxPathBytes+1): "129 bytes",
		strings.Repeat("a.", 5_000):               "10000 bytes",
	} {
		err := event.ValidatePath(path)
		if err == nil {
			t.Errorf("ValidatePath(%q) = nil, want an error with %q", path, want)
			continue
		}
		if !strings.Contains(err.Error(), want) || len(err.Error()) > 300 {
			t.Errorf("ValidatePath(%q) = %q, want a short error with %q", path, err, want)
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
		if prefix != "a" {
			t.Errorf("Prefixes went on to %q after the loop had ended", prefix)
		}
		break
	}
}

func TestCategoryOf(t *testing.T) {
	t.Parallel()
	tests := []struct {
		prefix, subject string
		category        string
		bare            bool
		fault           string // part of the detail; no fault where empty
	}{
		{prefix: "notify", subject: "notify", bare: true},
		{prefix: "notify", subject: "notify.errors", category: "errors"},
		{prefix: "notify", subject: "notify.Payments.REFUNDS", category: "payments.refunds"},
		{prefix: "notify", subject: "notify.global", category: "global"},
		{prefix: "notify", subject: "notify.notify", category: "notify"},
		{prefix: "prod.notify", subject: "prod.notify", bare: true},
		{prefix: "prod.notify", subject: "prod.notify.a.b", category: "a.b"},
		{prefix: "notify", subject: "notify.a.b.c.d.e.f.g.h", category: "a.b.c.d.e.f.g.h"},
		{prefix: "notify", subject: "notify." + strings.Repeat("a", 128), category: strings.Repeat("a", 128)},
		{prefix: "notify", subject: "notify.a.b.c.d.e.f.g.h.i", fault: "9 levels"},
		{prefix: "notify", subject: "notify." + strings.Repeat("a", 129), fault: "129 bytes"},
		{prefix: "notify", subject: "notify.", fault: "empty"},
		{prefix: "notify", subject: "notify..a", fault: "empty level"},
		{prefix: "notify", subject: "notify.a.", fault: "empty level"},
		{prefix: "notify", subject: "notify.🔥", fault: `"🔥"`},
		{prefix: "notify", subject: "notify.\u212aelvin", fault: "may hold only"}, // folds to k in Unicode
		{prefix: "notify", subject: "notify.\xff", fault: "may hold only"},
		{prefix: "notify", subject: "notify.*", fault: "may hold only"},
		{prefix: "notify", subject: "notifyerrors", fault: "below"},
		{prefix: "notify", subject: "other.errors", fault: "below"},
		{prefix: "notify", subject: "", fault: "below"},
	}
	for _, test := range tests {
		category, bare, err := event.Decoder{Prefix: test.prefix}.CategoryOf(test.subject)
		if category != test.category || bare != test.bare {
			t.Errorf("CategoryOf(%q) = %q, %t, want %q, %t", test.subject, category, bare, test.category, test.bare)
		}
		if test.fault == "" {
			if err != nil {
				t.Errorf("CategoryOf(%q): %v", test.subject, err)
			}
			continue
		}
		checkFault(t, err, event.ReasonBadCategory, test.fault)
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
			if prefix == "" {
				t.Error("empty prefix")
			}
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
			if category != "" || bare {
				t.Errorf("CategoryOf(%q) = %q, %t beside an error", subject, category, bare)
			}
			return
		}
		if bare {
			if subject != "notify" || category != "" {
				t.Errorf("CategoryOf(%q) = %q, bare", subject, category)
			}
			return
		}
		if err := event.ValidatePath(category); err != nil {
			t.Errorf("CategoryOf(%q) = %q: %v", subject, category, err)
		}
		if !strings.EqualFold("notify."+category, subject) {
			t.Errorf("CategoryOf(%q) = %q", subject, category)
		}
		prefixes := slices.Collect(event.Prefixes(category))
		if len(prefixes) > event.MaxTokens || prefixes[len(prefixes)-1] != category {
			t.Errorf("Prefixes(%q) = %q", category, prefixes)
		}
		for _, prefix := range prefixes {
			if event.ValidatePath(prefix) != nil || !utf8.ValidString(prefix) {
				t.Errorf("prefix %q of %q is not a category", prefix, category)
			}
		}
	})
}
