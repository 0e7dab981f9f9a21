package main

import (
	"bytes"
	"context"
	_ "embed" // the picture's form
	"fmt"
	"slices"
	"text/template"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/simulate"
)

// weekName is the picture of the on-call week.
const weekName = "week.svg"

// Sizes in the picture of the week.
const (
	rowTall  = 74.0
	barsTall = 44.0
)

//go:embed week.svg.tmpl
var weekForm string

var weekPage = template.Must(template.New("week").Parse(weekForm))

// weekView is what the form of the week shows.
type weekView struct {
	Tall string
	Rows []weekRow
	Days []mark
}

type weekRow struct {
	simulate.WeekRow
	Middle, Floor, Bars, Most string
}

// pictureOfWeek draws the messages of each hour of the generated week, by each way to handle its events.
func pictureOfWeek() ([]byte, error) {
	global, err := limits.Parse("100/30m")
	if err != nil {
		return nil, err
	}
	category, err := limits.Parse("10/30m")
	if err != nil {
		return nil, err
	}
	const kept = 24 * time.Hour
	variants, err := simulate.WeekVariants(limits.Plan{Global: global, Category: category}, kept, kept)
	if err != nil {
		return nil, err
	}
	rows, err := simulate.ReplayWeek(context.Background(), simulate.Week(simulate.WeekSeed), variants)
	if err != nil {
		return nil, fmt.Errorf("replaying the week: %w", err)
	}
	v, most := weekView{Tall: number(rowTall*float64(len(rows)) + 20)}, 1
	for _, row := range rows {
		most = max(most, slices.Max(row.PerHour[:]))
	}
	for i, row := range rows {
		floor := rowTall * float64(i+1)
		drawn := weekRow{WeekRow: row, Middle: number(floor - barsTall - 10), Floor: number(floor), Most: fmt.Sprint(slices.Max(row.PerHour[:]))}
		for hour, sent := range row.PerHour {
			if sent > 0 {
				drawn.Bars += fmt.Sprintf("M%s %sv-%s", number(hourAt(hour)), number(floor), number(barsTall*float64(sent)/float64(most)))
			}
		}
		v.Rows = append(v.Rows, drawn)
	}
	for day, name := range []string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"} {
		v.Days = append(v.Days, mark{X: number(hourAt(24 * day)), Text: name})
	}
	var picture bytes.Buffer
	err = weekPage.Execute(&picture, v)
	return picture.Bytes(), err
}

func hourAt(hour int) float64 { return left + (right-left)*float64(hour)/(7*24) }
