package simulate

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// none fills an empty cell.
const none = "-"

// WriteTable prints a report: a line for each of the first `top` paths, one line for the sum of the further paths, and the total.
// A top of 0 prints all paths. The column of folded events is there if there are some.
func WriteTable(out io.Writer, r Report, top int) error {
	rows := [][]string{{"category", "seen", "sent", "dropped", "dropped by", "duplicate", "folded", "longest silence"}}
	for _, line := range r.lines(top) {
		rows = append(rows, []string{
			line.Category, strconv.Itoa(line.Seen), strconv.Itoa(line.Sent), strconv.Itoa(line.Drops()),
			byLevel(line.Dropped), strconv.Itoa(line.Duplicate), strconv.Itoa(line.Folded), line.silence(),
		})
	}
	if r.Total.Folded == 0 {
		for i, row := range rows {
			rows[i] = slices.Delete(row, 6, 7)
		}
	}
	return writeColumns(out, rows, 0, 4)
}

type line struct {
	Path
	summed bool // sums several paths, which have no common silence
}

func (l line) silence() string {
	if l.summed {
		return none
	}
	return formatSpan(l.LongestSilence)
}

func (r Report) lines(top int) []line {
	if top == 0 || top > len(r.Paths) {
		top = len(r.Paths)
	}
	lines := make([]line, 0, top+2)
	for _, path := range r.Paths[:top] {
		lines = append(lines, line{Path: path})
	}
	if left := r.Paths[top:]; len(left) > 0 {
		lines = append(lines, line{Path: sum(left), summed: true})
	}
	total := r.Total
	total.Category = "total"
	return append(lines, line{Path: total})
}

func sum(paths []Path) Path {
	s := Path{Category: fmt.Sprintf("(%d more)", len(paths)), Dropped: make(map[string]int)}
	for _, path := range paths {
		s.Seen += path.Seen
		s.Sent += path.Sent
		s.Duplicate += path.Duplicate
		s.Folded += path.Folded
		for level, n := range path.Dropped {
			s.Dropped[level] += n
		}
	}
	return s
}

// byLevel lists drops by rule: global, category, the patterns in alphabetical order, and unpaired events last.
func byLevel(dropped map[string]int) string {
	if len(dropped) == 0 {
		return none
	}
	rank := map[string]int{limits.LevelGlobal: -2, limits.LevelCategory: -1, limits.LevelUnpaired: 1}
	levels := slices.SortedFunc(maps.Keys(dropped), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank[a], rank[b]), cmp.Compare(a, b))
	})
	parts := make([]string, len(levels))
	for i, level := range levels {
		parts[i] = fmt.Sprintf("%s %d", level, dropped[level])
	}
	return strings.Join(parts, ", ")
}

// formatSpan returns the two largest units of a duration: 2h5m, 3d4h, 1m30s; below a minute 12.3s or 250ms.
func formatSpan(span time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case span < time.Second:
		span = span.Round(time.Millisecond)
	case span < time.Minute:
		span = span.Round(100 * time.Millisecond)
	case span < time.Hour:
		span = span.Round(time.Second)
	case span < day:
		span = span.Round(time.Minute)
	default:
		span = span.Round(time.Hour)
	}
	if span < time.Minute {
		return span.String()
	}
	return algorithm.FormatWindow(span)
}

// writeColumns aligns columns to the right, but the given columns of texts to the left.
func writeColumns(out io.Writer, rows [][]string, texts ...int) error {
	for _, column := range texts {
		width := 0
		for _, row := range rows {
			width = max(width, len(row[column]))
		}
		for _, row := range rows {
			row[column] += strings.Repeat(" ", width-len(row[column]))
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		if _, err := fmt.Fprintln(table, strings.Join(row, "\t")+"\t"); err != nil {
			return err
		}
	}
	return table.Flush()
}
