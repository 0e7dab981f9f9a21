package screen

import (
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// drawable returns the terminal behind an output, if it understands control sequences.
func drawable(out io.Writer) (file *os.File, found bool) {
	file, isFile := out.(*os.File)
	return file, isFile && IsTerminal(file) && os.Getenv("TERM") != "dumb"
}

// sizeOf returns the size of a terminal.
func sizeOf(file *os.File) (width, height int) {
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24 // the usual size
	}
	return width, height
}

// Control sequences of a frame.
const (
	hideCursor, showCursor = "\x1b[?25l", "\x1b[?25h"
	stopWrapping, wrap     = "\x1b[?7l", "\x1b[?7h"
	clearAll               = "\x1b[2J"
	clearOfBelow           = "\x1b[J"
	clearOfRight           = "\x1b[K"
	toTheTop               = "\x1b[H"
	nextRow                = "\r\n"
	endOfColour            = "\x1b[0m"
)

// colours matches what begins or ends a colour.
var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// Fold breaks a text into rows of a width, and cuts it after a number of rows. Colours have no width and end with their row.
func Fold(text string, width, most int) []string {
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
