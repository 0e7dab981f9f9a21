package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Shared has the settings that must be equal on all workers of a deployment, by variable. Equal values have equal texts, but lists are as they
// are written. It contains no secret.
type Shared map[string]string

// Hash returns a hash of the settings. Workers compare their hashes without revealing their settings.
func (s Shared) Hash() string {
	var text strings.Builder
	for _, variable := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&text, "%s=%q\n", variable, s[variable])
	}
	return shortHash(text.String())
}

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

func sharedOf(all []*setting) Shared {
	shared := make(Shared)
	for _, s := range all {
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
	case time.Duration:
		return model.Duration(value).String() // as settings have it: without fractions
	case int, int64, bool:
		return fmt.Sprint(value)
	case string:
		if strings.Contains(value, "\n") {
			return "sha256 " + shortHash(value)
		}
		return value
	case limits.Limit:
		if value == (limits.Limit{}) {
			return "none"
		}
		return value.String()
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
