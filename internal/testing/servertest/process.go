package servertest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// startTimeout is far more than a start takes (some ten milliseconds), for machines that are busy.
	startTimeout = 30 * time.Second

	// startTries bounds the attempts at a port that a stranger holds for a moment.
	startTries = 20
)

var errNotReady = errors.New("it did not say that it is ready")

// process is one running child.
type process struct {
	command *exec.Cmd
	output  *output
	exited  <-chan struct{} // closed once the child has been waited for
}

// StartChild starts a command as a child process. Where the system supports it, the child ends with this process at the latest. The channel
// closes once the child has ended and Wait has returned.
func StartChild(command *exec.Cmd) (exited <-chan struct{}, err error) {
	endWithParent(command)
	started, ended := make(chan error), make(chan struct{})
	go func() {
		// The system ends the child with the thread that started it, so that thread must stay until the child has gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			_ = command.Wait()
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	return ended, nil
}

// start runs the command and returns once its output contains the word.
func start(command *exec.Cmd, ready string) (*process, error) {
	p := &process{command: command, output: &output{ready: []byte(ready), found: make(chan struct{})}}
	command.Stdout, command.Stderr = p.output, p.output
	// A child of the child that holds the pipe must not keep us waiting.
	command.WaitDelay = time.Second
	var err error
	if p.exited, err = StartChild(command); err != nil {
		return nil, err
	}
	select {
	case <-p.output.found:
		return p, nil
	case <-p.exited:
	case <-time.After(startTimeout):
		p.kill()
	}
	return nil, fmt.Errorf("start %s: %w:\n%s", command.Path, errNotReady, p.output)
}

// startOnPort starts the command that build makes, again and again while it cannot have its port.
func startOnPort(t testing.TB, build func() *exec.Cmd, ready string) *process {
	t.Helper()
	var err error
	for range startTries {
		var p *process
		if p, err = start(build(), ready); err == nil {
			return p
		}
		if !portTaken(err) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal(err)
	return nil
}

func portTaken(err error) bool {
	return errors.Is(err, errNotReady) && bytes.Contains(bytes.ToLower([]byte(err.Error())), []byte("address already in use"))
}

// signal fails for a child that has gone.
func (p *process) signal(signal os.Signal) error {
	if err := p.command.Process.Signal(signal); err != nil {
		return fmt.Errorf("send %v to %s (process %d): %w", signal, p.command.Path, p.command.Process.Pid, err)
	}
	return nil
}

// pause returns when the child stands still.
func (p *process) pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	waitStopped(p.command.Process.Pid)
	return nil
}

func (p *process) resume() error { return p.signal(syscall.SIGCONT) }

// kill ends the child, paused or not, and returns when it has gone. It may be called again.
func (p *process) kill() {
	_ = p.command.Process.Signal(syscall.SIGKILL)
	<-p.exited
}

// output keeps what a child prints and notices a word in it.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	ready []byte
	found chan struct{}
	seen  bool
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.seen {
		// Write stores the output before the word, since it explains a failed start. Storing all output of a long run would fill the
		// memory.
		o.text.Write(data)
		if bytes.Contains(o.text.Bytes(), o.ready) {
			o.seen = true
			close(o.found)
		}
	}
	return len(data), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
