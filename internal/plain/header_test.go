package plain

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestHeader(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "",
		"plain text, äöü":                   "plain text, äöü",
		"a\r\nNats-Rollup: all\r\n\r\nb":    "a Nats-Rollup: all b",
		"\x00a\tb\x7f\n":                    "a b",
		"\n\n\n":                            "",
		"many   blanks are the text's own ": "many   blanks are the text's own ",
	} {
		testkit.Equal(t, Header(text), want, "Header(%q)", text)
	}
}
