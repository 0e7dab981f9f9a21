package sink

import "testing"

func TestClean(t *testing.T) {
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
	} {
		if got := clean(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
