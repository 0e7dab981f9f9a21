package plain_test

import (
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                     "",
		"a ~\tb\n":             "a ~\tb\n",
		"a\r\nb\rc":            "a\nb\nc",
		"a\x00b\x1fc":          "abc",
		"a\x7fb":               "ab",
		"\u0085é\u009f😀":       "é😀",
		"\u202ea\u2066b\u2069": "ab",
		"a\xffb":               "a\ufffdb",
		// No width: spaces, marks of direction, joiners between letters that stand apart, byte order marks, tags, fillers.
		"pay\u200bment\u200c\u200d \u200e\u200f\u061c\u2060\u2064\ufeff\u00ad.": "payment .",
		"\u200dа\u200dа\u200d\u200d漢\u200c字\u200d":                              "аа漢字",
		"ok\U000e0041\U000e0042\U000e007f\u3164\u115f\uffa0":                    "ok",
		// Joiners that shape what stands around them.
		"می\u200cخواهم 👩\u200d🚒 ❤\ufe0f\u200d🔥 क्\u200dष": "می\u200cخواهم 👩\u200d🚒 ❤\ufe0f\u200d🔥 क्\u200dष",
	} {
		testkit.Equal(t, plain.Text(text), want, "%q", text)
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                 "",
		"plain, äöü 😀":                     "plain, äöü 😀",
		"a\r\n\tb\u2028c":                  "a b c",
		"\x1b]0;title\x07 \x9b31m\u009b2J": "]0;title \ufffd31m2J",
		"gpj.\u202eexe":                    "gpj.exe",
		"\u200b \ufeff\u200d":              "",
	} {
		testkit.Equal(t, plain.Line(text), want, "plain.Line(%q)", text)
	}
}

func TestShort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                        "",
		"card declined":           "card declined",
		" card\r\n\tdeclined\x1b": "card declined",
		"a\n\u202eb":              "a b",
		strings.Repeat("a", 1000): strings.Repeat("a", 79) + "…",

		strings.Repeat("a", 80):                strings.Repeat("a", 80),
		strings.Repeat("a", 80) + " \n":        strings.Repeat("a", 80),
		strings.Repeat("a", 79) + "  b":        strings.Repeat("a", 79) + "…",
		strings.Repeat("a", 81) + "\u200b\xff": strings.Repeat("a", 79) + "…",
		strings.Repeat("ü", 80):                strings.Repeat("ü", 80),
		strings.Repeat("ü", 81):                strings.Repeat("ü", 79) + "…",
	} {
		testkit.Equal(t, plain.Short(text, 80), want, "plain.Short(%q, 80)", text)
	}
}

func TestTitle(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", plain.TitleLength)
	for title, want := range map[string]string{
		"plain":               "plain",
		"a\tb\r\nc\x00":       "a b c",
		"\n":                  "",
		long:                  long,
		long + "x":            strings.Repeat("ü", plain.TitleLength-1) + "…",
		long + "y and beyond": strings.Repeat("ü", plain.TitleLength-1) + "…",
	} {
		testkit.Equal(t, plain.Title(title), want, "%q", title)
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	names := []string{"payments", "payments.refunds", "security", "db", "h"}
	for text, want := range map[string]string{
		"paymets": "payments", "payment.refund": "payments.refunds", "securty": "security", "d": "db",
		"payments": "", "deploys": "", "": "", "x": "",
	} {
		testkit.Equal(t, plain.Nearest(text, names), want, "nearest to %q", text)
	}
}
