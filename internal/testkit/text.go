package testkit

import "os"

// Text returns the content of a file.
func Text(t Test, file string) string {
	t.Helper()
	return string(Must(os.ReadFile(file))(t))
}
