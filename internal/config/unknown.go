package config

import (
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
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
func (v *variables) checkUnknown() {
	var known []string
	for _, s := range v.all {
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
		nearest := slices.MinFunc(known, func(a, b string) int { return levenshtein.Distance(name, a, nil) - levenshtein.Distance(name, b, nil) })
		v.faults = append(v.faults, Fault{name, mask, "no such setting; expected perhaps " + nearest})
	}
}
