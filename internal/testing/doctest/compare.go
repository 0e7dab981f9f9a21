package doctest

import (
	"fmt"
	"regexp"
	"strings"
)

// Anything stands for a part of a line that differs from run to run. On a line of its own it stands for any number of lines.
const Anything = "…"

var clock = regexp.MustCompile(`\b(\d{4}-\d\d-\d\d([T ]\d\d:\d\d:\d\d(\.\d+)?Z?)?|\d\d:\d\d(:\d\d(\.\d+)?)?)\b`)

// Compare returns an error unless a command has printed what a page shows. A date or time of day matches any other one of its form, but
// for its fractions of a second, and a time of day matches one with its date before it, as on the day before or after. [Anything] matches anything. Spaces at the end of a line and empty lines at the end of the text do not count.
func Compare(shown, printed string) error {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	for line := range strings.Lines(normal(shown)) {
		if strings.TrimSpace(line) == Anything {
			pattern.WriteString(`(?:.*\n)*`)
			continue
		}
		parts := strings.Split(line, Anything)
		for i, part := range parts {
			parts[i] = regexp.QuoteMeta(part)
		}
		pattern.WriteString(strings.Join(parts, ".*"))
	}
	pattern.WriteString(`\z`)
	matches, err := regexp.MatchString(pattern.String(), normal(printed))
	if err != nil {
		return err
	}
	if !matches {
		return fmt.Errorf("the page shows\n%s\nand this is printed\n%s", shown, printed)
	}
	return nil
}

var (
	fractions = regexp.MustCompile(`\.\d+`)
	dated     = regexp.MustCompile(`\b\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d)`)
	digit     = regexp.MustCompile(`\d`)
)

// normal returns a text with all times and dates replaced by constants.
func normal(text string) string {
	text = dated.ReplaceAllString(text, "$1")
	text = clock.ReplaceAllStringFunc(text, func(time string) string {
		return digit.ReplaceAllString(fractions.ReplaceAllString(time, ""), "0")
	})
	var lines strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, " \n")) {
		lines.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return lines.String()
}
