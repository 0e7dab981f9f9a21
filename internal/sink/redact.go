package sink

import (
	"context"
	"errors"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/plain"
)

// redactor takes the secrets of one sink out of texts and errors.
type redactor struct{ replacer *strings.Replacer }

// newRedactor knows the token, and the webhook URL as a whole and in the parts that would give it away. The URL may be nil.
func newRedactor(token string, webhook *url.URL) redactor {
	secrets := []string{token}
	if webhook != nil {
		password, _ := webhook.User.Password()
		secrets = append(secrets, webhook.String(), webhook.RequestURI(), webhook.Path,
			webhook.EscapedPath(), webhook.RawQuery, path.Base(webhook.Path), password)
	}
	// The longest first, since a replacer takes the first that fits.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, secret := range slices.Compact(secrets) {
		if strings.Trim(secret, "/.") != "" {
			pairs = append(pairs, secret, "[redacted]")
		}
	}
	return redactor{strings.NewReplacer(pairs...)}
}

// text returns s without secrets, on one line, cut to limit characters.
func (r redactor) text(s string, limit int) string {
	return cut(plain.Line(r.replacer.Replace(s)), limit)
}

// error returns err without secrets. Of its chain only the errors of the context are kept, for errors.Is: any other error
// could be printed by its finder.
func (r redactor) error(err error) error {
	plain := redactedError{text: r.replacer.Replace(err.Error())}
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, cause) {
			plain.cause = cause
		}
	}
	return plain
}

type redactedError struct {
	text  string
	cause error // may be nil
}

func (e redactedError) Error() string { return e.text }
func (e redactedError) Unwrap() error { return e.cause }
