package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// drawableTerminal returns the terminal at the other end of an output, if it takes commands.
func drawableTerminal(out io.Writer) (file *os.File, found bool) {
	file, isFile := out.(*os.File)
	return file, isFile && hasTerminal(file) && os.Getenv("TERM") != "dumb"
}

// screenSize asks for the size of a terminal. One that does not know it has the usual one.
func screenSize(file *os.File) func() (width, height int) {
	return func() (width, height int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}
}

// What a frame is made of.
const (
	hideCursor, showCursor = "\x1b[?25l", "\x1b[?25h"
	stopWrapping, wrap     = "\x1b[?7l", "\x1b[?7h"
	clearAll               = "\x1b[2J"
	clearOfBelow           = "\x1b[J"
	toTheTop               = "\x1b[H"
	nextRow                = "\r\n"
)

// frameOf draws rows from the top of a terminal, which has at least one row more. Commands such as clearAll go before. The frame leaves the
// terminal as it was: the cursor below the rows, visible, lines wrapped.
func frameOf(commands string, rows []string) string {
	var frame strings.Builder
	frame.WriteString(hideCursor + stopWrapping + commands + toTheTop)
	for _, row := range rows {
		frame.WriteString(clearOfRight + row + nextRow) // behind a row of the full width it would clear the last character
	}
	frame.WriteString(clearOfBelow + wrap + showCursor)
	return frame.String()
}

const endOfColour = "\x1b[0m"

// colours finds what begins or ends a colour.
var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// fold breaks a text into rows of a width, and cuts it after so many rows. Colours take no room and end with their row.
func fold(text string, width, most int) []string {
	var rows []string
	var row strings.Builder
	taken, coloured := 0, false
	endRow := func() {
		if coloured {
			row.WriteString(endOfColour)
		}
		rows = append(rows, row.String())
		row.Reset()
		taken, coloured = 0, false
	}
	for text != "" {
		if at := colours.FindStringIndex(text); at != nil && at[0] == 0 {
			row.WriteString(text[:at[1]])
			coloured = text[:at[1]] != endOfColour
			text = text[at[1]:]
			continue
		}
		_, size := utf8.DecodeRuneInString(text)
		if taken == width-1 && len(rows) == most-1 && utf8.RuneCountInString(colours.ReplaceAllString(text, "")) > 1 {
			row.WriteString("…")
			break
		}
		if taken == width {
			endRow()
		}
		row.WriteString(text[:size])
		taken++
		text = text[size:]
	}
	endRow()
	return rows
}
