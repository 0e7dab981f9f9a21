package render

import (
	"strings"
	"unicode"
)

// mark ends a text that was cut.
const mark = "…"

// width is what r takes of a limit. Slack counts characters without saying which. UTF-16 units are the most that this can mean.
func width(r rune) int {
	if r > 0xffff {
		return 2
	}
	return 1
}

// units is the width of s.
func units(s string) int { return total(s, width) }

func total(s string, width func(rune) int) (sum int) {
	for _, r := range s {
		sum += width(r)
	}
	return sum
}

// escapedWidth is the width of r after escape.
func escapedWidth(r rune) int {
	switch r {
	case '&':
		return len("&amp;")
	case '<', '>':
		return len("&lt;")
	}
	return width(r)
}

// split returns the longest head of s that is at most limit wide, and the rest.
func split(s string, limit int, width func(rune) int) (head, rest string) {
	for i, r := range s {
		if limit -= width(r); limit < 0 {
			return s[:i], s[i:]
		}
	}
	return s, ""
}

// shorten returns s, cut to limit with a mark if it is wider.
func shorten(s string, limit int, width func(rune) int) string {
	if _, rest := split(s, limit, width); rest == "" {
		return s
	}
	head, _ := split(s, limit-1, width)
	return strings.TrimRightFunc(head, unicode.IsSpace) + mark
}

// cut returns s, cut to limit characters with a mark if it is longer.
func cut(s string, limit int) string { return shorten(s, limit, width) }

// fit returns s escaped for Slack, cut to limit characters with a mark if it is longer. An escape is never cut apart.
func fit(s string, limit int) string { return escape(shorten(s, limit, escapedWidth)) }

// fits reports whether fit would return s uncut.
func fits(s string, limit int) bool {
	_, rest := split(s, limit, escapedWidth)
	return rest == ""
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// escape makes plain text of what would command Slack: mentions, links, dates.
func escape(s string) string { return escaper.Replace(s) }
