package sink

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// render is a pure function: equal views give equal layouts. The layout can always be sent; an
// error says why it is not the template's but the default one. A nil template is the default.
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

// defaultLayout is what the default template prints, without the printing and the reading, which take ten times as long and
// would be most of what a message costs. A test holds it to the template.
func defaultLayout(c content) layout {
	headline := "[" + c.Label + "] " + c.Title
	var details []block
	if fits(plain.Text(headline), headerLimit) {
		details = sectionBlocks(plain.Text(c.Text), 2)
	} else {
		details = append([]block{sectionOf(c.Title)}, sectionBlocks(plain.Text(c.Text), 1)...)
	}
	details = append(details, fields(c.Fields)...)
	details = append(details, sectionOf(link(c.Link, "Open")), contextOf(
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
	line := SummaryLine(d)
	l, err := summaryTemplate().execute(newSummaryContent(d), "")
	if err != nil {
		l = layout{Text: fit(line, maxFallback)}
	}
	return l
}

// content is what a template of events sees, and so a public contract. Its texts are cleaned but
// not escaped: that happens where they are printed.
type content struct {
	ID, Category string
	Title        string // one line, never empty
	Text         string // without what stands in the title
	Severity     string
	Status       string // firing, resolved or empty
	Key          string
	Source       string
	Link         string
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
		Severity: string(e.Severity),
		Status:   string(e.Status),
		Key:      plain.Line(e.Key),
		Source:   plain.Line(e.Source),
		Link:     plain.Line(e.Link),
		Fields:   e.Fields,
		Time:     e.Time,
		Cost:     e.Cost,
		Label:    label(e),
		Colour:   colour(e),
		Duration: v.duration(),
		Mention:  markup(v.Mention),
		Usage:    v.Usage,
		Reply:    v.Resolved != nil && v.Resolved.Timestamp != "" && !v.Rewrite,
		Rewrite:  v.Rewrite,
	}
	if c.Severity == "" {
		c.Severity = string(event.SeverityInfo)
	}
	c.Title, c.Text = headline(e)
	return c
}

// event is what is known of the event that fired, now resolved.
func (f firing) event() event.Event {
	return event.Event{
		ID: f.ID, Category: f.Category, Title: f.Title, Text: f.Text, Severity: f.Severity, Source: f.Source,
		Link: f.Link, Fields: f.Fields, Time: f.Time, Status: event.StatusResolved,
	}
}

// duration is how long that fired which the event resolves.
func (v view) duration() time.Duration {
	ended := v.Ended
	if ended.IsZero() {
		ended = v.Event.Time
	}
	if v.Resolved == nil || v.Resolved.Time.IsZero() || ended.IsZero() {
		return 0
	}
	return max(0, ended.Sub(v.Resolved.Time))
}

// headline returns a title of one line, and the text that is not in it.
func headline(e event.Event) (title, text string) {
	title, text = plain.Line(e.Title), strings.TrimSpace(plain.Text(e.Text))
	if title == "" {
		// The first line stands in for the title and need not be shown twice.
		first, rest, _ := strings.Cut(text, "\n")
		title, text = plain.Line(first), strings.TrimSpace(rest)
	}
	if title == "" {
		title = plain.Line(e.Category)
	}
	if title == "" {
		title = mark
	}
	return title, text
}

// label is the event's severity and status in capitals. How bad it was matters no more once it is
// resolved.
func label(e event.Event) string {
	word, _ := severity(e.Severity)
	switch e.Status {
	case event.StatusFiring:
		return "FIRING " + word
	case event.StatusResolved:
		return "RESOLVED"
	default:
		return word
	}
}

// colour is that of the bar beside the message.
func colour(e event.Event) string {
	if e.Status == event.StatusResolved {
		return "#16a34a"
	}
	_, colour := severity(e.Severity)
	return colour
}

// severity returns the word and the colour for s.
func severity(s event.Severity) (word, colour string) {
	switch s {
	case event.SeverityCritical:
		return "CRITICAL", "#7f1d1d"
	case event.SeverityError:
		return "ERROR", "#dc2626"
	case event.SeverityWarning:
		return "WARNING", "#f59e0b"
	default:
		return "INFO", "#2563eb"
	}
}
