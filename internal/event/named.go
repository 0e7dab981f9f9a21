package event

import (
	"slices"
	"strings"
)

// Named returns the events that an ID may refer to: a producer's ID of any length and with any characters or an ID shown to people (see
// ShownID). Only the IDs and the parts are set. All conversions from a producer's ID to the identity of workers are here.
func Named(id string) []Event {
	named := []Event{{ID: stableID(id)}}
	if slash := strings.LastIndexByte(id, '/'); slash > 0 {
		named = append(named, Event{ID: stableID(id[:slash]), Part: id[slash+1:]})
	}
	if sent := inHeader(id); sent != "" && sent != id {
		named = append(named, Event{ID: stableID(sent)})
	}
	return named
}

// ShownAs returns the forms of the events of an ID that people may see, without duplicates.
func ShownAs(id string) []string {
	var shown []string
	for _, e := range Named(id) {
		if text := e.ShownID(); !slices.Contains(shown, text) {
			shown = append(shown, text)
		}
	}
	return shown
}

// KeyNamed returns the form of a producer's key in events.
func KeyNamed(text string) string { return stableID(text) }

// OverHTTP returns the ID of an event that came through notifier ingest with an ID of its client: the category precedes it.
func OverHTTP(category, id string) string { return stableID(category + "/" + id) }

// inHeader returns the form of an ID after transport in a header: client libraries replace a line feed by a blank, and trim white space at
// both ends.
func inHeader(id string) string {
	return strings.TrimSpace(strings.NewReplacer("\r", " ", "\n", " ").Replace(id))
}
