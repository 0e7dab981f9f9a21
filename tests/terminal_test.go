package tests

import (
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// terminal emulates a terminal with the commands that the program uses.
type terminal struct {
	*process
	keyboard *os.File

	mu            sync.Mutex
	rows          [][]rune
	above         []string // rows that have scrolled away
	row, column   int
	hidden, cut   bool   // the cursor is not shown; lines are not wrapped
	coloured      bool   // there was a colour
	unknown       string // a command that is not known here
	half          string // the beginning of a command
	width, height int
}

// terminalCommand matches a command, or any other character.
var terminalCommand = regexp.MustCompile(`(?s)\x1b\[([0-9;?]*)([A-Za-z])|.`)

// startDevOnTerminal runs dev with a storm on a terminal.
func startDevOnTerminal(t *testing.T, s settings, width, height uint16, variables ...string) *terminal {
	t.Helper()
	return startOnTerminal(t, s, width, height, []string{"dev", "--storm", "50"}, variables...)
}

// startOnTerminal runs a command on a terminal.
func startOnTerminal(t *testing.T, s settings, width, height uint16, arguments []string, variables ...string) *terminal {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, arguments...)
	command.Env = append(append(s.environment(), "TERM=xterm"), variables...)
	screen := &terminal{}
	screen.clear(int(width), int(height))
	screen.keyboard = testkit.Must(pty.StartWithSize(command, &pty.Winsize{Cols: width, Rows: height}))(t)
	exited := make(chan struct{})
	screen.process = &process{t: t, name: arguments[0] + " on a terminal", command: command, exited: exited}
	go func() {
		_, _ = io.Copy(screen, screen.keyboard) // ends with an error when the process has gone
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

func (s *terminal) clear(width, height int) {
	s.width, s.height, s.row, s.column = width, height, 0, 0
	s.rows = make([][]rune, height)
}

// resize changes the size of the terminal, and clears it.
func (s *terminal) resize(width, height uint16) {
	s.t.Helper()
	s.mu.Lock()
	s.clear(int(width), int(height))
	s.mu.Unlock()
	testkit.NoError(s.t, pty.Setsize(s.keyboard, &pty.Winsize{Cols: width, Rows: height}))
}

// Write takes the output of the process.
func (s *terminal) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.half + string(data)
	s.half = ""
	if last := strings.LastIndex(text, escape); last >= 0 && !regexp.MustCompile(`[A-Za-z]`).MatchString(text[last:]) {
		text, s.half = text[:last], text[last:]
	}
	for _, found := range terminalCommand.FindAllStringSubmatch(text, -1) {
		if found[2] == "" {
			s.put([]rune(found[0])[0])
		} else {
			s.obey(found[1] + found[2])
		}
	}
	return len(data), nil
}

func (s *terminal) obey(command string) {
	switch {
	case command == "H":
		s.row, s.column = 0, 0
	case command == "K":
		s.rows[s.row] = s.rows[s.row][:min(s.column, len(s.rows[s.row]))]
	case command == "J":
		s.rows[s.row] = s.rows[s.row][:min(s.column, len(s.rows[s.row]))]
		clear(s.rows[s.row+1:])
	case command == "2J":
		s.rows = make([][]rune, s.height)
	case command == "?25l", command == "?25h":
		s.hidden = command == "?25l"
	case command == "?7l", command == "?7h":
		s.cut = command == "?7l"
	case strings.HasSuffix(command, "m"):
		s.coloured = true
	default:
		s.unknown = command
	}
}

func (s *terminal) put(r rune) {
	switch {
	case r == '\r':
		s.column = 0
	case r == '\n' && s.row == s.height-1:
		s.above = append(s.above, string(s.rows[0]))
		s.rows = append(s.rows[1:], nil)
	case r == '\n':
		s.row++
	default:
		for len(s.rows[s.row]) <= s.column {
			s.rows[s.row] = append(s.rows[s.row], ' ')
		}
		s.rows[s.row][s.column] = r
		s.column++
	}
}

// shown returns the text on the terminal.
func (s *terminal) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []string
	for _, row := range s.rows {
		rows = append(rows, strings.TrimRight(string(row), " "))
	}
	return strings.Join(rows, "\n")
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hidden || s.cut || s.unknown != "" {
		s.t.Errorf("the cursor is hidden: %t, lines are cut: %t, unknown command %q", s.hidden, s.cut, s.unknown)
	}
}

// TestDevOnATerminal wants a picture that is redrawn in place in three sizes, and a table after Ctrl-C.
func TestDevOnATerminal(t *testing.T) {
	t.Parallel()
	s := startDevOnTerminal(t, settings{
		"HTTP_ADDR": "127.0.0.1:0", "GLOBAL_LIMIT": "5/2s", "CATEGORY_LIMIT": "2/2s", "SUMMARY_INTERVAL": "2s",
	}, 100, 36)
	s.awaitShown(
		`\Anotifier dev --storm 50   running \d+s   Ctrl-C`, `^limits   global 5/2s, each category 2/2s, a digest every 2s$`, `^NATS `, `^Redis `,
		`^metrics  http://`, `^events \d+  sent \d+  dropped \d+`, `^full: global, next slot in \ds$`,
		`^global +5/2s +\[#{20}\] 5 of 5, full, next slot in \ds$`, `^\d\d:\d\d:\d\d DEAD `, `^\d\d:\d\d:\d\d SUMMARY +console \d+ notifications`,
		`^events \d+  sent 1\d  `, // slots have opened again
	)
	if !s.coloured {
		t.Error("there is no colour")
	}
	s.resize(50, 12)
	s.awaitShown(`\Anotifier dev --storm 50   running \d+s`, `^full: `, `^-{50}$`)
	if strings.Contains(s.shown(), "NATS ") {
		t.Error("a small terminal has the guide")
	}
	s.resize(100, 40)
	s.awaitShown(`^NATS `)
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.above, func(row string) bool { return strings.HasPrefix(row, "SIGQUIT: quit") }) {
		t.Error("the terminal has not shown why it ended")
	}
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
			testkit.Equal(t, s.coloured, variable == "TERM=dumb", "there are colours")
			testkit.Equal(t, strings.Contains(s.shown(), "\ntotals  "), variable == "TERM=dumb", "there are lines of totals")
		})
	}
}
