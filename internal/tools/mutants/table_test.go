package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// root is the module's folder, as seen from here.
const root = "../../.."

var (
	nameForm = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	bugForm  = regexp.MustCompile(`^[A-Z].+\.$`)
	testForm = regexp.MustCompile(`^(\./[a-z/]+) -run ([^ /]+)(/[^ ]+)?( -[a-z.]+(=\w+)?)*$`)
	declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
)

// TestTable checks that each bug can be planted and that its test exists. `make mutants` runs the tests.
func TestTable(t *testing.T) {
	t.Parallel()
	names, bugs := make(map[string]bool), make(map[string]bool)
	tests := make(map[string][]string) // by package
	for _, m := range table() {
		testkit.Check(t, nameForm.MatchString(m.name) && !names[m.name], "the name %q has the wrong form or is used twice", m.name)
		testkit.Check(t, bugForm.MatchString(m.bug) && !bugs[m.bug], "%s: what is wrong is no sentence or is used twice: %q", m.name, m.bug)
		names[m.name], bugs[m.bug] = true, true
		wantPlanted(t, m)
		wantTest(t, m, tests)
	}
	testkit.Check(t, len(names) != 0, "the table is empty")
}

// wantPlanted applies the changes of a mutant in memory.
func wantPlanted(t *testing.T, m mutant) {
	t.Helper()
	texts := make(map[string]string)
	for _, e := range m.edits() {
		if _, known := texts[e.file]; !known {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				t.Errorf("%s: %v", m.name, err)
				continue
			}
			texts[e.file] = string(text)
		}
		changed, err := e.apply(texts[e.file])
		testkit.Check(t, err == nil, "%s: %v", m.name, err)
		testkit.Check(t, e.old != e.new, "%s: changes nothing in %s", m.name, e.file)
		texts[e.file] = changed
	}
}

// wantTest looks for the test that a mutant names.
func wantTest(t *testing.T, m mutant, tests map[string][]string) {
	t.Helper()
	parts := testForm.FindStringSubmatch(m.test)
	if parts == nil {
		t.Errorf("%s: %q is no package with flags of go test", m.name, m.test)
		return
	}
	folder, run := parts[1], parts[2]
	wanted, err := regexp.Compile(run)
	if err != nil {
		t.Errorf("%s: %v", m.name, err)
		return
	}
	if _, known := tests[folder]; !known {
		tests[folder] = testsOf(t, filepath.Join(root, folder))
	}
	testkit.Check(t, slices.ContainsFunc(tests[folder], wanted.MatchString), "%s: %s has no test %q", m.name, folder, run)
}

func testsOf(t *testing.T, folder string) []string {
	t.Helper()
	var names []string
	for _, file := range testkit.Must(filepath.Glob(filepath.Join(folder, "*_test.go")))(t) {
		for _, function := range declared.FindAllStringSubmatch(testkit.Text(t, file), -1) {
			names = append(names, function[1])
		}
	}
	return names
}
