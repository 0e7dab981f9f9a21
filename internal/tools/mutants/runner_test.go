package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// sample is a module with each kind of file that a bug can be planted in.
var sample = map[string]string{
	"go.mod":  "module sample\n\ngo 1.26\n",
	"half.go": "package sample\n\nimport _ \"embed\"\n\n//go:embed greeting.txt\nvar greeting string\n\nfunc half(n int) int { return n / 2 }\n",

	"greeting.txt":    "hello\n",
	"tagged_test.go":  "//go:build tagged\n\npackage sample\n\nimport \"testing\"\n\nfunc TestTagged(t *testing.T) { TestHalf(t) }\n",
	"program/main.go": "package main\n\nfunc main() { print(2 + 2) }\n",

	"half_test.go": `package sample

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestHalf(t *testing.T) {
	if half(4) != 2 {
		t.Fatal("half of 4 is not 2")
	}
}

func TestGreeting(t *testing.T) {
	if greeting != "hello\n" {
		t.Fatal(greeting)
	}
}

func TestProgram(t *testing.T) {
	if output, err := exec.Command("go", "run", "./program").CombinedOutput(); err != nil || string(output) != "4" {
		t.Fatalf("%s, %v", output, err)
	}
}

func TestBroken(t *testing.T) { t.Fatal("fails without a bug") }

func TestPassesOnce(t *testing.T) {
	if err := os.Mkdir(filepath.Join(os.TempDir(), "passed"), 0o700); err != nil {
		t.Fatal(err)
	}
}
`,
}

func TestRunner(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, text := range sample {
		path := filepath.Join(folder, name)
		testkit.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)))
	}
	r := testkit.Must(newRunner(folder))(t)
	mutants := []mutant{
		{name: caught, file: "half.go", old: "n / 2", new: "n / 3", test: ". -run TestHalf"},
		{name: caught, file: "greeting.txt", old: "hello", new: "bye", test: ". -run TestGreeting"},
		{name: caught, file: "program/main.go", old: "2 + 2", new: "2 + 3", test: ". -run TestProgram"},
		{name: caught, file: "half.go", old: "n / 2", new: "n / 3", test: ". -run TestTagged", tags: "tagged"},
		{name: survived, file: "half.go", old: "n / 2", new: "n >> 1", test: ". -run TestHalf"},
		{name: doesNotCompile, file: "program/main.go", old: "2 + 2", new: "x", test: ". -run TestProgram"},
		{name: notPlanted, file: "half.go", old: "n / 4", new: "n / 5", test: ". -run TestHalf"},
		{name: notPlanted, file: "half.go", old: "int", new: "int64", test: ". -run TestHalf"},
		{name: notPlanted, file: "none.go", old: "n", new: "m", test: ". -run TestHalf"},
		{name: namesNoTest, file: "half.go", old: "n / 2", new: "n / 3", test: ". -run TestThird"},
		{name: namesNoTest, file: "half.go", old: "n / 2", new: "n / 3"},
		{name: testFails, file: "half.go", old: "n / 2", new: "n / 3", test: ". -run TestBroken"},
		{name: testFails, file: "half.go", old: "n / 2", new: "n / 3", test: ". -run TestPassesOnce"},
		{name: testNotBuilt, file: "half.go", old: "n / 2", new: "n / 3", test: "./none -run TestHalf"},
	}
	var report, progress strings.Builder
	testkit.Fails(t, "a surviving mutant", r.tryAll(t.Context(), mutants, &report, &progress), errNotCaught)
	var verdicts, wanted []string
	for line := range strings.Lines(progress.String()) {
		if !strings.HasPrefix(line, "    ") { // the output behind a verdict
			verdicts = append(verdicts, strings.TrimSpace(line))
		}
	}
	for _, m := range mutants {
		wanted = append(wanted, m.name+": "+m.name)
	}
	testkit.EqualSlices(t, verdicts, wanted, "verdicts of the progress\n%s", progress.String())
	testkit.Check(t, strings.HasSuffix(report.String(), "\n4 of 14 caught\n"), "got the report %s, want 4 of 14 caught", report.String())
	testkit.NoError(t, r.tryAll(t.Context(), mutants[:1], &report, &progress))

	for name, text := range sample {
		testkit.Equal(t, testkit.Text(t, filepath.Join(folder, name)), text, "content of %s", name)
	}
	testkit.NoError(t, r.close())
	_, err := os.Stat(r.work)
	testkit.Fails(t, "the folder after close", err, os.ErrNotExist)
}

func TestChoose(t *testing.T) {
	t.Parallel()
	mutants := []mutant{{name: "a"}, {name: "b"}, {name: "c"}}
	for _, test := range []struct {
		names string
		want  string // "" is an error
	}{{"", "a b c"}, {"c a", "c a"}, {"d", ""}, {"a d", ""}} {
		chosen, err := choose(mutants, strings.Fields(test.names))
		var names []string
		for _, m := range chosen {
			names = append(names, m.name)
		}
		if got := strings.Join(names, " "); got != test.want || (err != nil) != (test.want == "") {
			t.Errorf("choosing %q: got %q and %v, want %q", test.names, got, err, test.want)
		}
	}
}
