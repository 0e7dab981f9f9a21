package plain

import "github.com/agext/levenshtein"

// Nearest returns the name nearest to a text, if they differ in few characters: one, and one more for each four bytes of the text. It
// returns "" if there is none or the text itself is a name.
func Nearest(text string, names []string) string {
	const always, each = 1, 4
	best, least := "", always+len(text)/each+1
	for _, name := range names {
		if distance := levenshtein.Distance(text, name, nil); distance < least {
			best, least = name, distance
		}
	}
	if best == text {
		return ""
	}
	return best
}
