package plain

import "strings"

// Header returns text without control characters, so that it fits into one line of a header. One space replaces each run of control
// characters.
func Header(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
}
