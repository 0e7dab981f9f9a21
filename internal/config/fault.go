package config

import (
	"fmt"
	"regexp"
	"strings"
)

// maxShown is the number of bytes of a value that a fault shows.
const maxShown = 200

// Fault is one thing wrong with the settings.
type Fault struct {
	Variable string // its full name
	Value    string // as set, cut where it is long; "(hidden)" for a secret; "" where it is not set
	Problem  string // what is wrong and the form expected
}

// String returns one line.
func (f Fault) String() string {
	switch f.Value {
	case "":
		return f.Variable + ": " + f.Problem
	case mask:
		return f.Variable + "=" + mask + ": " + f.Problem
	default:
		return fmt.Sprintf("%s=%q: %s", f.Variable, f.Value, f.Problem)
	}
}

// Faults is every fault of the settings. A Faults that is returned as an error is not empty.
type Faults []Fault

// Error returns one line for each fault.
func (f *Faults) Error() string {
	lines := make([]string, len(*f))
	for i, fault := range *f {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

// misplaced matches likely secrets in variables that should hold none: a URL with credentials, a webhook, a Slack token.
var misplaced = regexp.MustCompile(`://.*@|hooks\.slack\.com|xox[a-z]-|xapp-`)

// quotedText matches what %q prints.
var quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// shown returns what a fault may show of a setting's value.
func (s *setting) shown() string {
	if s.Secret && s.text != "" {
		return mask
	}
	return shown(s.text)
}

// shown returns what a fault may show of a value that is no secret.
func shown(value string) string {
	if misplaced.MatchString(value) {
		return mask
	}
	if len(value) > maxShown {
		return value[:maxShown] + "…"
	}
	return value
}
