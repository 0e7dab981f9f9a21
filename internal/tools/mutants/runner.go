package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The verdicts about a mutant. Every verdict but caught is a failure.
const (
	caught         = "caught"
	survived       = "SURVIVED"
	doesNotCompile = "does not compile"
	breaksScript   = "breaks the script" // any test finds a script that does not run
	notPlanted     = "cannot be planted"
	notRun         = "cannot be run"
	namesNoTest    = "names no test"
	testNotBuilt   = "test does not compile"
	testFails      = "test fails without it"
)

// testTimeout is twice as long as a test waits for a condition ([testkit.Patience]), so that the test reports what it waited for.
const testTimeout = 4 * time.Minute

// brokenScript is how the server reports a script that does not compile, or that ends with an error.
var brokenScript = regexp.MustCompile(`ERR (user_script|user_function|Error (compiling|running) script)`)

// runner tries mutants, one after the other.
type runner struct {
	root string // the module's folder
	work string // a folder for what is built, and for what the tests leave behind

	programs map[built]string // the test programs without a bug
	sound    map[string]bool  // the tests that pass without a bug, by build tags, package and flags
}

// built is how a test program is built.
type built struct{ folder, tags string }

func newRunner(root string) (*runner, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("finding the module's folder: %w", err)
	}
	work, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the mutants: %w", err)
	}
	r := &runner{root: root, work: work, programs: make(map[built]string), sound: make(map[string]bool)}
	if err := os.Mkdir(r.temporary(), 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("making a folder for the tests: %w", err), r.close())
	}
	return r, nil
}

// temporary is where the tests put their temporary files.
func (r *runner) temporary() string { return filepath.Join(r.work, "temporary") }

// close removes the work folder. A killed process may still write there for a moment.
func (r *runner) close() error {
	var err error
	for range 50 {
		if err = os.RemoveAll(r.work); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("removing the folder of the mutants: %w", err)
}

// try returns the verdict about a mutant, and the output behind the verdict.
func (r *runner) try(ctx context.Context, m mutant) (verdict string, output []byte) {
	test := strings.Fields(m.test)
	if len(test) == 0 {
		return namesNoTest, nil
	}
	if verdict, output := r.trySound(ctx, test, m.tags); verdict != "" {
		return verdict, output
	}
	overlay, err := r.plant(m)
	if err != nil {
		return notPlanted, []byte(err.Error())
	}
	// A test may build the program by itself. A failure of that build must not count as a caught bug.
	if output, err := r.compile(ctx, m, overlay); err != nil {
		return doesNotCompile, output
	}
	program := filepath.Join(r.work, "mutant.test")
	if output, err := r.build(ctx, program, test[0], m.tags, overlay); err != nil {
		return doesNotCompile, output
	}
	output, err = r.runTest(ctx, program, test, overlay)
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return survived, output
	case !exited || exit.ExitCode() < 0: // the test did not start, or a signal ended it
		return notRun, append(output, err.Error()...)
	case brokenScript.Match(output):
		return breaksScript, output
	}
	if again, err := r.runTest(ctx, r.programs[built{test[0], m.tags}], test, ""); err != nil { // the machine or the test may be at fault, not the bug
		return testFails, again
	}
	return caught, output
}

// trySound runs a test without a bug, once for all mutants of the test. The verdict is empty if the test passes.
func (r *runner) trySound(ctx context.Context, test []string, tags string) (verdict string, output []byte) {
	of, name := built{test[0], tags}, tags+" "+strings.Join(test, " ")
	if r.sound[name] {
		return "", nil
	}
	if r.programs[of] == "" {
		program := filepath.Join(r.work, "sound-"+strconv.Itoa(len(r.programs))+".test")
		if output, err := r.build(ctx, program, of.folder, of.tags, ""); err != nil {
			return testNotBuilt, output
		}
		r.programs[of] = program
	}
	output, err := r.runTest(ctx, r.programs[of], test, "")
	switch {
	case err != nil:
		return testFails, output
	case bytes.Contains(output, []byte("no tests to run")):
		return namesNoTest, output
	}
	r.sound[name] = true
	return "", nil
}

