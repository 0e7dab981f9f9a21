package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// The sample has a place at each bound and a place above it. It has as many boolean parameters as the product may have.
func TestCheck(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	write := func(name, content string) {
		testkit.NoError(t, os.WriteFile(filepath.Join(directory, name), []byte(content), 0o600))
	}
	write("go.mod", "module "+module+"\n\ngo 1.26\n")
	write("sample.go", testkit.Text(t, "testdata/sample.go.txt"))
	places := func() (found []string) {
		for _, line := range check(testkit.Must(load(directory))(t)) {
			found = append(found, filepath.Base(line))
		}
		return found
	}
	testkit.EqualSlices(t, places(), []string{
		"sample.go:12:6: owner has 13 fields and 5 methods, the bound is 12 fields",
		"sample.go:32:6: embedding has 21 methods, the bound is 20",
		"sample.go:32:6: embedding has 16 fields and 21 methods, the bound is 12 fields",
		"sample.go:65:12: an interface has 7 methods, the bound is 6",
		"sample.go:72:1: a function has 6 parameters besides the context, the bound is 5",
	}, "places above a bound")
	write("another.go", "package sample\n\nfunc oneMore(a bool) {}\n")
	testkit.Equal(t, len(places()), 5+11, "places with one more boolean parameter")
}
