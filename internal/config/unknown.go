package config

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// serviceLinks matches NAME=value as Kubernetes injects it for every service whose name starts with "notifier", and as Docker's
// links did. A bare …_PORT matches only if the value is a URL: NOTIFIER_HTTP_PORT=8080 is a mistake.
var serviceLinks = regexp.MustCompile(`^NOTIFIER_(?:[A-Z0-9_]+_)?(?:` +
	`SERVICE_HOST=.*` +
	`|SERVICE_PORT(?:_[A-Z0-9_]+)?=[0-9]*` +
	`|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP))?=(?:tcp|udp|sctp)://.*` +
	`|PORT_[0-9]+_(?:TCP|UDP|SCTP)_(?:PROTO|PORT|ADDR)=.*` +
	`)$`)

// checkUnknown adds a fault for each variable that has the prefix and is no setting. The fault hides the value, which may be a
// secret under a misspelt name.
func (l *loader) checkUnknown() {
	var known []string
	for _, s := range l.settings {
		known = append(known, s.Variable)
		if s.Secret {
			known = append(known, s.Variable+fileSuffix)
		}
	}
	for _, variable := range slices.Sorted(slices.Values(os.Environ())) {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, prefix+"_") || value == "" || slices.Contains(known, name) || serviceLinks.MatchString(variable) {
			continue
		}
		l.faults = append(l.faults, Fault{name, mask, fmt.Sprintf("no such setting; expected perhaps %s", nearest(name, known))})
	}
}

// nearest returns the known name with the smallest distance to name, the first of several.
func nearest(name string, known []string) string {
	return slices.MinFunc(known, func(a, b string) int { return distance(name, a) - distance(name, b) })
}

// distance counts the bytes to insert, delete or replace to turn a into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances of the prefix of a seen so far to each prefix of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
