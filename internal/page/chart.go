package page

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/status"
)

// Size of the chart, in units of its own.
const (
	chartWidth  = 600
	chartHeight = 120
	chartTime   = time.Hour
)

// chart is the last hour as lines.
type chart struct {
	Most  int64 // events in one minute
	Lines []line
}

// line is one kind of events.
type line struct {
	Name   string
	Points string // of an SVG polyline
	Last   int64  // events of the last whole minute
	Sum    int64  // of the hour
}

// draw makes a chart of the minutes before the last one of them.
func draw(minutes []status.Minute) chart {
	c := chart{Lines: []line{{Name: "sent"}, {Name: "dropped"}, {Name: "waiting"}}}
	if len(minutes) == 0 {
		return c
	}
	values := func(m status.Minute) []int64 { return []int64{m.Sent, m.Dropped, m.Waiting} }
	newest := minutes[len(minutes)-1].At
	for _, m := range minutes {
		c.Most = max(c.Most, m.Sent, m.Dropped, m.Waiting)
	}
	for i := range c.Lines {
		var points []string
		for _, m := range minutes {
			age := newest.Sub(m.At)
			if age < 0 || age >= chartTime {
				continue
			}
			x := chartWidth - chartWidth*age.Minutes()/chartTime.Minutes()
			y := chartHeight - chartHeight*float64(values(m)[i])/float64(max(1, c.Most))
			points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
			c.Lines[i].Sum += values(m)[i]
			c.Lines[i].Last = values(m)[i]
		}
		c.Lines[i].Points = strings.Join(points, " ")
	}
	return c
}
