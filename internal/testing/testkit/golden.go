package testkit

import (
	"flag"
	"os"
)

var update = flag.Bool("update", false, "rewrite golden files with the results of the tests")

// Golden returns the content of a golden file. With the flag -update it first writes the result of the test to the file.
func Golden(t Test, file, got string) string {
	t.Helper()
	if *update {
		NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	return Text(t, file)
}
