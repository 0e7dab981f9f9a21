// Package plain makes external texts safe to show: in Slack, on a terminal, in a header, in a log.
//
// Its functions have no state, may run at once and cannot fail: for any bytes they return valid UTF-8.
package plain

import (
	"strings"
	"unicode"

	"github.com/agext/levenshtein"
)

// Text returns s as valid UTF-8 without control characters except line feed and tab, and without zero-width characters that change the
// display of their neighbours or make different texts look equal: marks of direction, zero-width spaces, tags. A joiner stays only between
// two characters that it may shape. Line ends become line feeds.
func Text(s string) string {
	if isPlain(s) {
		return s
	}
	s = strings.ToValidUTF8(s, string(unicode.ReplacementChar))
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t', isJoiner(r):
			return r
		case r == '\r':
			return '\n'
		case unicode.IsControl(r), unicode.Is(hidden, r):
			return -1
		}
		return r
	}, s)
	if strings.ContainsFunc(s, isJoiner) {
		s = withoutLooseJoiners(s)
	}
	return s
}

// hidden are the invisible characters, except joiners and the variation selectors of emoji.
var hidden = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x00ad, Hi: 0x00ad, Stride: 1}, // soft hyphen
		{Lo: 0x034f, Hi: 0x034f, Stride: 1}, // combining grapheme joiner
		{Lo: 0x061c, Hi: 0x061c, Stride: 1}, // mark of direction
		{Lo: 0x115f, Hi: 0x1160, Stride: 1}, // fillers
		{Lo: 0x17b4, Hi: 0x17b5, Stride: 1}, // vowels without a form
		{Lo: 0x180b, Hi: 0x180f, Stride: 1}, // selectors and a separator
		{Lo: 0x200b, Hi: 0x200b, Stride: 1}, // zero-width space
		{Lo: 0x200e, Hi: 0x200f, Stride: 1}, // marks of direction
		{Lo: 0x202a, Hi: 0x202e, Stride: 1}, // embeddings and overrides of direction
		{Lo: 0x2060, Hi: 0x206f, Stride: 1}, // word joiner, invisible operators, isolates
		{Lo: 0x3164, Hi: 0x3164, Stride: 1}, // filler
		{Lo: 0xfeff, Hi: 0xfeff, Stride: 1}, // byte order mark
		{Lo: 0xffa0, Hi: 0xffa0, Stride: 1}, // filler
		{Lo: 0xfff9, Hi: 0xfffb, Stride: 1}, // annotations
	},
	R32: []unicode.Range32{
		{Lo: 0x1bca0, Hi: 0x1bca3, Stride: 1}, // controls of shorthand
		{Lo: 0x1d173, Hi: 0x1d17a, Stride: 1}, // controls of music
		{Lo: 0xe0000, Hi: 0xe0fff, Stride: 1}, // tags and further selectors
	},
	LatinOffset: 1,
}

// isJoiner reports whether r keeps characters together or apart: U+200C and U+200D.
func isJoiner(r rune) bool { return r == '\u200c' || r == '\u200d' }

// withoutLooseJoiners removes joiners, except between two characters of a joining script or of an emoji.
func withoutLooseJoiners(s string) string {
	runes := []rune(s)
	kept := make([]rune, 0, len(runes))
	for i, r := range runes {
		if isJoiner(r) && (len(kept) == 0 || !isShaped(kept[len(kept)-1]) || i+1 == len(runes) || !isShaped(runes[i+1])) {
			continue
		}
		kept = append(kept, r)
	}
	return string(kept)
}

// isShaped reports whether a joiner may change the display of r. The letters of the listed scripts do not join.
func isShaped(r rune) bool {
	return r > unicode.MaxLatin1 && unicode.In(r, unicode.L, unicode.M, unicode.S) &&
		!unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul)
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
	if len(s) > most && isLine(s[:most+1]) { // the rest of a long text is not needed
		return s[:most-1] + "…"
	}
	return Cut(Line(s), most)
}

// Cut returns s, cut to a number of characters with "…" as the last one if it has more.
func Cut(s string, most int) string {
	count, end := 0, 0
	for at := range s {
		switch count++; {
		case count == most:
			end = at
		case count > most:
			return s[:end] + "…"
		}
	}
	return s
}

// TitleLength is the number of characters in a Title.
const TitleLength = 80

// Title returns the title of an event for counts of drops, reports, digests and the journal: Short(s, TitleLength).
func Title(s string) string { return Short(s, TitleLength) }

// isLine reports whether s is words of printable ASCII with single blanks between, the form of most lines.
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

// isPlain reports whether s is printable ASCII in lines, the form of most texts. Text returns it unchanged.
func isPlain(s string) bool {
	for _, c := range []byte(s) {
		if (c < ' ' || c > '~') && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}

// Header returns text without control characters, so that it fits into one line of a header. One space replaces each run of control
// characters.
func Header(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
}

// Nearest returns the name nearest to a text, if they differ in few characters: one, and one more for each four bytes of the text, but not in
// all. It returns "" if there is none or the text itself is a name.
func Nearest(text string, names []string) string {
	const always, each = 1, 4
	best, least := "", always+len(text)/each+1
	for _, name := range names {
		if distance := levenshtein.Distance(text, name, nil); distance < min(least, max(len(text), len(name))) {
			best, least = name, distance
		}
	}
	if best == text {
		return ""
	}
	return best
}
