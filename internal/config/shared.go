package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Shared returns the settings that must be equal on all workers of a deployment, by variable. Equal values have equal texts. The map
// contains no secret.
func (c Config) Shared() map[string]string { return maps.Clone(c.shared) }

// SharedHash returns a hash of the shared settings. Workers compare their hashes without revealing their settings.
func (c Config) SharedHash() string {
	var text strings.Builder
	for _, variable := range slices.Sorted(maps.Keys(c.shared)) {
		fmt.Fprintf(&text, "%s=%q\n", variable, c.shared[variable])
	}
	return shortHash(text.String())
}

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

func (l *loader) shared() map[string]string {
	shared := make(map[string]string)
	for _, s := range l.settings {
		if s.shared && !s.Secret {
			shared[s.Variable] = s.sharedText()
		}
	}
	return shared
}

// sharedText returns the value of a setting. Lists are sorted, since their order has no meaning. A text of several lines, such as a template,
// is replaced by its hash.
func (s *setting) sharedText() string {
	switch value := s.field.Interface().(type) {
	case time.Duration, int, int64, bool:
		return fmt.Sprint(value)
	case string:
		if strings.Contains(value, "\n") {
			return "sha256 " + shortHash(value)
		}
		return value
	case fmt.Stringer:
		return value.String()
	}
	entries := strings.Split(s.text, ",")
	for i, entry := range entries {
		path, value, _ := strings.Cut(entry, "=")
		entries[i] = strings.TrimSpace(path)
		if value = strings.TrimSpace(value); value != "" {
			entries[i] += "=" + value
		}
	}
	slices.Sort(entries)
	return strings.Join(entries, ",")
}
