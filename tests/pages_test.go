package tests

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/doctest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestPages runs the blocks of each page in order, and compares the output with the page. Package doctest describes the info string of a
// block.
//
// Pages name the usual addresses. Each page has its own servers, whose addresses replace the usual ones.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, file := range pages(t) {
		t.Run(strings.TrimPrefix(file, "../"), func(t *testing.T) {
			t.Parallel()
			blocks, err := doctest.Blocks(string(testkit.Must(os.ReadFile(file))(t)))
			testkit.Require(t, err == nil, "%s: %v", file, err)
			p := &page{t: t, file: strings.TrimPrefix(file, "../"), folder: t.TempDir()}
			for i, block := range blocks {
				output := doctest.Block{Text: doctest.Anything}
				if i+1 < len(blocks) && blocks[i+1].Language == "output" {
					output = blocks[i+1]
				}
				p.follow(block, output)
			}
		})
	}
}

func pages(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../lua/*.md"} {
		files = append(files, testkit.Must(filepath.Glob(pattern))(t)...)
	}
	return files
}

// TestNamedCommands prints the help of each command that the text of a page names, and looks for the named flags.
func TestNamedCommands(t *testing.T) {
	t.Parallel()
	asked := make(map[string]bool)
	for _, file := range pages(t) {
		page := string(testkit.Must(os.ReadFile(file))(t))
		for _, named := range regexp.MustCompile("`notifier ([a-z][^`#\n]*)`").FindAllStringSubmatch(page, -1) {
			if asked[named[1]] {
				continue
			}
			asked[named[1]] = true
			var words, flags []string
			for word := range strings.FieldsSeq(named[1]) {
				if strings.HasPrefix(word, "--") {
					flags = append(flags, word)
				} else if len(flags) == 0 {
					words = append(words, word)
				}
			}
			usage := "notifier " + words[0]
			if slices.Contains([]string{"limits", "dlq"}, words[0]) && len(words) > 1 && strings.ToLower(words[1]) == words[1] && !strings.Contains(words[1], "@") {
				usage += " " + strings.Trim(words[1], "[]")
			}
			run(t, nil, append(words, "--help")...).want(0, append(flags, "Usage:", usage)...)
		}
	}
	testkit.AtLeast(t, len(asked), 20, "commands")
}

// page is the state of one page.
type page struct {
	t      *testing.T
	file   string
	folder string   // the working folder
	reader *session // of the page's commands; nil before the first one
}

// follow checks a block by its language and option. An output belongs to the block before it.
func (p *page) follow(block, output doctest.Block) {
	p.t.Helper()
	switch {
	case block.Language == "sh" && block.NotRun != "":
		p.parse(block, "step.sh", "sh", "-n")
	case block.Language == "sh":
		p.session().enter(block, output)
	case block.Language == "go":
		p.compile(block)
		if block.NotRun == "" {
			p.session().enter(doctest.Block{Line: block.Line, Text: "./example\n"}, output)
		}
	case block.Language == "python":
		p.parse(block, "example.py", "python3", "-m", "py_compile")
	case block.Language == "javascript":
		p.parse(block, "example.mjs", "node", "--check")
	case block.Language == "json":
		testkit.Check(p.t, json.Valid([]byte(block.Text)), "%s:%d: this is not JSON:\n%s", p.file, block.Line, block.Text)
	case block.Language == "env":
		p.accept(block)
	case block.Language == "yaml", block.Language == "text", block.Language == "output":
		// The module tests/configs parses YAML. enter has compared the output. A text needs no check.
	}
}

// session starts the session with the first command, so a page without commands has no servers.
func (p *page) session() *session {
	p.t.Helper()
	if p.reader == nil {
		p.reader = startSession(p.t, p.file, p.folder)
	}
	return p.reader
}

// parse checks the syntax of a block with a program of its language.
func (p *page) parse(block doctest.Block, name, program string, arguments ...string) {
	p.t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		p.t.Logf("%s:%d: the syntax is not checked: %v", p.file, block.Line, err)
		return
	}
	testkit.NoError(p.t, os.WriteFile(filepath.Join(p.folder, name), []byte(block.Text), 0o600))
	command := exec.Command(program, append(arguments, name)...)
	command.Dir = p.folder
	if output, err := command.CombinedOutput(); err != nil {
		p.t.Errorf("%s:%d: %v\n%s", p.file, block.Line, err, output)
	}
}

// compile builds a Go program as a package of this module, with this module's versions.
func (p *page) compile(block doctest.Block) {
	p.t.Helper()
	source := filepath.Join(p.folder, "main.go")
	testkit.NoError(p.t, os.WriteFile(source, []byte(p.session().ports.Replace(block.Text)), 0o600))
	place := testkit.Must(filepath.Abs("../cmd/example"))(p.t) // exists in the overlay alone
	overlay := testkit.Must(json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(place, "main.go"): source}}))(p.t)
	file := filepath.Join(p.folder, "overlay.json")
	testkit.NoError(p.t, os.WriteFile(file, overlay, 0o600))
	output, err := exec.Command("go", "build", "-ldflags", "-s -w", "-overlay", file, "-o", filepath.Join(p.folder, "example"), place).CombinedOutput()
	testkit.Require(p.t, err == nil, "%s:%d: %v\n%s", p.file, block.Line, err, output)
}

// accept runs `notifier check` with the settings of a block, and with the console as sink if the settings have no token.
func (p *page) accept(block doctest.Block) {
	p.t.Helper()
	command := exec.Command(program, "check", "--offline")
	command.Env = settings{}.environment()
	if !strings.Contains(block.Text, "NOTIFIER_SLACK_TOKEN=") {
		command.Env = append(command.Env, "NOTIFIER_SINK=console")
	}
	for line := range strings.Lines(block.Text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			command.Env = append(command.Env, line)
		}
	}
	if output, err := command.CombinedOutput(); err != nil {
		p.t.Errorf("%s:%d: %v\n%s", p.file, block.Line, err, output)
	}
}
