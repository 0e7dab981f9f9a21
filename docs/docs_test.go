package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const (
	root   = ".."
	module = "github.com/seed-4578ace9/notifier/"
)

// pages are the pages that the tests here read.
var pages = []string{
	"CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "docs/architecture.md", "docs/comparison.md", "docs/delivery.md",
	"docs/getting-started.md", "docs/glossary.md", "docs/install.md", "docs/limits.md", "docs/metrics.md", "docs/operations.md", "docs/producers.md", "docs/security.md",
	"docs/settings.md", "docs/testing.md", "lua/README.md",
}

func TestPagesAreListed(t *testing.T) {
	t.Parallel()
	var found []string
	for _, pattern := range []string{"*.md", "docs/*.md", "lua/*.md"} {
		for _, name := range testkit.Must(filepath.Glob(filepath.Join(root, pattern)))(t) {
			found = append(found, filepath.ToSlash(strings.TrimPrefix(name, root+string(filepath.Separator))))
		}
	}
	testkit.EqualSlices(t, found, pages, "pages")
}

func read(t *testing.T, name string) string {
	t.Helper()
	return testkit.Text(t, filepath.Join(root, name))
}

func exists(name string) bool {
	_, err := os.Stat(filepath.Join(root, name))
	return err == nil
}

// source has the imports and the tests of the Go files.
type source struct {
	imports map[string][]string // by folder: the imported packages of the repository, without those of tests
	tests   map[string][]string // by folder: the names of its tests
}

func readSource(t *testing.T) source {
	t.Helper()
	s := source{make(map[string][]string), make(map[string][]string)}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s.add(strings.TrimPrefix(filepath.ToSlash(filepath.Dir(name)), root+"/"), strings.HasSuffix(name, "_test.go"), file)
		return nil
	})
	testkit.NoError(t, err)
	return s
}

func (s source) add(folder string, isTest bool, file *ast.File) {
	if isTest {
		for _, declaration := range file.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok && function.Recv == nil {
				s.tests[folder] = append(s.tests[folder], function.Name.Name)
			}
		}
		return
	}
	imports := s.imports[folder]
	for _, spec := range file.Imports {
		if imported, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module); ours && !slices.Contains(imports, imported) {
			imports = append(imports, imported)
		}
	}
	slices.Sort(imports)
	s.imports[folder] = imports
}

var packageRow = regexp.MustCompile("(?m)^\\| `((?:internal|cmd)/[^`]+)` \\|")

// The table of packages lists each package once. A package stands above those that it imports.
func TestArchitectureListsThePackages(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, row := range packageRow.FindAllStringSubmatch(read(t, "docs/architecture.md"), -1) {
		listed = append(listed, row[1])
	}
	var packages []string
	for folder, imported := range readSource(t).imports {
		if !strings.HasPrefix(folder, "internal/") && !strings.HasPrefix(folder, "cmd/") {
			continue
		}
		packages = append(packages, folder)
		for _, name := range imported {
			if at := slices.Index(listed, name); at >= 0 && at < slices.Index(listed, folder) {
				t.Errorf("architecture.md lists %s above %s, which imports it", name, folder)
			}
		}
	}
	slices.Sort(packages)
	testkit.EqualSlices(t, slices.Sorted(slices.Values(listed)), packages, "packages in architecture.md")
}

var (
	namedFile = regexp.MustCompile(`\b(?:\.golangci|(?:bench|cmd|configs|docs|internal|lua|scripts|tests|tools)/[\w./-]*\w)`)
	extended  = regexp.MustCompile("`([\\w-]+\\.(?:go|lua|mod|tmpl))`")
)

// Each file and package that the page names exists. A name without a folder is a file of the package named before.
func TestArchitectureNamesWhatExists(t *testing.T) {
	t.Parallel()
	for number, line := range strings.Split(read(t, "docs/architecture.md"), "\n") {
		folder := ""
		for _, name := range namedFile.FindAllString(line, -1) {
			if name == ".golangci" {
				name = ".golangci.yml"
			}
			testkit.Check(t, exists(name), "architecture.md, line %d: %s does not exist", number+1, name)
			if folder == "" {
				folder = name
			}
		}
		for _, name := range extended.FindAllStringSubmatch(line, -1) {
			if folder == "" || !exists(path.Join(folder, name[1])) && !exists(path.Join(path.Dir(folder), name[1])) {
				t.Errorf("architecture.md, line %d: %s does not exist in %s", number+1, name[1], folder)
			}
		}
	}
}

var namedTest = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")

func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	var tests []string
	for _, names := range readSource(t).tests {
		tests = append(tests, names...)
	}
	for _, page := range pages {
		for _, name := range namedTest.FindAllStringSubmatch(read(t, page), -1) {
			if !slices.Contains(tests, name[1]) {
				t.Errorf("%s names the test %s, which does not exist", page, name[1])
			}
		}
	}
}

