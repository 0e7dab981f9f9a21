package event

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxExcerptBytes is the longest excerpt of a producer's value in a fault.
const maxExcerptBytes = 40

// mark is the end of a truncated text.
const mark = "…"

// excerpt quotes s for a fault, truncated with a mark if it is long.
func excerpt(s string) string {
	if len(s) <= maxExcerptBytes {
		return strconv.Quote(s)
	}
	return strconv.Quote(cut(s, maxExcerptBytes)) + mark
}

// cut returns the longest prefix of s with at most size bytes and no split rune.
func cut(s string, size int) string {
	if len(s) <= size {
		return s
	}
	for size > 0 && !utf8.RuneStart(s[size]) {
		size--
	}
	return s[:size]
}

// shortened returns s, truncated with a mark if it has more than size bytes.
func shortened(s string, size int) string {
	if beginning := cut(s, size); len(beginning) < len(s) {
		return beginning + mark
	}
	return s
}

// printable returns s on one line, as valid UTF-8, with every unprintable rune replaced.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\r', r == '\t':
			return ' '
		case strconv.IsPrint(r):
			return r
		default:
			return utf8.RuneError
		}
	}, s)
}

// visible reports whether s has a visible rune: neither a blank nor invisible.
func visible(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsSpace(r) && !isInvisible(r) })
}

// isInvisible reports whether r shows nothing: a control character, a format character such as a zero-width joiner, a filler, a selector of a
// variant, or the Braille pattern without dots.
func isInvisible(r rune) bool {
	const noDots = '\u2800'
	return r == noDots || unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// firstVisible returns the first of texts that is visible, "" if none is.
func firstVisible(texts ...string) string {
	if i := slices.IndexFunc(texts, visible); i >= 0 {
		return texts[i]
	}
	return ""
}

// firstLine returns the first visible line of text without the blanks around it, "" if there is none.
func firstLine(text string) string {
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if visible(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
