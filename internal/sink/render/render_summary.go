package render

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// Bounds of what a summary shows.
const (
	maxPaths        = 10
	maxReasons      = 8
	maxChanges      = 5
	maxSummaryTitle = 300 // characters, escaped
	maxPathName     = 150 // characters, escaped
)

// atLeast is put before a number that is a lower bound.
const atLeast = "at least "

// summaryContent is the data of the template of digests. Each text is one line, or "".
type summaryContent struct {
	summary.Digest
	Paths                        []suppressed
	Line                         string // the whole, with times in UTC
	Count, More, Unpaired, Doubt string
	OneMinute                    bool     // the first and the last drop fall in one minute
	Changed                      []string // descriptions of Changes, without times
	Earlier                      string   // changes that are not shown
	Muted, Firing                string   // of the digest of a mute that has ended
}

type suppressed struct {
	Dropped          int64
	Name, Why, Title string
	Opens            time.Time
}

// newSummaryContent bounds what a digest shows. It adds the paths beyond the bound to the total of other paths.
func newSummaryContent(d summary.Digest) summaryContent {
	shown := d.Paths[:min(len(d.Paths), maxPaths)]
	for _, path := range d.Paths[len(shown):] {
		d.MorePaths++
		d.MoreDropped += path.Dropped
	}
	earlier := max(0, len(d.Changes)-maxChanges)
	d.Changes = d.Changes[earlier:]
	c := summaryContent{
		Digest:    d,
		OneMinute: d.First.Truncate(time.Minute).Equal(d.Last.Truncate(time.Minute)),
		Count:     screen.Numbered(d.Dropped, "notification was suppressed", "notifications were suppressed"),
	}
	if d.AtLeast {
		c.Count = atLeast + c.Count
	}
	for _, path := range shown {
		c.Paths = append(c.Paths, newSuppressed(path))
	}
	if d.MorePaths > 0 && d.MoreDropped > 0 {
		paths := screen.Numbered(d.MorePaths, "more path", "more paths")
		if d.MoreAtLeast {
			paths = atLeast + paths
		}
		c.More = fmt.Sprintf("and %s: %d", paths, d.MoreDropped)
	}
	if d.Unpaired > 0 {
		c.Unpaired = screen.Numbered(d.Unpaired, "resolved alert", "resolved alerts") + " had no open notification"
	}
	if d.Doubtful > 0 {
		c.Doubt = fmt.Sprintf("including %d that an earlier digest may have reported", d.Doubtful)
	}
	if earlier > 0 {
		c.Earlier = fmt.Sprintf("and before that %s: notifier limits history", screen.Numbered(earlier, "change", "changes"))
	}
	if d.Mute != nil {
		c.Muted, c.Firing = mutedText(d.Mute), firingText(d.Mute)
	}
	for _, change := range d.Changes {
		c.Changed = append(c.Changed, changeText(change))
	}
	c.Line = c.line()
	return c
}

func newSuppressed(path summary.Path) suppressed {
	s := suppressed{
		Dropped: path.Dropped, Name: cutTo(maxPathName, plain.Line(path.Path)), Title: cutTo(maxSummaryTitle, plain.Line(path.Title)),
		Opens: path.Opens,
	}
	if path.Rest {
		s.Name = "other paths below " + s.Name
	}
	reasons := path.Reasons[:min(len(path.Reasons), maxReasons)]
	var texts []string
	for _, reason := range reasons {
		text := plain.Line(reason.Text)
		if len(reasons) > 1 {
			text = fmt.Sprintf("%s: %d", text, reason.Dropped)
		}
		texts = append(texts, text)
	}
	s.Why = strings.Join(texts, ", ")
	return s
}

func (c summaryContent) line() string {
	var texts []string
	for _, path := range c.Paths {
		texts = append(texts, path.text(c.Last))
	}
	if c.Mute != nil {
		texts = append([]string{c.Muted + " " + period(c.Mute.Begin, c.Mute.Ended)}, texts...)
	}
	texts = append(texts, c.More, c.Firing, c.Unpaired, c.Doubt)
	for i, change := range c.Changes {
		texts = append(texts, c.Changed[i]+" at "+moment(change.At, c.Last)+" UTC")
	}
	texts = append(texts, c.Earlier)
	texts = slices.DeleteFunc(texts, func(text string) bool { return text == "" })
	line := c.Count + " " + period(c.First, c.Last)
	if len(texts) == 0 {
		return line
	}
	return line + ": " + strings.Join(texts, "; ")
}

func (p suppressed) text(last time.Time) string {
	var details []string
	if p.Why != "" {
		details = append(details, p.Why)
	}
	if !p.Opens.IsZero() {
		details = append(details, "next slot opens "+moment(p.Opens, last)+" UTC")
	}
	if p.Title != "" {
		details = append(details, "such as "+p.Title)
	}
	text := fmt.Sprintf("%d × %s", p.Dropped, p.Name)
	if len(details) > 0 {
		text += " (" + strings.Join(details, ", ") + ")"
	}
	return text
}

// mutedText describes a mute that has ended, without its times.
func mutedText(m *summary.Muted) string {
	text := m.Path + " was muted"
	if m.By != "" {
		text += " by " + m.By
	}
	if m.Every != "" {
		text += " (" + m.Every + ")"
	}
	switch {
	case m.EndedBy == "":
	case m.Replaced:
		text += ", replaced by " + m.EndedBy
	default:
		text += ", unmuted by " + m.EndedBy
	}
	return plain.Line(text + ": " + m.Reason)
}

// maxFiring bounds the keys that a digest shows.
const maxFiring = 10

// firingText lists what still fires; "" if nothing does.
func firingText(m *summary.Muted) string {
	shown := m.Firing[:min(len(m.Firing), maxFiring)]
	if len(shown) == 0 {
		return ""
	}
	var texts []string
	for _, key := range shown {
		texts = append(texts, plain.Line(fmt.Sprintf("%s (%s)", key.Title, plain.Title(key.Name))))
	}
	if more := len(m.Firing) - len(shown); more > 0 || m.MoreFiring {
		text := fmt.Sprintf("%d more", more)
		if m.MoreFiring {
			text = atLeast + text
		}
		texts = append(texts, text)
	}
	return "still firing: " + strings.Join(texts, ", ")
}

// changeText describes a change without its time.
func changeText(c summary.Change) string {
	text := "the live limit of " + plain.Line(c.Limit) + " was "
	if c.Value == "" {
		text += "unset"
	} else {
		text += "set to " + plain.Line(c.Value)
	}
	if by := plain.Line(c.By); by != "" {
		text += " by " + by
	}
	return text
}

// period returns the times of the first and the last drop, with dates if they differ.
func period(first, last time.Time) string {
	from, to := moment(first, last), moment(last, first)
	if from == to {
		return "at " + to + " UTC"
	}
	return "between " + from + " and " + to + " UTC"
}

// moment returns t in UTC, without its date if other is on that day.
func moment(t, other time.Time) string {
	t = t.UTC()
	if t.Format(time.DateOnly) == other.UTC().Format(time.DateOnly) {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}
