package limits

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Mute is a live limit of 0 with an end, for a path and everything below it. No guarantee breaks it.
type Mute struct {
	Path   string    `json:"path"` // or a pattern
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`    // author; "" if unknown
	Spare  string    `json:"spare,omitempty"` // severity of the events that it lets through; "" for none
	Every  string    `json:"every,omitempty"` // the schedule that began it; "" for none
	Rule   string    `json:"rule,omitempty"`  // name of the schedule
	Begin  time.Time `json:"begin"`
	Until  time.Time `json:"until"`

	Generation int64  `json:"generation"` // of the bucket; the begin has the revision
	Revision   uint64 `json:"revision"`
}

// LongestMute is the longest duration of one mute.
const LongestMute = 30 * 24 * time.Hour

// Covers reports whether the mute applies to a category, except for the events that it spares.
func (m *Mute) Covers(category string) bool {
	pattern, err := event.ParsePattern(m.Path)
	for prefix := range event.Prefixes(category) {
		if m.Path == event.Everything || err == nil && pattern.Matches(prefix) {
			return true
		}
	}
	return false
}

// Spares reports whether the mute lets events of a severity through.
func (m *Mute) Spares(severity event.Severity) bool {
	return m.Spare != "" && m.Spare == string(severity)
}

// Name identifies the mute among the mutes in force: no two of them have equal paths and schedules.
func (m *Mute) Name() string { return strings.TrimSpace(m.Path + " " + m.Rule) }

// ID identifies the mute among all mutes. A mute that replaces an earlier mute has another ID.
func (m *Mute) ID() string { return m.position().ID() }

func (m *Mute) position() Position { return Position{m.Generation, m.Revision} }

// In reports whether the mute, or a newer mute in its place, is in force with these limits. With limits that are older than the mute it
// reports true, since they do not know the mute.
func (m *Mute) In(rules Ruleset) bool {
	inPlace := func(other *Mute) bool {
		return other.Generation == m.Generation && other.Name() == m.Name() && other.Revision >= m.Revision
	}
	return slices.ContainsFunc(rules.Mutes, inPlace) || rules.Position.Before(m.position())
}

// Text returns the mute as one line, which [ParseMute] reads.
func (m *Mute) Text() string {
	text, _ := json.Marshal(m) //nolint:errchkjson // it has texts, numbers and times of this century
	return string(text)
}

// ParseMute reverses [Mute.Text]. It returns nil for another text.
func ParseMute(text string) *Mute {
	m := new(Mute)
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), m) != nil {
		return nil
	}
	return m
}
