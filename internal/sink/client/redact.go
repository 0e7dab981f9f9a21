package client

import (
	"context"
	"errors"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/plain"
)

// Redactor removes the secrets of one sink from texts and errors.
type Redactor struct{ replacer *strings.Replacer }

// NewRedactor returns a redactor of a token and of a secret URL, whole and in the parts that would reveal it. The token may be
// empty and the URL nil.
func NewRedactor(token string, secret *url.URL) Redactor {
	secrets := []string{token}
	if secret != nil {
		password, _ := secret.User.Password()
		secrets = append(secrets, secret.String(), secret.RequestURI(), secret.Path,
			secret.EscapedPath(), secret.RawQuery, path.Base(secret.Path), password)
	}
	// The longest first, since a replacer takes the first match.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, secret := range slices.Compact(secrets) {
		if strings.Trim(secret, "/.") != "" {
			pairs = append(pairs, secret, "[redacted]")
		}
	}
	return Redactor{strings.NewReplacer(pairs...)}
}

// Text returns s without secrets, on one line, cut to limit characters.
func (r Redactor) Text(s string, limit int) string { return plain.Short(r.replacer.Replace(s), limit) }

// Error returns err without secrets. It keeps only the errors of the context, for errors.Is: any other error in the chain
// could be printed.
func (r Redactor) Error(err error) error {
	redacted := redactedError{text: r.replacer.Replace(err.Error())}
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, cause) {
			redacted.cause = cause
		}
	}
	return redacted
}

type redactedError struct {
	text  string
	cause error // may be nil
}

func (e redactedError) Error() string { return e.text }
func (e redactedError) Unwrap() error { return e.cause }
