package sink

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

const (
	// consoleDestination is the Destination of every event that goes to a console.
	consoleDestination = "console"
	// maxConsoleText bounds title and text on a console line, in characters.
	maxConsoleText = 1000
)

// Console prints one line for each event: time of printing, severity, category, then title and
// text folded to one line. Control characters are left out, so no event can command a terminal.
type Console struct {
	colour bool
	now    func() time.Time

	mu     sync.Mutex
	writer io.Writer // guarded by mu; gets one Write for each line
}

// NewConsole makes a sink that prints to w, with ANSI colours if colour is set.
func NewConsole(w io.Writer, colour bool) *Console {
	return &Console{colour: colour, now: time.Now, writer: w}
}

// Destination returns "console".
func (c *Console) Destination(event.Event) string { return consoleDestination }

// Check finds nothing: only a write shows whether the writer works.
func (c *Console) Check(context.Context) []Problem { return nil }

// Send prints e. A failed write is Transient, or Unknown if part of the line was written.
func (c *Console) Send(ctx context.Context, e event.Event) error {
	failure := func(class Class, err error) error {
		return &Error{Class: class, Channel: consoleDestination, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return failure(Transient, fmt.Errorf("not sent: %w", err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	written, err := io.WriteString(c.writer, c.line(e))
	switch {
	case err == nil:
		return nil
	case written == 0:
		return failure(Transient, err)
	default:
		return failure(Unknown, err)
	}
}

func (c *Console) line(e event.Event) string {
	word, _ := severity(e.Severity)
	word = fmt.Sprintf("%-8s", word)
	category, title, text := oneLine(e.Category), oneLine(e.Title), oneLine(e.Text)
	if title != "" && text != "" {
		title += ": "
	}
	text = cut(title+text, maxConsoleText)
	clock := c.now().Format(time.TimeOnly)
	if c.colour {
		const dim, cyan, reset = "\x1b[2m", "\x1b[36m", "\x1b[0m"
		clock = dim + clock + reset
		word = ansi(e.Severity) + word + reset
		category = cyan + category + reset
	}
	return strings.Join([]string{clock, word, category, text}, " ") + "\n"
}

// ansi returns the sequence that starts the colour of s: blue, yellow, red, white on red.
func ansi(s event.Severity) string {
	switch s {
	case event.SeverityCritical:
		return "\x1b[1;37;41m"
	case event.SeverityError:
		return "\x1b[31m"
	case event.SeverityWarning:
		return "\x1b[33m"
	default:
		return "\x1b[34m"
	}
}
