package config

import (
	"fmt"
	"io"
	"log/slog"
)

const mask = "(hidden)"

// Secret is a text that must not be shown. Printed with any verb, logged or marshalled, a Secret shows only whether it is set.
// The zero Secret is "".
type Secret struct {
	// Behind a pointer, since fmt prints unexported fields without calling any method.
	text *string
}

// NewSecret hides text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{&text}
}

// Reveal returns the text. The caller may pass it to its server, and nowhere else.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsSet reports whether the text is other than "".
func (s Secret) IsSet() bool { return s.text != nil }

// String returns "(hidden)" if the secret is set, and "" if it is not.
func (s Secret) String() string {
	if s.IsSet() {
		return mask
	}
	return ""
}

// Format prints what String returns, whatever the verb.
func (s Secret) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, s.String()) }

// LogValue logs what String returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns what String returns.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
