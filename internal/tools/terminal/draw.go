package main

import (
	"fmt"
	"html"
	"math"
	"regexp"
	"strings"
)

// Sizes in units of the picture.
const (
	margin      = 16
	lineHeight  = 18
	columnWidth = 7.83 // of a monospaced letter of 13 units
)

// commands finds what commands a terminal: colours end with m.
var commands = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// styles are those of the codes that dev writes.
var styles = map[string]string{
	"\x1b[1m": "font-weight:bold", "\x1b[2m": "fill:#8b949e", "\x1b[31m": "fill:#ff7b72", "\x1b[32m": "fill:#7ee787", "\x1b[33m": "fill:#f2cc60",
	"\x1b[35m": "fill:#d2a8ff", "\x1b[36m": "fill:#79c0ff", "\x1b[34m": "fill:#a5d6ff", "\x1b[1;37;41m": "fill:#ffa198;font-weight:bold",
}

// draw is a picture of rows on a dark terminal. It needs no font of its own and no script.
func draw(lines []string) string {
	width, height := margin*2+int(math.Ceil(columns*columnWidth)), margin*2+len(lines)*lineHeight
	var picture strings.Builder
	fmt.Fprintf(&picture, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="notifier dev on a terminal">`,
		width, height, width, height)
	fmt.Fprintf(&picture, "\n<rect width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#0d1117\"/>\n", width, height)
	picture.WriteString(`<g font-family="ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="13" fill="#e6edf3">` + "\n")
	for i, line := range lines {
		if line != "" {
			fmt.Fprintf(&picture, "<text x=\"%d\" y=\"%d\" xml:space=\"preserve\">%s</text>\n", margin, margin+(i+1)*lineHeight-5, spans(line))
		}
	}
	picture.WriteString("</g>\n</svg>\n")
	return picture.String()
}

// spans is a row with its colours. A code that has no style here, such as that which ends a colour, is followed by plain text.
func spans(line string) string {
	var row strings.Builder
	style := ""
	for line != "" {
		text := line
		at := commands.FindStringIndex(line)
		if at != nil {
			text = line[:at[0]]
		}
		switch {
		case text == "":
		case style == "":
			row.WriteString(html.EscapeString(text))
		default:
			fmt.Fprintf(&row, `<tspan style="%s">%s</tspan>`, style, html.EscapeString(text))
		}
		if at == nil {
			break
		}
		style = styles[line[at[0]:at[1]]]
		line = line[at[1]:]
	}
	return row.String()
}
