package tests

import (
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// terminal is a process on a terminal. Its output has whole frames, which begin with toTheTop.
type terminal struct {
	*process
	keyboard *os.File
	resized  int // bytes of output before the terminal was resized
}

// Commands of a terminal.
const (
	toTheTop, clearAll     = escape + "[H", escape + "[2J"
	hideCursor, showCursor = escape + "[?25l", escape + "[?25h"
	stopWrapping, wrap     = escape + "[?7l", escape + "[?7h"
)

var (
	colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)
	hidden  = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]| *\r`)
)

func startDevOnTerminal(t *testing.T, s settings, width, height uint16, variables ...string) *terminal {
	t.Helper()
	return startOnTerminal(t, s, width, height, []string{"dev", "--storm", "50"}, variables...)
}

func startOnTerminal(t *testing.T, s settings, width, height uint16, arguments []string, variables ...string) *terminal {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, arguments...)
	command.Env = append(append(s.environment(), "TERM=xterm"), variables...)
	exited := make(chan struct{})
	screen := &terminal{process: &process{t: t, name: arguments[0] + " on a terminal", command: command, exited: exited}}
	screen.keyboard = testkit.Must(pty.StartWithSize(command, &pty.Winsize{Cols: width, Rows: height}))(t)
	go func() {
		_, _ = io.Copy(&screen.stdout, screen.keyboard) // ends with an error when the process has gone
		_ = command.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		screen.kill()
		_ = screen.keyboard.Close()
		if t.Failed() {
			t.Logf("the terminal shows:\n%s", screen.shown())
		}
	})
	return screen
}

func (s *terminal) resize(width, height uint16) {
	s.t.Helper()
	s.resized = len(s.stdout.String())
	testkit.NoError(s.t, pty.Setsize(s.keyboard, &pty.Winsize{Cols: width, Rows: height}))
}

// shown returns the text of the last frame and what follows, "" before the first frame of the terminal's size.
func (s *terminal) shown() string {
	text := s.stdout.String()[s.resized:]
	if _, drawn, found := strings.Cut(text, clearAll); found || s.resized > 0 {
		text = drawn
	}
	text = text[max(0, strings.LastIndex(text, toTheTop)):]
	return hidden.ReplaceAllString(text, "")
}

// awaitShown waits until the terminal has shown a match of each pattern.
func (s *terminal) awaitShown(patterns ...string) {
	s.t.Helper()
	for _, pattern := range patterns {
		found := regexp.MustCompile("(?m)" + pattern)
		testkit.Eventually(s.t, "the terminal shows "+pattern, func() bool { return found.MatchString(s.shown()) })
	}
}

// wantAsBefore wants the modes of the terminal as before the process.
func (s *terminal) wantAsBefore() {
	s.t.Helper()
	text := s.stdout.String()
	if strings.LastIndex(text, showCursor) < strings.LastIndex(text, hideCursor) || strings.LastIndex(text, wrap) < strings.LastIndex(text, stopWrapping) {
		s.t.Error("the cursor is hidden or lines are cut, want the modes as before")
	}
}

// TestDevOnATerminal wants a picture in three sizes, and a table after Ctrl-C.
func TestDevOnATerminal(t *testing.T) {
	t.Parallel()
	s := startDevOnTerminal(t, settings{
		"HTTP_ADDR": "127.0.0.1:0", "GLOBAL_LIMIT": "5/2s", "CATEGORY_LIMIT": "2/2s", "SUMMARY_INTERVAL": "2s",
	}, 100, 36)
	s.awaitShown(
		`\Anotifier dev --storm 50   Ctrl-C`, `^limits: global 5/2s, each category 2/2s, a digest every 2s$`, `^  export NOTIFIER_NATS_URL=`,
		`^  curl -s http://`, `^CATEGORY +EVENTS +SENT +DROPPED`, `^LIMIT +SLOTS +USED +NEXT SLOT`,
		`^\(all\) +5/2s +5 of 5 +in `, `^\d\d:\d\d:\d\d SUMMARY +console \d+ notifications`,
		`^all +\d+ +[1-9]\d+ +\d+ +\d+ +[1-9]\d* `, // slots have opened again, and an event is a dead letter
	)
	testkit.Equal(t, colours.MatchString(s.stdout.String()), true, "there are colours")
	s.resize(50, 12)
	s.awaitShown(`\Anotifier dev --storm 50 `, `^all +\d+`, `^-{50}$`)
	testkit.Lacks(t, "small terminal", s.shown(), "export ")
	s.resize(100, 40)
	s.awaitShown(`^  export NOTIFIER_NATS_URL=`)
	testkit.Must(s.keyboard.WriteString("\x03"))(t)
	testkit.Equal(t, s.wait(), 0, "status after Ctrl-C")
	s.awaitShown(`^CATEGORY +EVENTS +SENT +DROPPED`, `^payments +\d+`, `^all +\d+`)
	s.wantAsBefore()
}

// TestDevCrashesOnATerminal ends dev with SIGQUIT. dev resets the modes of the terminal, and shows the reason.
func TestDevCrashesOnATerminal(t *testing.T) {
	t.Parallel()
	s := startDevOnTerminal(t, settings{"HTTP_ADDR": "127.0.0.1:0"}, 80, 40)
	s.awaitShown(`^payments `)
	s.signal(syscall.SIGQUIT)
	testkit.Equal(t, s.wait(), 2, "status of a crash")
	s.wantAsBefore()
	testkit.Contains(t, "terminal", s.stdout.String(), "SIGQUIT: quit")
}

// TestDevOnPlainTerminals wants no colour with NO_COLOR, and plain lines on a dumb terminal.
func TestDevOnPlainTerminals(t *testing.T) {
	t.Parallel()
	for _, variable := range []string{"NO_COLOR=1", "TERM=dumb"} {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()
			s := startDevOnTerminal(t, settings{"HTTP_ADDR": "127.0.0.1:0"}, 80, 200, variable)
			s.awaitShown(`^.{8} CRITICAL +database FIRING`)
			testkit.Must(s.keyboard.WriteString("\x03"))(t)
			testkit.Equal(t, s.wait(), 0, "status after Ctrl-C")
			s.awaitShown(`^all +\d+`)
			testkit.Equal(t, colours.MatchString(s.stdout.String()), variable == "TERM=dumb", "there are colours")
			testkit.Equal(t, strings.Contains(s.stdout.String(), toTheTop), variable == "NO_COLOR=1", "there are frames")
		})
	}
}
