package event

import "strings"

// StableID lets tests outside the package compute the ID that stands for an unusable one.
func StableID(id string) string { return stableID(id) }

// Heading is what QuickTitle has to return for the event.
func (e Event) Heading() string {
	if visible(e.Title) {
		return strings.TrimSpace(e.Title)
	}
	return firstLine(e.Text)
}

// Violations is what CloudEvents 1.0 forbids of attributes.
func Violations(given map[string]string) []string { return attributes(given).violations() }
