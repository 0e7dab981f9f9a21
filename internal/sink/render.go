package sink

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// render is a pure function: equal views give equal layouts. The layout can always be sent. An error says why the default
// template made it, in place of this one. A nil template is the default.
func (t *Template) render(v view) (layout, error) {
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

// defaultLayout is what the default template prints. Printing and reading would take ten times as long, and would be most of
// what a message costs. A test compares it with the template.
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

// renderSummary is a pure function, as Template.render is.
func renderSummary(d summary.Digest) layout {
	c := newSummaryContent(d)
	l, err := summaryTemplate().execute(c, "")
	if err != nil {
		return layout{Text: fit(c.Line, maxFallback)}
	}
	return l
}

// content is what a template of events sees, and so a public contract. Its texts are cleaned. They are escaped where they are
// printed.
type content struct {
	ID, Category string
	Title        string // one line, never empty
	Text         string // without what stands in the title
	Severity     string
	Status       string // firing, resolved or empty
	Key          string
	Source       string
	Link         string
	Links        []event.Field // each a Name and the URL as its Value
	Fields       []event.Field
	Time         time.Time
	Cost         int

	Label    string        // severity and status in capitals
	Colour   string        // #rrggbb
	Duration time.Duration // from the firing to the resolved event; 0 if it is not known
	Mention  markup
	Usage    []limits.Usage
	Reply    bool // the message stands in the thread of what it resolves
	Rewrite  bool // the message is the one that is resolved
}

func newContent(v view) content {
	e := v.Event
	if v.Rewrite && v.Resolved != nil {
		e = v.Resolved.event()
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
		Duration: v.duration(),
		Mention:  markup(v.Mention),
		Usage:    v.Usage,
		Reply:    v.Resolved != nil && v.Resolved.Timestamp != "" && !v.Rewrite,
		Rewrite:  v.Rewrite,
	}
	c.Title, c.Text = headline(e)
	c.Label, c.Colour = labelAndColour(e)
	return c
}

// headline returns a title of one line, and the text that is not in it.
func headline(e event.Event) (title, text string) {
	title, text = plain.Line(e.Title), strings.TrimSpace(plain.Text(e.Text))
	if title == "" {
		// The first line stands in for the title and need not be shown twice.
		first, rest, _ := strings.Cut(text, "\n")
		title, text = plain.Line(first), strings.TrimSpace(rest)
	}
	return cmp.Or(title, plain.Line(e.Category), mark), text
}

// labelAndColour returns the event's severity and status in capitals, and the colour of the bar beside its message. A resolved event
// shows no severity: it matters no more.
func labelAndColour(e event.Event) (label, colour string) {
	look := lookOf(e.Severity)
	switch e.Status {
	case event.StatusFiring:
		return "FIRING " + look.word, look.colour
	case event.StatusResolved:
		return "RESOLVED", "#16a34a"
	default:
		return look.word, look.colour
	}
}

// look is how a severity is shown.
type look struct {
	word   string
	colour string // of the bar beside a message
	ansi   string // starts the colour on a terminal
}

func lookOf(s event.Severity) look {
	switch s {
	case event.SeverityCritical:
		return look{"CRITICAL", "#7f1d1d", "\x1b[1;37;41m"} // on a terminal white on red
	case event.SeverityError:
		return look{"ERROR", "#dc2626", "\x1b[31m"}
	case event.SeverityWarning:
		return look{"WARNING", "#f59e0b", "\x1b[33m"}
	default:
		return look{"INFO", "#2563eb", "\x1b[34m"}
	}
}
