package sink

import (
	"fmt"
	"strings"
	"time"
)

// summaryContent is what the template of summaries sees.
type summaryContent struct {
	Summary
	Line string
}

func newSummaryContent(s Summary) summaryContent {
	s.Path = oneLine(s.Path)
	titles := make([]TitleCount, 0, maxTitles)
	for _, title := range s.Titles[:min(len(s.Titles), maxTitles)] {
		title.Title = oneLine(title.Title)
		titles = append(titles, title)
	}
	s.Titles = titles
	s.Limits = s.Limits[:min(len(s.Limits), maxSuppressedBy)]
	return summaryContent{Summary: s, Line: SummaryLine(s)}
}

// Bounds of what a summary shows. More limits than that stand on no path.
const (
	maxTitles       = 3
	maxSuppressedBy = 10
)

// SummaryLine tells the summary in one line of plain text, times in UTC.
func SummaryLine(s Summary) string {
	var line strings.Builder
	if s.AtLeast {
		line.WriteString("at least ")
	}
	verb := "notifications of %s were"
	if s.Dropped == 1 {
		verb = "notification of %s was"
	}
	fmt.Fprintf(&line, "%d "+verb+" suppressed %s", s.Dropped, oneLine(s.Path), period(s.First, s.Last))
	writeList(&line, " by ", s.Limits, func(limit SuppressedBy) string {
		if len(s.Limits) == 1 {
			return limit.Level + " " + limit.Limit
		}
		return fmt.Sprintf("%s %s (%d)", limit.Level, limit.Limit, limit.Dropped)
	})
	writeList(&line, ": ", s.Titles, func(title TitleCount) string {
		return fmt.Sprintf("%d × %s", title.Count, cut(oneLine(title.Title), maxFieldName))
	})
	if !s.Opens.IsZero() {
		line.WriteString("; next slot opens " + moment(s.Opens, s.Last) + " UTC")
	}
	return line.String()
}

func writeList[T any](line *strings.Builder, before string, items []T, text func(T) string) {
	for i, item := range items {
		if i > 0 {
			before = ", "
		}
		line.WriteString(before + text(item))
	}
}

// period says from when to when, with dates if they are not the same.
func period(first, last time.Time) string {
	if first.Equal(last) {
		return "at " + moment(first, first) + " UTC"
	}
	return "between " + moment(first, last) + " and " + moment(last, first) + " UTC"
}

// moment is t in UTC, with its date unless other is on the same day.
func moment(t, other time.Time) string {
	t = t.UTC()
	if t.Format(time.DateOnly) == other.UTC().Format(time.DateOnly) {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}