// TestEachTestIsRun checks the Makefile: the tests that it runs without the race detector are in packages where it runs them.
func TestEachTestIsRun(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	variable := func(name string) string {
		value := regexp.MustCompile(`(?m)^` + name + ` := (.+)$`).FindStringSubmatch(makefile)
		testkit.Require(t, value != nil, "the Makefile does not set %s", name)
		return strings.ReplaceAll(value[1], "$$", "$")
	}
	unraced, serial := regexp.MustCompile(variable("UNRACED")), regexp.MustCompile("^(?:"+variable("SERIAL")+")$")
	for folder, tests := range readSource(t).tests {
		for _, test := range tests {
			if unraced.MatchString(test) && !serial.MatchString(folder) && !slices.Contains(strings.Fields(variable("SCRIPTED")), "./"+folder) {
				t.Errorf("make test does not run %s of %s", test, folder)
			}
		}
	}
}

var (
	bugRow     = regexp.MustCompile(`(?m)^\| [^|]+ \| [^|]+ \| (.+) \|$`)
	beforeFix  = regexp.MustCompile("^`scripts/before-fix ([0-9a-f]{7}) (Test\\w+) \\./([\\w/]+)( \\d+)?`$")
	mutantRun  = regexp.MustCompile("^`make mutants MUTANTS=([a-z-]+)`$")
	mutantName = regexp.MustCompile(`(?m)^\t\tname: "([a-z-]+)",$`)
	commit     = regexp.MustCompile(`\b[0-9a-f]{7,40}\b`)
)

// TestBugsCanBeShown checks the table of bugs in testing.md: each command that shows a bug names a mutant, or a commit with a test. A
// repository without the whole history may lack the commit.
func TestBugsCanBeShown(t *testing.T) {
	t.Parallel()
	mutants, tests := make(map[string]bool), readSource(t).tests
	for _, file := range testkit.Must(filepath.Glob(filepath.Join(root, "internal/tools/mutants/table*.go")))(t) {
		for _, name := range mutantName.FindAllStringSubmatch(testkit.Text(t, file), -1) {
			mutants[name[1]] = true
		}
	}
	shallow, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--is-shallow-repository").Output()
	isWhole := err == nil && strings.TrimSpace(string(shallow)) == "false"
	before, bugs, _ := strings.Cut(read(t, "docs/testing.md"), "\n## Bugs")
	testkit.EqualSlices(t, commit.FindAllString(before, -1), nil, "commits above the table")
	for _, row := range bugRow.FindAllStringSubmatch(bugs, -1)[1:] {
		fix, mutant := beforeFix.FindStringSubmatch(row[1]), mutantRun.FindStringSubmatch(row[1])
		switch {
		case mutant != nil:
			testkit.Equal(t, mutants[mutant[1]], true, "there is a mutant %s", mutant[1])
		case fix == nil:
			t.Errorf("the row ends with %s, want a command that shows the bug", row[1])
		case !slices.Contains(tests[fix[3]], fix[2]):
			t.Errorf("%s has no test %s", fix[3], fix[2])
		case isWhole:
			err := exec.CommandContext(t.Context(), "git", "-C", root, "grep", "-q", "^func "+fix[2]+"(", fix[1], "--", fix[3]).Run()
			testkit.NoError(t, err)
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)|<([a-z]+:[^>\s]+)>`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile(`[^\w\- ]`)
)

// Each link leads to a file and to one of its headings. A link out of the repository has https or names this machine.
func TestLinks(t *testing.T) {
	t.Parallel()
	for _, page := range pages {
		for _, found := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(found[0], "://") {
				address, err := url.Parse(found[1] + found[2])
				if err != nil || address.Hostname() == "" || address.Scheme != "https" && address.Hostname() != "localhost" {
					t.Errorf("%s links to %s, which is not a full address", page, found[0])
				}
				continue
			}
			target, anchor, _ := strings.Cut(found[1], "#")
			name := page
			if target != "" {
				name = path.Join(path.Dir(page), target)
			}
			if !exists(name) {
				t.Errorf("%s links to %s, which does not exist", page, name)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, name)), anchor) {
				t.Errorf("%s links to %s, a heading that does not exist", page, found[1])
			}
		}
	}
}

func anchors(text string) (found []string) {
	for _, title := range heading.FindAllStringSubmatch(text, -1) {
		found = append(found, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(title[1]), ""), " ", "-"))
	}
	return found
}

// TestPagesNameWhatExists wants no page to install a release before there is one, and pages to start the NATS server of go.mod.
func TestPagesNameWhatExists(t *testing.T) {
	t.Parallel()
	isReleased := regexp.MustCompile(`(?m)^## \[\d`).MatchString(read(t, "CHANGELOG.md"))
	server := regexp.MustCompile(`github\.com/nats-io/nats-server/v2 (v\S+)`).FindStringSubmatch(read(t, "go.mod"))[1]
	started := 0
	for _, name := range pages {
		page := read(t, name)
		if !isReleased && regexp.MustCompile(`go install \S+@`).MatchString(page) {
			t.Errorf("%s installs a release, and CHANGELOG.md has none", name)
		}
		for _, version := range regexp.MustCompile(`nats-server/v2@(\S+)`).FindAllStringSubmatch(page, -1) {
			testkit.Equal(t, version[1], server, "NATS server that %s starts", name)
			started++
		}
	}
	testkit.AtLeast(t, started, 1, "pages that start NATS")
}
