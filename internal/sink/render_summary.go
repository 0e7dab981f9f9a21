package sink

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// summaryContent is what the template of summaries sees. Its texts are one line each.
type summaryContent struct {
	summary.Digest
	Paths                 []suppressed
	Line, Count           string   // the whole in one line; the first words of it
	More, Unpaired, Doubt string   // "" for nothing to say
	Changed               []string // without their times, which are those of Changes
}

// suppressed is what was dropped of one path, in words.
type suppressed struct{ summary.Path }

func newSummaryContent(d summary.Digest) summaryContent {
	d = bounded(d)
	c := summaryContent{
		Digest: d, Paths: suppressedOf(d), Line: SummaryLine(d), Count: count(d), More: more(d), Unpaired: unpaired(d), Doubt: doubt(d),
	}
	for _, change := range d.Changes {
		c.Changed = append(c.Changed, changeText(change))
	}
	return c
}

func suppressedOf(d summary.Digest) []suppressed {
	paths := make([]suppressed, len(d.Paths))
	for i, path := range d.Paths {
		paths[i] = suppressed{path}
	}
	return paths
}

// Bounds of what a summary shows.
const (
	maxPaths        = 10
	maxReasons      = 8
	maxChanges      = 5
	maxSummaryTitle = 300 // escaped, as the next one
	maxPathName     = 150
)

// bounded is the digest as it is shown: clean, and no more of anything than there is room for. Paths for which there is none
// count among the others.
func bounded(d summary.Digest) summary.Digest {
	paths := make([]summary.Path, 0, maxPaths)
	for i, path := range d.Paths {
		if i >= maxPaths {
			d.MorePaths++
			d.MoreDropped += path.Dropped
			continue
		}
		path.Path, path.Title = cutTo(maxPathName, plain.Line(path.Path)), cutTo(maxSummaryTitle, plain.Line(path.Title))
		path.Reasons = path.Reasons[:min(len(path.Reasons), maxReasons)]
		paths = append(paths, path)
	}
	d.Paths = paths
	d.Changes = d.Changes[max(0, len(d.Changes)-maxChanges):] // the newest
	return d
}

// SummaryLine tells a digest in one line of plain text, times in UTC.
func SummaryLine(d summary.Digest) string {
	d = bounded(d)
	var line strings.Builder
	line.WriteString(count(d) + " " + period(d.First, d.Last))
	before := ": "
	write := func(text string) {
		if text != "" {
			line.WriteString(before + text)
			before = "; "
		}
	}
	for _, path := range suppressedOf(d) {
		write(path.text(d.Last))
	}
	write(more(d))
	write(unpaired(d))
	write(doubt(d))
	for _, change := range d.Changes {
		write(changeText(change) + " at " + moment(change.At, d.Last) + " UTC")
	}
	return line.String()
}

func count(d summary.Digest) string {
	return atLeast(d.AtLeast) + number(d.Dropped, "notification was suppressed", "notifications were suppressed")
}

// Name is the path, or what it stands for.
func (p suppressed) Name() string {
	if p.Rest {
		return "other paths below " + p.Path.Path
	}
	return p.Path.Path
}

// Why says for which reasons, and how often for each if there are several.
func (p suppressed) Why() string {
	var texts []string
	for _, reason := range p.Reasons {
		text := plain.Line(reason.Text)
		if len(p.Reasons) > 1 {
			text = fmt.Sprintf("%s: %d", text, reason.Dropped)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

func (p suppressed) text(last time.Time) string {
	var details []string
	if why := p.Why(); why != "" {
		details = append(details, why)
	}
	if !p.Opens.IsZero() {
		details = append(details, "next slot opens "+moment(p.Opens, last)+" UTC")
	}
	if p.Title != "" {
		details = append(details, "such as "+p.Title)
	}
	text := fmt.Sprintf("%d × %s", p.Dropped, p.Name())
	if len(details) > 0 {
		text += " (" + strings.Join(details, ", ") + ")"
	}
	return text
}

func more(d summary.Digest) string {
	if d.MorePaths == 0 || d.MoreDropped == 0 {
		return ""
	}
	return fmt.Sprintf("and %s%s: %d", atLeast(d.MoreAtLeast), number(int64(d.MorePaths), "more path", "more paths"), d.MoreDropped)
}

func unpaired(d summary.Digest) string {
	if d.Unpaired == 0 {
		return ""
	}
	return number(d.Unpaired, "resolved alert", "resolved alerts") + " had no open notification"
}

func doubt(d summary.Digest) string {
	if d.Doubtful == 0 {
		return ""
	}
	return fmt.Sprintf("including %d that may have been told before", d.Doubtful)
}

// changeText says what was changed, but not when.
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

func atLeast(is bool) string {
	if is {
		return "at least "
	}
	return ""
}

func number(n int64, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", several)
}

// period says from when to when, with dates if they are not the same.
func period(first, last time.Time) string {
	from, to := moment(first, last), moment(last, first)
	if from == to {
		return "at " + to + " UTC"
	}
	return "between " + from + " and " + to + " UTC"
}

// moment is t in UTC, with its date unless other is on the same day.
func moment(t, other time.Time) string {
	t = t.UTC()
	if t.Format(time.DateOnly) == other.UTC().Format(time.DateOnly) {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}
