// Command terminal draws docs/page/dev.svg: what `notifier dev --storm 50` shows on a terminal. It runs the program that its argument names
// and draws the last frame: `make docs`. The picture names the usual ports where these are free.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/creack/pty"
)

// The terminal, and how long the program runs on it: long enough for a burst, drops, a resolved alert, and slots that open again.
const (
	columns  = 110
	rows     = 36
	duration = "33s"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "terminal: expected the path of the built program")
		os.Exit(2)
	}
	if err := take(os.Args[1], filepath.Join("docs", "page", "dev.svg")); err != nil {
		fmt.Fprintf(os.Stderr, "terminal: %v\n", err)
		os.Exit(1)
	}
}

func take(program, file string) error {
	printed, err := record(program)
	if err != nil {
		return err
	}
	frame, err := lastFrame(printed)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(draw(frame)), 0o644) //nolint:gosec // pictures are for all to read
}

// record is all that the program writes to a terminal. Its settings are the default ones.
func record(program string) (string, error) {
	command := exec.Command(program, "dev", "--storm", "50", "--for", duration) //nolint:gosec,noctx // the Makefile names the program, which ends by itself
	command.Args[0] = filepath.Base(program)                                    // as it is called where it is installed
	command.Env = []string{"TERM=xterm-256color"}
	terminal, err := pty.StartWithSize(command, &pty.Winsize{Rows: rows, Cols: columns})
	if err != nil {
		return "", fmt.Errorf("starting %s: %w", program, err)
	}
	var printed strings.Builder
	_, err = io.Copy(&printed, terminal)
	if errors.Is(err, syscall.EIO) { // the program has closed its side
		err = nil
	}
	return printed.String(), errors.Join(err, command.Wait(), terminal.Close())
}

// A frame of dev begins with hiding the cursor and ends with showing it. All its rows are between the two.
const (
	hideCursor, showCursor = "\x1b[?25l", "\x1b[?25h"
	nextRow                = "\r\n"
)

var errNoFrame = errors.New("the program has drawn no frame")

// lastFrame is the rows of the last frame, with their colours and without anything else that commands a terminal.
func lastFrame(printed string) ([]string, error) {
	from, to := strings.LastIndex(printed, hideCursor), strings.LastIndex(printed, showCursor)
	if from < 0 || to < from {
		return nil, errNoFrame
	}
	lines := strings.Split(printed[from:to], nextRow)
	for i, line := range lines {
		lines[i] = strings.TrimRight(commands.ReplaceAllStringFunc(line, func(command string) string {
			if strings.HasSuffix(command, "m") {
				return command
			}
			return ""
		}), " \r")
	}
	return lines[:len(lines)-1], nil // the last row is empty
}
