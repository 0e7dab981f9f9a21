package event

import (
	"slices"
	"strings"
)

// Named returns the events that somebody may mean by an ID: an ID as its producer gave it, whatever its length and its characters, or an
// ID as people are shown it (see ShownID). Only the IDs and the parts are set. This is the one place that leads from a producer's ID to
// the identity that workers use.
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

// ShownAs returns the IDs as which people may be shown the events that somebody means by an ID, without repetitions.
func ShownAs(id string) []string {
	var shown []string
	for _, e := range Named(id) {
		if text := e.ShownID(); !slices.Contains(shown, text) {
			shown = append(shown, text)
		}
	}
	return shown
}

// OverHTTP is the ID of an event of a category that came through notifier ingest, if its client gave it the ID: there the category, which
// its token allows, comes first.
func OverHTTP(category, id string) string { return stableID(category + "/" + id) }

// inHeader is what arrives of an ID that a producer sends in a header: client libraries send a line feed as a blank, and drop white space
// at both ends.
func inHeader(id string) string {
	return strings.TrimSpace(strings.NewReplacer("\r", " ", "\n", " ").Replace(id))
}
