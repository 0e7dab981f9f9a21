package tests

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// patience bounds every wait.
const patience = testkit.Patience

// settings are NOTIFIER_* variables, named without the prefix.
type settings map[string]string

// environment returns the variables of a process: the settings, and no other variable of the notifier or of OpenTelemetry. What a killed
// process leaves in the folder for temporary files goes with the program.
func (s settings) environment() []string {
	variables := []string{"TMPDIR=" + filepath.Dir(program)}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "NOTIFIER_") && !strings.HasPrefix(variable, "OTEL_") && !strings.HasPrefix(variable, "TMPDIR=") {
			variables = append(variables, variable)
		}
	}
	for name, value := range s {
		variables = append(variables, "NOTIFIER_"+name+"="+value)
	}
	return variables
}

// with returns the settings with changes, given as name, value, …
func (s settings) with(changes ...string) settings {
	changed := make(settings, len(s)+len(changes)/2)
	maps.Copy(changed, s)
	for change := range slices.Chunk(changes, 2) {
		changed[change[0]] = change[1]
	}
	return changed
}

// process is a running program.
type process struct {
	t       testing.TB
	name    string
	command *exec.Cmd
	stdout  output
	stderr  output
	exited  <-chan struct{} // closed once it has ended
}

// start runs the program, and kills it at the end of the test. A failed test shows the output.
func start(t testing.TB, name string, s settings, arguments ...string) *process {
	t.Helper()
	command := exec.Command(program, arguments...)
	command.Env = s.environment()
	return launch(t, name, command)
}

// startKillable runs the program with fail points. The program kills itself when it reaches a point for the n-th time.
func startKillable(t testing.TB, point failpoint.Point, n int, s settings, arguments ...string) *process {
	t.Helper()
	command := exec.Command(testkit.Must(withFailPoints())(t), arguments...)
	command.Env = append(s.environment(), fmt.Sprintf("FAILPOINT=%s:%d", point, n))
	return launch(t, "notifier until "+string(point), command)
}

func (p *process) awaitDoom() {
	p.t.Helper()
	testkit.Equal(p.t, p.wait(), -1, "status of %s, which a signal ends", p.name)
}

// launch starts a command, and kills it as start does.
func launch(t testing.TB, name string, command *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, command: command}
	command.Stdout, command.Stderr = &p.stdout, &p.stderr
	p.exited = testkit.Must(servertest.StartChild(command))(t)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s printed:\n%s%s", name, p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

func run(t testing.TB, s settings, arguments ...string) *process {
	t.Helper()
	p := start(t, "notifier "+strings.Join(arguments, " "), s, arguments...)
	p.wait()
	return p
}

// want checks how the process ended, and that it printed each of the texts.
func (p *process) want(status int, texts ...string) {
	p.t.Helper()
	testkit.Equal(p.t, p.wait(), status, "%s: status", p.name)
	testkit.Contains(p.t, "shown", p.all(), texts...)
}

func (p *process) signal(signal os.Signal) {
	p.t.Helper()
	testkit.NoError(p.t, p.command.Process.Signal(signal))
}

// kill ends the process with SIGKILL and returns when it has gone.
func (p *process) kill() {
	_ = p.command.Process.Signal(syscall.SIGKILL)
	<-p.exited
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// wait returns the exit status, or -1 for a process that a signal ended.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("wait for %s: it still runs after %v", p.name, patience)
	}
	return p.command.ProcessState.ExitCode()
}

// stop ends the process with SIGTERM, and wants status 0.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	testkit.Equal(p.t, p.wait(), 0, "status of %s after SIGTERM", p.name)
}

func (p *process) all() string { return p.stdout.String() + p.stderr.String() }

func (p *process) logLines(containing string) (lines int) {
	for line := range strings.Lines(p.stderr.String()) {
		if strings.Contains(line, containing) {
			lines++
		}
	}
	return lines
}

// wantLogLines waits until the log has n lines that contain a text, and wants no more. The test sees a line a moment after the program
// wrote it.
func (p *process) wantLogLines(n int, containing string) {
	p.t.Helper()
	testkit.Eventually(p.t, fmt.Sprintf("%d lines with %q from %s", n, containing, p.name), func() bool { return p.logLines(containing) >= n })
	testkit.AtMost(p.t, p.logLines(containing), n, "lines with %q of %s", containing, p.name)
}

// output collects what a process prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(data)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
