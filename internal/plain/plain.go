// Package plain makes texts of strangers fit to be shown: in Slack, on a terminal, in a header, in a log.
//
// Its functions hold no state, may run at once and cannot fail: whatever bytes come in, valid UTF-8 goes out.
package plain

import (
	"strings"
	"unicode"
)

// Text returns s as valid UTF-8 without control characters other than line feed and tab, and without the marks that make a
// terminal or a browser show text in another order than it is written. Line ends become line feeds.
func Text(s string) string {
	if isPlain(s) {
		return s
	}
	s = strings.ToValidUTF8(s, string(unicode.ReplacementChar))
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case r == '\r':
			return '\n'
		case unicode.IsControl(r), '\u202a' <= r && r <= '\u202e', '\u2066' <= r && r <= '\u2069':
			return -1
		}
		return r
	}, s)
}

// Line returns Text(s) on one line, each run of white space and line ends as one blank.
func Line(s string) string {
	if isLine(s) {
		return s
	}
	return strings.Join(strings.Fields(Text(s)), " ")
}

// Short returns Line(s), cut to a number of characters with "…" as the last one if it has more.
func Short(s string, most int) string {
	line, count, end := Line(s), 0, 0
	for at := range line {
		switch count++; {
		case count == most:
			end = at
		case count > most:
			return line[:end] + "…"
		}
	}
	return line
}

// TitleLength is how many characters Title keeps.
const TitleLength = 80

// Title returns the title of an event as counts of drops, reports, digests and the journal keep it: Short(s, TitleLength).
func Title(s string) string { return Short(s, TitleLength) }

// isLine reports whether s is words of printable ASCII with a blank between, as most lines are.
func isLine(s string) bool {
	before := byte(' ')
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == ' ' && before == ' ' {
			return false
		}
		before = c
	}
	return s == "" || before != ' '
}

// isPlain reports whether s is printable ASCII in lines, as most texts are: Text would leave it as it is.
func isPlain(s string) bool {
	for _, c := range []byte(s) {
		if (c < ' ' || c > '~') && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}
