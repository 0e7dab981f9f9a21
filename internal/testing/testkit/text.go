package testkit

import (
	"os"
	"strings"
)

// Text returns the content of a file.
func Text(t Test, file string) string {
	t.Helper()
	return string(Must(os.ReadFile(file))(t))
}

// Contains looks for each part in a text. The first argument says what the text is.
func Contains(t Test, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: got %q, want %q in it", what, text, part)
		}
	}
}