// plant writes changed copies of the files into the work folder, and an overlay that replaces the files with the copies.
func (r *runner) plant(m mutant) (overlay string, err error) {
	changed := make(map[string]string)
	for _, e := range m.edits() {
		path := filepath.Join(r.root, e.file)
		text, known := changed[path]
		if !known {
			read, err := os.ReadFile(path) //nolint:gosec // the table names the file
			if err != nil {
				return "", err
			}
			text = string(read)
		}
		if changed[path], err = e.apply(text); err != nil {
			return "", err
		}
	}
	var content struct{ Replace map[string]string }
	content.Replace = make(map[string]string)
	for path, text := range changed {
		replacement := filepath.Join(r.work, "changed-"+strconv.Itoa(len(content.Replace))+filepath.Ext(path))
		if err := os.WriteFile(replacement, []byte(text), 0o600); err != nil {
			return "", err
		}
		content.Replace[path] = replacement
	}
	encoded, err := json.Marshal(content)
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(r.work, "overlay.json")
	return overlay, os.WriteFile(overlay, encoded, 0o600)
}

// apply makes the change in the text of the file.
func (e edit) apply(text string) (string, error) {
	if n := strings.Count(text, e.old); n != 1 || e.old == "" {
		return "", fmt.Errorf("%s has %d times, and should have once: %q", e.file, n, e.old)
	}
	return strings.Replace(text, e.old, e.new, 1), nil
}

// compile compiles the packages with the changed files.
func (r *runner) compile(ctx context.Context, m mutant, overlay string) ([]byte, error) {
	arguments := []string{"build", "-o", os.DevNull}
	for _, e := range m.edits() {
		if filepath.Ext(e.file) == ".go" {
			arguments = append(arguments, "./"+filepath.Dir(e.file))
		}
	}
	if len(arguments) == 3 {
		return nil, nil
	}
	return r.command(ctx, r.root, overlay, "go", arguments...)
}

// build builds the test program of a package.
func (r *runner) build(ctx context.Context, program, folder, tags, overlay string) ([]byte, error) {
	return r.command(ctx, r.root, overlay, "go", "test", "-c", "-vet=off", "-ldflags=-w", "-tags", tags, "-o", program, folder)
}

// runTest runs a test program as `go test` does.
func (r *runner) runTest(ctx context.Context, program string, test []string, overlay string) ([]byte, error) {
	arguments := []string{"-test.timeout=" + testTimeout.String()}
	for _, flag := range test[1:] {
		if flag == "-run" {
			flag = "-test.run"
		}
		arguments = append(arguments, flag)
	}
	return r.command(ctx, filepath.Join(r.root, test[0]), overlay, program, arguments...)
}

// command runs a program to its end, and ends with it whatever it has started.
func (r *runner) command(ctx context.Context, folder, overlay, program string, arguments ...string) ([]byte, error) {
	// With a pipe, the command would wait for each child that outlives the program and holds the pipe open.
	output, err := os.Create(filepath.Join(r.work, "output"))
	if err != nil {
		return nil, fmt.Errorf("making a file for the output: %w", err)
	}
	defer func() { _ = output.Close() }()
	command := exec.CommandContext(ctx, program, arguments...) //nolint:gosec // the go command, and what it has built
	command.Dir, command.Stdout, command.Stderr = folder, output, output
	command.Env = append(command.Environ(), "TMPDIR="+r.temporary())
	if overlay != "" {
		command.Env = append(command.Env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" '-overlay="+overlay+"'"))
	}
	// In a group of its own, the program can be ended with its children.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	err = command.Run()
	if command.Process != nil {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // fails where no child is left
	}
	text, reading := os.ReadFile(output.Name())
	if reading != nil {
		return nil, fmt.Errorf("reading the output: %w", reading)
	}
	return text, err
}
