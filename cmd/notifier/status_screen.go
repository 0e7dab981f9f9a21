package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/status"
)

// panel is a part of a screen: a table, or lines if it has no heading.
type panel struct {
	what    string // names the rows where some are not shown; lines need no name
	heading []string
	rows    [][]string
	urgent  int // rows of what is full or faulty, which stand first
}

// height is how many lines the panel takes if it shows some of its rows, with the blank line above it.
func (b panel) height(shown int) int {
	switch {
	case shown == 0:
		return 0
	case b.heading == nil:
		return shown + 1
	}
	return shown + 2
}

// Rows that each panel shows before any panel shows more: urgent rows first, then rows of any kind.
const (
	urgentFirst = 5
	anyFirst    = 2
)

// fit returns how many rows of each panel are shown in so many lines; 0: in any number. Urgent rows come before others.
func fit(panels []panel, lines int) []int {
	shown := make([]int, len(panels))
	taken := 0
	for _, wanted := range []func(panel) int{
		func(b panel) int { return min(b.urgent, urgentFirst) },
		func(b panel) int { return min(len(b.rows), max(anyFirst, min(b.urgent, urgentFirst))) },
		func(b panel) int { return min(b.urgent, mostRows) },
		func(b panel) int { return min(len(b.rows), max(mostRows, b.linesAlone())) },
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

// linesAlone is the number of rows without a heading. An output without a height shows all of them; tables have at most mostRows.
func (b panel) linesAlone() int {
	if b.heading == nil {
		return len(b.rows)
	}
	return 0
}

// statusText is the status for an output without a height.
func statusText(s status.Status) string {
	return strings.Join(statusRows(s, statusWidth, 0), "\n") + "\n"
}

// statusRows is the status in lines of at most so many characters, and in at most so many lines; 0: any number.
func statusRows(s status.Status, width, height int) []string {
	lines, sentenceLines := height, 0
	if height > 0 {
		lines++ // above the first panel there is no blank line
		sentenceLines = 2
	}
	panels := statusPanels(s, width, sentenceLines)
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
		rows = append(rows, b.print(shown[i])...)
	}
	if left != "" {
		rows = append(rows, left)
	}
	for i, row := range rows {
		rows[i] = fold(strings.TrimRight(row, " "), width, 1)[0]
	}
	return rows
}

// print returns the lines of the panel.
func (b panel) print(shown int) []string {
	rows := b.rows[:shown]
	if b.heading != nil {
		rows = append([][]string{b.heading}, rows...)
	}
	return strings.Split(strings.TrimSuffix(tableOf(rows), "\n"), "\n")
}

// leftOut says what is not shown; "" if everything is.
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

// statusScreen draws the status in place, as much of it as the terminal has room for.
type statusScreen struct {
	out           io.Writer
	size          func() (width, height int)
	width, height int // of the last frame
}

// resized tells whether the terminal has another size than at the last frame.
func (s *statusScreen) resized() bool {
	width, height := s.size()
	return width != s.width || height != s.height
}

func (s *statusScreen) draw(shown status.Status) error {
	above, commands := "", ""
	if s.height == 0 { // what is on the terminal goes to its scrollback
		_, height := s.size()
		above = strings.Repeat("\n", height)
	}
	if s.resized() {
		commands = clearAll
	}
	s.width, s.height = s.size()
	_, err := io.WriteString(s.out, above+frameOf(commands, statusRows(shown, s.width, max(1, s.height-1))))
	return err
}
