package summary

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Summary tells what was dropped of one category.
type Summary struct {
	Path        string // the category
	Dropped     int64
	AtLeast     bool // there may have been more: an instance was killed before it told all
	First, Last time.Time
	Limits      []SuppressedBy // most first
	Titles      []TitleCount   // the most frequent ones, most first
	Opens       time.Time      // when the next slot opens; zero if that is not known, or now
}

// SuppressedBy is a level that dropped notifications.
type SuppressedBy struct {
	Level, Limit string
	Dropped      int64
}

// TitleCount is how often a title was dropped.
type TitleCount struct {
	Title string
	Count int64
}

// mostTitles is how many titles a summary has.
const mostTitles = 3

func newSummary(claimed throttle.DropSummary, describe func(category, level string) string) Summary {
	s := Summary{
		Path: claimed.Category, Dropped: claimed.Total, AtLeast: claimed.AtLeast,
		First: claimed.First, Last: claimed.Last, Opens: claimed.Opens,
	}
	for _, level := range claimed.Levels {
		by := SuppressedBy{Level: level.Name, Dropped: level.Count}
		if describe != nil {
			by.Limit = describe(claimed.Category, level.Name)
		}
		s.Limits = append(s.Limits, by)
	}
	for _, title := range claimed.Titles[:min(len(claimed.Titles), mostTitles)] {
		s.Titles = append(s.Titles, TitleCount{Title: title.Name, Count: title.Count})
	}
	return s
}
