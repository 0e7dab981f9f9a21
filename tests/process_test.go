package tests

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// patience bounds every wait.
const patience = 60 * time.Second

// settings are NOTIFIER_* variables, named without the prefix.
type settings map[string]string

// environment is what a process sees: the settings, and nothing else of the notifier's.
func (s settings) environment() []string {
	var variables []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "NOTIFIER_") {
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
	for i := 0; i < len(changes); i += 2 {
		changed[changes[i]] = changes[i+1]
	}
	return changed
}

// process is the program as it runs.
type process struct {
	t       testing.TB
	name    string
	command *exec.Cmd
	stdout  output
	stderr  output
	exited  chan struct{} // closed once it has ended
}

// start runs the program and kills it with the test, if it still runs then. A failed test shows its log.
func start(t testing.TB, name string, s settings, arguments ...string) *process {
	t.Helper()
	return startWithInput(t, name, s, "", arguments...)
}

func startWithInput(t testing.TB, name string, s settings, input string, arguments ...string) *process {
	t.Helper()
	command := exec.Command(program, arguments...)
	command.Env = s.environment()
	command.Stdin = strings.NewReader(input)
	return launch(t, name, command)
}

// launch starts a command that runs the program, and kills it as start does.
func launch(t testing.TB, name string, command *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, command: command, exited: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = &p.stdout, &p.stderr
	endWithParent(p.command)
	started := make(chan error)
	go func() {
		// The system ends the process with the thread that started it, so that thread must stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.command.Start()
		started <- err
		if err == nil {
			_ = p.command.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s printed:\n%s%s", name, p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

// run runs the program to its end.
func run(t testing.TB, s settings, arguments ...string) *process {
	t.Helper()
	return runWithInput(t, s, "", arguments...)
}

func runWithInput(t testing.TB, s settings, input string, arguments ...string) *process {
	t.Helper()
	p := startWithInput(t, "notifier "+strings.Join(arguments, " "), s, input, arguments...)
	p.wait()
	return p
}

func (p *process) signal(signal os.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(signal); err != nil {
		p.t.Fatalf("send %v to %s: %v", signal, p.name, err)
	}
}

// kill ends the process with SIGKILL and returns when it has gone.
func (p *process) kill() {
	_ = p.command.Process.Signal(syscall.SIGKILL)
	<-p.exited
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

// stop ends the process in good order.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		p.t.Errorf("%s ended with status %d after SIGTERM, want 0", p.name, status)
	}
}

// all is everything that the process printed so far.
func (p *process) all() string { return p.stdout.String() + p.stderr.String() }

// logLines counts the lines of the log that contain a text.
func (p *process) logLines(containing string) int {
	count := 0
	for line := range strings.Lines(p.stderr.String()) {
		if strings.Contains(line, containing) {
			count++
		}
	}
	return count
}

// wantLogLines waits until the log has n lines that contain a text, and wants no more: a line arrives a moment after it was
// written.
func (p *process) wantLogLines(n int, containing string) {
	p.t.Helper()
	testkit.Await(p.t, fmt.Sprintf("%d lines with %q from %s", n, containing, p.name), func() error {
		if got := p.logLines(containing); got < n {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
	if got := p.logLines(containing); got > n {
		p.t.Errorf("%s says %q %d times, want %d", p.name, containing, got, n)
	}
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
