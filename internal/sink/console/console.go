// Package console prints events and digests to a terminal. All methods may be called at once: each line is one Write.
package console

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

const (
	// destination is the Destination of every event.
	destination = "console"
	// maxText bounds title and text on a line, and also fields and link, in characters.
	maxText = 1000
)

var (
	_ sink.Sink    = (*Console)(nil)
	_ sink.Digests = (*Console)(nil)
	_ sink.Finder  = (*Console)(nil)
)

// Console prints one line for each event: time of printing, severity, category, status, title and text, fields in parentheses,
// link. It removes control characters, so no event can command a terminal.
type Console struct {
	o   Options
	now func() time.Time
	mu  sync.Mutex // guards o.Writer
}

// Options are the settings of a console.
type Options struct {
	Writer io.Writer // gets one Write for each line
	Colour bool      // print ANSI colours
}

// New makes a sink that prints.
func New(o Options) *Console { return &Console{o: o, now: time.Now} }

// Destination returns "console".
func (c *Console) Destination(sink.Delivery) string { return destination }

// Destinations returns "console".
func (c *Console) Destinations() []string { return []string{destination} }

// Find and FindSummary find nothing: printed lines cannot be read back.
func (c *Console) Find(context.Context, sink.Doubt) (sink.Finding, error) { return unsearchable, nil }

// FindSummary is Find for digests.
func (c *Console) FindSummary(context.Context, string, string, time.Time) (sink.Finding, error) {
	return unsearchable, nil
}

var unsearchable = sink.Finding{Reason: "printed lines cannot be read back"}

// Updatable returns false: a printed line cannot change.
func (c *Console) Updatable(string) bool { return false }

// Update does nothing.
func (c *Console) Update(context.Context, sink.Delivery, string) error { return nil }

// Send prints d. A failed write is Transient, or Unknown if part of the line was written.
func (c *Console) Send(ctx context.Context, d sink.Delivery) (receipt string, err error) {
	now := c.now()
	if err := c.print(ctx, c.line(render.NewView(d, sink.OpenedBy(d)), now)); err != nil {
		return "", err
	}
	return sink.NewReceipt(d.Event, destination, "", "", d.Stored), nil
}

// SendSummary prints d on one line.
func (c *Console) SendSummary(ctx context.Context, d summary.Digest) error {
	return c.print(ctx, c.columns(c.now(), "SUMMARY", "\x1b[35m", d.Channel, render.DigestLine(d)))
}

func (c *Console) print(ctx context.Context, line string) error {
	if _, failure := sink.Begin(ctx, destination); failure != nil {
		return failure
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	written, err := io.WriteString(c.o.Writer, line)
	if err == nil {
		return nil
	}
	failure := &sink.Error{Class: sink.Transient, Channel: destination, Err: err}
	if written > 0 {
		failure.Class = sink.Unknown
	}
	return failure
}

// ansi holds the start of each severity's colour.
var ansi = map[event.Severity]string{
	event.SeverityCritical: "\x1b[1;37;41m", // white on red
	event.SeverityError:    "\x1b[31m",
	event.SeverityWarning:  "\x1b[33m",
	event.SeverityInfo:     "\x1b[34m",
}

func (c *Console) line(v render.View, now time.Time) string {
	severity := cmp.Or(v.Event.Severity, event.SeverityInfo)
	title, text := plain.Line(v.Event.Title), plain.Line(v.Event.Text)
	if title != "" && text != "" {
		title += ": "
	}
	text = plain.Cut(title+text, maxText)
	if status := statusOf(v); status != "" {
		text = status + " " + text
	}
	if details := detailsOf(v.Event); details != "" {
		text += " " + c.paint("\x1b[2m", details)
	}
	return c.columns(now, strings.ToUpper(string(severity)), ansi[severity], v.Event.Category, text)
}

// statusOf returns the status in capitals, and whether the key is flapping. For a resolved event it adds the duration if that is
// known.
func statusOf(v render.View) string {
	status := strings.ToUpper(string(v.Event.Status))
	if d := v.Duration(); d > 0 {
		status += " after " + d.Round(time.Second).String()
	}
	if v.Seen.Flapping {
		status += ", flapping:"
	}
	return status
}

// detailsOf returns fields and link on one line.
func detailsOf(e event.Event) string {
	var details []string
	for _, field := range e.Fields {
		details = append(details, plain.Line(field.Name)+": "+plain.Line(field.Value))
	}
	text := strings.Join(details, ", ")
	if text != "" {
		text = "(" + text + ")"
	}
	return plain.Cut(strings.TrimSpace(text+" "+plain.Line(e.Link)), maxText)
}

// columns returns a line. The caller has cleaned text, the last column.
func (c *Console) columns(now time.Time, word, colour, category, text string) string {
	word = fmt.Sprintf("%-8s", word)
	category = plain.Line(category)
	clock := now.Format(time.TimeOnly)
	columns := []string{c.paint("\x1b[2m", clock), c.paint(colour, word), c.paint("\x1b[36m", category), text}
	return strings.Join(columns, " ") + "\n"
}

// paint colours a text if the console has colours.
func (c *Console) paint(colour, text string) string {
	if !c.o.Colour {
		return text
	}
	return colour + text + "\x1b[0m"
}
