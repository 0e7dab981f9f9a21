package sink

import (
	"fmt"
	"strings"
	"time"
)

// summaryContent is what the template of summaries sees. Its texts are one line each.
type summaryContent struct {
	Summary
	Line, Count           string   // the whole in one line; the first words of it
	More, Unpaired, Doubt string   // "" for nothing to say
	Changed               []string // without their times, which are those of Changes
}

func newSummaryContent(s Summary) summaryContent {
	s = s.bounded()
	c := summaryContent{
		Summary: s, Line: SummaryLine(s), Count: s.count(), More: s.more(), Unpaired: s.unpaired(), Doubt: s.doubt(),
	}
	for _, change := range s.Changes {
		c.Changed = append(c.Changed, change.text())
	}
	return c
}

// Bounds of what a summary shows.
const (
	maxPaths        = 10
	maxSuppressedBy = 8
	maxChanges      = 5
	maxSummaryTitle = 300 // escaped, as the next one
	maxPathName     = 150
)

// bounded is the summary as it is shown: clean, and no more of anything than there is room for. Paths for which there is none
// count among the others.
func (s Summary) bounded() Summary {
	paths := make([]SuppressedPath, 0, maxPaths)
	for i, path := range s.Paths {
		if i >= maxPaths {
			s.MorePaths++
			s.MoreDropped += path.Dropped
			continue
		}
		path.Path, path.Title = cutTo(maxPathName, oneLine(path.Path)), cutTo(maxSummaryTitle, oneLine(path.Title))
		path.Reasons = path.Reasons[:min(len(path.Reasons), maxSuppressedBy)]
		paths = append(paths, path)
	}
	s.Paths = paths
	s.Changes = s.Changes[max(0, len(s.Changes)-maxChanges):] // the newest
	return s
}

// SummaryLine tells the summary in one line of plain text, times in UTC.
func SummaryLine(s Summary) string {
	s = s.bounded()
	var line strings.Builder
	line.WriteString(s.count() + " " + period(s.First, s.Last))
	before := ": "
	write := func(text string) {
		if text != "" {
			line.WriteString(before + text)
			before = "; "
		}
	}
	for _, path := range s.Paths {
		write(path.text(s.Last))
	}
	write(s.more())
	write(s.unpaired())
	write(s.doubt())
	for _, change := range s.Changes {
		write(change.text() + " at " + moment(change.At, s.Last) + " UTC")
	}
	return line.String()
}

func (s Summary) count() string {
	return atLeast(s.AtLeast) + number(s.Dropped, "notification was suppressed", "notifications were suppressed")
}

// Name is the path, or what it stands for.
func (p SuppressedPath) Name() string {
	if p.Rest {
		return "other paths below " + p.Path
	}
	return p.Path
}

// Why says for which reasons, and how often for each if there are several.
func (p SuppressedPath) Why() string {
	var texts []string
	for _, reason := range p.Reasons {
		text := oneLine(reason.Text)
		if len(p.Reasons) > 1 {
			text = fmt.Sprintf("%s: %d", text, reason.Dropped)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

func (p SuppressedPath) text(last time.Time) string {
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

func (s Summary) more() string {
	if s.MorePaths == 0 || s.MoreDropped == 0 {
		return ""
	}
	return fmt.Sprintf("and %s%s: %d", atLeast(s.MoreAtLeast), number(int64(s.MorePaths), "more path", "more paths"), s.MoreDropped)
}

func (s Summary) unpaired() string {
	if s.Unpaired == 0 {
		return ""
	}
	return number(s.Unpaired, "resolved alert", "resolved alerts") + " had no open notification"
}

func (s Summary) doubt() string {
	if s.Doubtful == 0 {
		return ""
	}
	return fmt.Sprintf("including %d that may have been told before", s.Doubtful)
}

// text says what was changed, but not when.
func (c LimitChange) text() string {
	text := "the live limit of " + oneLine(c.Limit) + " was "
	if c.Value == "" {
		text += "unset"
	} else {
		text += "set to " + oneLine(c.Value)
	}
	if by := oneLine(c.By); by != "" {
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
