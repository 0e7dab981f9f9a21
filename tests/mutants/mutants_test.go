// Package mutants holds deliberate bugs, each a patch that some test has to fail with. `make mutants` plants them one by
// one; the test here sees that they can still be planted, and changes nothing.
//
// A patch begins with two lines: what is wrong with it, and the package and flags of `go test` that have to fail.
package mutants

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the module's folder, as seen from here.
const root = "../.."

// fewest is how many patches there are at least, so that they cannot vanish unseen.
const fewest = 25

var header = regexp.MustCompile(`^# bug: ([A-Z].+\.)\n# test: (\./[a-z/]+) -run '([^']+)'( -[a-z.]+(=\w+)?)*\n--- a/`)

func TestPatches(t *testing.T) {
	t.Parallel()
	patches, err := filepath.Glob("*.patch")
	if err != nil {
		t.Fatal(err)
	}
	if len(patches) < fewest {
		t.Errorf("%d patches, want %d or more", len(patches), fewest)
	}
	bugs := make(map[string]string)
	for _, name := range patches {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		parts := header.FindStringSubmatch(string(text))
		if parts == nil {
			t.Errorf("%s does not begin with its bug and its test", name)
			continue
		}
		bug, folder, run := parts[1], parts[2], parts[3]
		if other, told := bugs[bug]; told {
			t.Errorf("%s and %s tell of one bug", name, other)
		}
		bugs[bug] = name
		wantTests(t, name, filepath.Join(root, folder), run)
		wantApplies(t, name)
	}
}

// wantTests looks for a function of the tests that a patch names.
func wantTests(t *testing.T, patch, folder, run string) {
	t.Helper()
	function, _, _ := strings.Cut(run, "/")
	wanted, err := regexp.Compile(function)
	if err != nil {
		t.Errorf("%s: %v", patch, err)
		return
	}
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllSubmatch(source, -1) {
			if wanted.Match(declared[1]) {
				return
			}
		}
	}
	t.Errorf("%s: %s has no test %q", patch, folder, function)
}

// wantApplies tries a patch without changing anything.
func wantApplies(t *testing.T, patch string) {
	t.Helper()
	folder, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("git", "apply", "--check", filepath.Join("tests", "mutants", patch))
	command.Dir = folder
	command.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(folder)) // not a repository around this one
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%s does not apply any more, write it anew: %v\n%s", patch, err, output)
	}
}
