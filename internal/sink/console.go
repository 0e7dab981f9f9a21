package sink

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

const (
	// consoleDestination is the Destination of every event that goes to a console.
	consoleDestination = "console"
	// maxConsoleText bounds title and text on a console line, and fields and link behind them, in characters.
	maxConsoleText = 1000
)

// Console prints one line for each event: time of printing, severity, category, then status, title and text folded to one line, fields
// in parentheses, link. Control characters are left out, so no event can command a terminal.
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
func (c *Console) Destination(Delivery) string { return consoleDestination }

// Destinations returns "console".
func (c *Console) Destinations() []string { return []string{consoleDestination} }

// SummaryDestination returns "console".
func (c *Console) SummaryDestination(string) string { return consoleDestination }

// Mention finds nobody: a terminal calls no one.
func (c *Console) Mention(event.Event) string { return "" }

// Check finds nothing: only a write shows whether the writer works.
func (c *Console) Check(context.Context) []Problem { return nil }

// Updatable returns none: what is printed stays.
func (c *Console) Updatable(Delivery) []string { return nil }

// Update does nothing.
func (c *Console) Update(context.Context, Delivery, string) error { return nil }

// Prepare returns d as it is: a line shows when it was printed.
func (c *Console) Prepare(d Delivery) Delivery { return d }

// Send prints d. A failed write is Transient, or Unknown if part of the line was written.
func (c *Console) Send(ctx context.Context, d Delivery) (receipt string, err error) {
	now := c.now()
	if failure := c.print(ctx, c.line(newView(d, openedBy(d), now), now)); failure != nil {
		return "", failure
	}
	return newReceipt(d.Event, consoleDestination, apiAnswer{}, now), nil
}

// SendSummary prints d on one line, as Send does an event.
func (c *Console) SendSummary(ctx context.Context, d summary.Digest) error {
	return asError(c.print(ctx, c.columns(c.now(), "SUMMARY", "\x1b[35m", d.Channel, plain.Line(newSummaryContent(d).Line))))
}

func (c *Console) print(ctx context.Context, line string) *Error {
	if failure := interrupted(ctx, consoleDestination); failure != nil {
		return failure
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	written, err := io.WriteString(c.writer, line)
	if err == nil {
		return nil
	}
	failure := &Error{Class: Transient, Channel: consoleDestination, Err: err}
	if written > 0 {
		failure.Class = Unknown
	}
	return failure
}

func (c *Console) line(v view, now time.Time) string {
	look := lookOf(v.Event.Severity)
	title, text := plain.Line(v.Event.Title), plain.Line(v.Event.Text)
	if title != "" && text != "" {
		title += ": "
	}
	text = cut(title+text, maxConsoleText)
	if status := consoleStatus(v); status != "" {
		text = status + " " + text
	}
	if details := consoleDetails(v.Event); details != "" {
		text += " " + c.paint("\x1b[2m", details)
	}
	return c.columns(now, look.word, look.ansi, v.Event.Category, text)
}

// consoleStatus returns the status in capitals, with the duration of what is resolved where it is known.
func consoleStatus(v view) string {
	status := strings.ToUpper(string(v.Event.Status))
	if v.Resolved == nil {
		return status
	}
	return status + " after " + v.duration().Round(time.Second).String()
}

// consoleDetails returns fields and link on one line.
func consoleDetails(e event.Event) string {
	var details []string
	for _, field := range e.Fields {
		details = append(details, plain.Line(field.Name)+": "+plain.Line(field.Value))
	}
	text := strings.Join(details, ", ")
	if text != "" {
		text = "(" + text + ")"
	}
	return cut(strings.TrimSpace(text+" "+plain.Line(e.Link)), maxConsoleText)
}

// columns returns a line in which the last of the columns is clean already.
func (c *Console) columns(now time.Time, word, colour, category, text string) string {
	word = fmt.Sprintf("%-8s", word)
	category = plain.Line(category)
	clock := now.Format(time.TimeOnly)
	columns := []string{c.paint("\x1b[2m", clock), c.paint(colour, word), c.paint("\x1b[36m", category), text}
	return strings.Join(columns, " ") + "\n"
}

// paint puts a text into a colour, if there are colours.
func (c *Console) paint(colour, text string) string {
	if !c.colour {
		return text
	}
	return colour + text + "\x1b[0m"
}
