package render

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// Message is a message as slack-go takes it.
type Message struct {
	Text        string
	Blocks      []slack.Block
	Attachments []slack.Attachment
}

// Event renders an event. The message can always be sent: if the template fails, the default template replaces it and the error
// reports why. A nil template is the default.
func (t *Template) Event(v View) (Message, error) {
	l, err := t.render(v)
	return l.message(), err
}

// Digest renders a digest.
func Digest(d summary.Digest) Message { return renderSummary(d).message() }

// DigestLine returns a digest on one line of plain text.
func DigestLine(d summary.Digest) string { return plain.Line(newSummaryContent(d).Line) }

// render is a pure function: equal views give equal layouts.
func (t *Template) render(v View) (layout, error) {
	c := newContent(v)
	if t == nil {
		return defaultLayout(c), nil
	}
	l, err := t.execute(c, c.Mention)
	if err == nil {
		return l, nil
	}
	return defaultLayout(c), fmt.Errorf("render event %s by the template: %w", c.ID, err)
}

// defaultLayout is what the default template prints. The template would take 18 times as long, 210 µs more for each message
// (BenchmarkRender), which is twice what the rest of a post costs. A test compares both.
func defaultLayout(c content) layout {
	headline := "[" + c.Label + "] " + c.Title
	var details []block
	if fits(plain.Text(headline), headerLimit) {
		details = sectionBlocks(plain.Text(c.Text), 2)
	} else {
		details = append([]block{sectionOf(c.Title)}, sectionBlocks(plain.Text(c.Text), 1)...)
	}
	details = append(details, fields(c.Fields)...)
	details = append(details, sectionOf(links(c.Link, c.Links)), contextOf(
		seen(c.Seen),
		labelled("category", c.Category),
		labelled("source", c.Source),
		dateAndTime(c.Time),
		labelled("after", durationText(c.Duration)),
		labelled("id", c.ID),
		usageText(c.Usage),
	))
	l := layout{
		Text:   escape(cutTo(4000, headline)),
		Blocks: []block{sectionOf(c.Mention), headerOf(headline)},
		Attachments: []attachment{{
			Color:    c.Colour,
			Fallback: escape(cutTo(1000, headline+"\n"+c.Text)),
			Blocks:   details,
		}},
	}
	l.tidy()
	return l
}

// renderSummary is a pure function. It falls back to one line of text.
func renderSummary(d summary.Digest) layout {
	c := newSummaryContent(d)
	l, err := summaryTemplate().execute(c, "")
	if err != nil {
		return layout{Text: fit(c.Line, maxFallback)}
	}
	return l
}

// content is the data of a template of events, and so a public contract. Its texts are cleaned, and escaped when they are
// printed.
type content struct {
	ID, Category string
	Title        string // one line, never empty
	Text         string // without the part in the title
	Severity     string
	Status       string // firing, resolved or empty
	Key          string
	Source       string
	Link         string
	Links        []event.Field // each a Name, and a URL as its Value
	Fields       []event.Field
	Time         time.Time
	Cost         int

	Label    string        // severity and status in capitals
	Colour   string        // #rrggbb
	Duration time.Duration // from the firing to the resolved event; 0 if unknown or longer than a year
	Mention  markup
	Usage    []limits.Use
	Seen     sink.Seen // events that are folded into the message; its Times are 0 if there are none
	Reply    bool      // the message is a reply in the thread of the first message
	Rewrite  bool      // the message replaces an earlier one: as resolved, or with more events that are folded into it
}

func newContent(v View) content {
	e := v.Event
	if v.Rewrite && v.Resolved != nil {
		e = v.Resolved.Event()
		if v.Event.Status == event.StatusResolved {
			e.Status = event.StatusResolved
		}
	}
	c := content{
		ID:       plain.Line(e.ShownID()),
		Category: plain.Line(e.Category),
		Severity: string(cmp.Or(e.Severity, event.SeverityInfo)),
		Status:   string(e.Status),
		Key:      plain.Line(e.Key),
		Source:   plain.Line(e.Source),
		Link:     plain.Line(e.Link),
		Links:    e.Links,
		Fields:   e.Fields,
		Time:     e.Time,
		Cost:     e.Cost,
		Duration: v.Duration(),
		Mention:  markup(v.Mention),
		Usage:    v.Usage,
		Seen:     v.Seen,
		Reply:    v.Resolved != nil && v.Resolved.Timestamp != "" && !v.Rewrite,
		Rewrite:  v.Rewrite,
	}
	c.Title, c.Text = headline(e)
	c.Label, c.Colour = labelAndColour(e)
	return c
}

// headline returns a title of one line, and the rest of the text.
func headline(e event.Event) (title, text string) {
	title, text = plain.Line(e.Title), strings.TrimSpace(plain.Text(e.Text))
	if title == "" {
		// The first line is the title and is not shown twice.
		first, rest, _ := strings.Cut(text, "\n")
		title, text = plain.Line(first), strings.TrimSpace(rest)
	}
	return cmp.Or(title, plain.Line(e.Category), mark), text
}

var colours = map[event.Severity]string{
	event.SeverityInfo:     "#2563eb",
	event.SeverityWarning:  "#f59e0b",
	event.SeverityError:    "#dc2626",
	event.SeverityCritical: "#7f1d1d",
}

// labelAndColour returns the event's severity and status in capitals, and the colour of the bar beside its message. A resolved
// event shows no severity.
func labelAndColour(e event.Event) (label, colour string) {
	severity := cmp.Or(e.Severity, event.SeverityInfo)
	label, colour = strings.ToUpper(string(severity)), cmp.Or(colours[severity], colours[event.SeverityInfo])
	switch e.Status {
	case event.StatusFiring:
		return "FIRING " + label, colour
	case event.StatusResolved:
		return "RESOLVED", "#16a34a"
	default:
		return label, colour
	}
}

// View is what a template renders.
type View struct {
	sink.Delivery
	// Resolved is the receipt of the firing event that this event resolves, or into which it is folded; nil for any other event.
	Resolved *sink.Receipt
	// Rewrite renders the message of Resolved again, instead of the event's own message.
	Rewrite bool
	Ended   time.Time // time of a resolved event
}

// NewView returns the view of d. opened is nil if the firing event is unknown.
func NewView(d sink.Delivery, opened *sink.Receipt) View {
	v := View{Delivery: d, Resolved: opened}
	if d.Event.Status == event.StatusResolved {
		v.Ended = cmp.Or(d.Event.Time, d.Stored)
	}
	return v
}

// longestDuration bounds the time between the two events of a pair. A longer time comes from an event whose own time is wrong, such as the
// year 0.
const longestDuration = 365 * 24 * time.Hour

// Duration returns the time between the firing event and this event; 0 if it is unknown.
func (v View) Duration() time.Duration {
	if v.Resolved == nil || v.Ended.IsZero() || v.Resolved.Time.IsZero() {
		return 0
	}
	if d := v.Ended.Sub(v.Resolved.Time); d > 0 && d <= longestDuration {
		return d
	}
	return 0
}
