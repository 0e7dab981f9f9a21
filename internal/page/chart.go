package page

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/status"
)

// Size of the chart, in units of its own.
const (
	chartWidth   = 600
	chartHeight  = 120
	chartMinutes = 60
	minuteWidth  = chartWidth / chartMinutes
)

// chart is the last hour as lines with a step for each minute.
type chart struct {
	Top   int64 // of the axis
	Lines []line
}

// line is one kind of events.
type line struct {
	Name string
	Path string // of SVG
	Last int64  // events of the last sixty seconds
	Sum  int64  // of the hour
}

// Half is the middle of the axis.
func (c chart) Half() int64 { return c.Top / 2 }

// draw makes a chart of the last hour. The present minute shows the events of the last sixty seconds. Missing minutes after the first
// known minute had no events. The chart starts at the first known minute.
func draw(s status.Status) chart {
	c := chart{Lines: []line{{Name: "sent"}, {Name: "dropped"}, {Name: "delayed"}}}
	counts, first := hourOf(s)
	for i := range c.Lines {
		for _, minute := range counts {
			c.Lines[i].Sum += minute[i]
		}
	}
	counts[chartMinutes-1] = lastMinute(s) // it overlaps the minute before, so it does not count in the sums
	for _, minute := range counts {
		c.Top = max(c.Top, minute[0], minute[1], minute[2])
	}
	c.Top = roundUp(c.Top)
	for i := range c.Lines {
		var path strings.Builder
		for at := first; at < chartMinutes; at++ {
			n := counts[at][i]
			y := chartHeight - chartHeight*float64(n)/float64(c.Top)
			if at == first {
				_, _ = fmt.Fprintf(&path, "M%d %.1f", at*minuteWidth, y)
			}
			_, _ = fmt.Fprintf(&path, "V%.1fH%d", y, (at+1)*minuteWidth)
		}
		c.Lines[i].Path, c.Lines[i].Last = path.String(), counts[chartMinutes-1][i]
	}
	return c
}

// hourOf returns the events of each minute, the oldest first, by kind: sent, dropped, delayed. first is the first known minute.
func hourOf(s status.Status) (counts [chartMinutes][3]int64, first int) {
	first = chartMinutes
	for _, m := range s.Minutes {
		age := int(s.At.Truncate(time.Minute).Sub(m.At.Truncate(time.Minute)) / time.Minute)
		if age >= 0 && age < chartMinutes {
			at := chartMinutes - 1 - age
			first = min(first, at)
			counts[at] = [3]int64{m.Sent, m.Dropped, m.Delayed}
		}
	}
	return counts, first
}

// lastMinute returns the events of the last sixty seconds by kind.
func lastMinute(s status.Status) (last [3]int64) {
	for _, w := range s.Workers {
		last[0] += w.PerMinute.Sent
		last[1] += w.PerMinute.Dropped
		last[2] += w.PerMinute.Delayed
	}
	return last
}

// roundUp is the next of 2, 4, 10, 20, 40, 100, …: its half is a whole number.
func roundUp(n int64) int64 {
	for power := int64(1); power < math.MaxInt64/10; power *= 10 {
		for _, digit := range []int64{2, 4, 10} {
			if n <= digit*power {
				return digit * power
			}
		}
	}
	return n
}
