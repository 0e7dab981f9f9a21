package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// panel is a table. Without a heading it is a list of lines.
type panel struct {
	what    string // name of the rows, for the note about hidden ones; lines have none
	heading []string
	rows    [][]string
	urgent  int // full and faulty rows, which come first
}

// height returns the lines of a panel that shows some of its rows, with the blank line above it.
func (b panel) height(shown int) int {
	switch {
	case shown == 0:
		return 0
	case b.heading == nil:
		return shown + 1
	}
	return shown + 2
}

// Rows that each panel gets before a panel gets more: urgent rows first, then any rows.
const (
	urgentFirst = 5
	anyFirst    = 2
)

// fit returns how many rows of each panel fit into a number of lines; 0 sets no bound. Urgent rows get space first.
func fit(panels []panel, lines int) []int {
	shown := make([]int, len(panels))
	taken := 0
	for _, wanted := range []func(panel) int{
		func(b panel) int { return min(b.urgent, urgentFirst) },
		func(b panel) int { return min(len(b.rows), max(anyFirst, min(b.urgent, urgentFirst))) },
		func(b panel) int { return min(b.urgent, mostRows) },
		func(b panel) int {
			if b.heading == nil { // an output without a height shows all lines, but mostRows rows of a table
				return len(b.rows)
			}
			return min(len(b.rows), mostRows)
		},
	} {
		for i, b := range panels {
			for shown[i] < wanted(b) {
				more := b.height(shown[i]+1) - b.height(shown[i])
				if lines > 0 && taken+more > lines {
					break
				}
				shown[i]++
				taken += more
			}
		}
	}
	return shown
}

// statusText returns the status for an output of a width. A width of 0 bounds no table: whoever filters the output gets whole paths.
func statusText(s status.Status, width int) string {
	return strings.Join(StatusRows(s, width, 0), "\n") + "\n"
}

// StatusRows returns the status as lines that fit a width and a height; 0 sets no bound.
func StatusRows(s status.Status, width, height int) []string {
	lines, sentenceLines := height, 0
	if height > 0 {
		lines++ // above the first panel there is no blank line
		sentenceLines = 2
	}
	panels := statusPanels(s, cmp.Or(width, statusWidth), sentenceLines)
	shown := fit(panels, lines)
	left := leftOut(panels, shown)
	if left != "" && height > 0 {
		shown = fit(panels, max(1, lines-1)) // the last line says what is left out
		left = leftOut(panels, shown)
	}
	var rows []string
	for i, b := range panels {
		if shown[i] == 0 {
			continue
		}
		if len(rows) > 0 {
			rows = append(rows, "")
		}
		rows = append(rows, b.print(shown[i], width)...)
	}
	if left != "" {
		rows = append(rows, left)
	}
	for i, row := range rows {
		if rows[i] = strings.TrimRight(row, " "); width > 0 {
			rows[i] = screen.Fold(rows[i], width, 1)[0]
		}
	}
	return rows
}

// print returns the lines of the panel. A table fits the width; 0 sets no bound.
func (b panel) print(shown, width int) []string {
	rows := b.rows[:shown]
	if b.heading != nil {
		rows = append([][]string{b.heading}, rows...)
		if width > 0 {
			rows = fitColumns(rows, width)
		}
	}
	return strings.Split(strings.TrimSuffix(screen.Table(rows), "\n"), "\n")
}

const (
	columnGap       = 2  // characters between two columns
	narrowestColumn = 12 // characters of the columns that fitColumns shortens
)

// fitColumns shortens the texts of a table's widest columns until its lines fit a width.
func fitColumns(rows [][]string, width int) [][]string {
	widths, over := make([]int, len(rows[0])), -columnGap-width
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		over += widths[i] + columnGap
	}
	for ; over > 0; over-- {
		widest := slices.Index(widths, slices.Max(widths))
		if widths[widest] <= narrowestColumn {
			break
		}
		widths[widest]--
	}
	fitted := make([][]string, len(rows))
	for r, row := range rows {
		for i, text := range row {
			fitted[r] = append(fitted[r], withoutMiddle(text, widths[i]))
		}
	}
	return fitted
}

// withoutMiddle returns a text of at most a number of characters. Paths that begin alike mostly end differently, so the middle is left out.
func withoutMiddle(text string, most int) string {
	runes := []rune(text)
	left := len(runes) - most
	if left <= 0 {
		return text
	}
	head := (most - 1) / 2
	return string(runes[:head]) + "…" + string(runes[head+left+1:])
}

// leftOut returns a note about hidden rows; "" if all are shown.
func leftOut(panels []panel, shown []int) string {
	var parts []string
	lines := 0
	for i, b := range panels {
		switch hidden := len(b.rows) - shown[i]; {
		case hidden == 0:
		case b.heading == nil:
			lines += hidden
		default:
			parts = append(parts, fmt.Sprintf("%s: %d", b.what, hidden))
		}
	}
	if lines > 0 {
		parts = append(parts, fmt.Sprintf("lines: %d", lines))
	}
	if len(parts) == 0 {
		return ""
	}
	return "not shown: " + strings.Join(parts, ", ") + "; see --json"
}
