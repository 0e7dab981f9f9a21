package testkit

import (
	"flag"
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

// Lacks wants none of the parts in a text. The first argument says what the text is.
func Lacks(t Test, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) {
			t.Errorf("%s: got %q, want no %q in it", what, text, part)
		}
	}
}

var update = flag.Bool("update", false, "rewrite golden files with the results of the tests")

// Golden returns the content of a golden file. With the flag -update it first writes the result of the test to the file.
func Golden(t Test, file, got string) string {
	t.Helper()
	if *update {
		NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	return Text(t, file)
}
