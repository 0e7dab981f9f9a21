// Package certificate finds certificates that end soon.
//
// [EndingSoon] holds no state. It may be called concurrently.
package certificate

import (
	"crypto/tls"
	"fmt"
	"time"
)

// EndingSoon returns when a certificate has ended, or ends within a week; nil: it is valid for longer. Certificates of a few days are renewed
// late: for these it is the last third of their time.
func EndingSoon(pair tls.Certificate) error {
	soon, verb := min(7*24*time.Hour, pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)/3), "ends"
	switch left := time.Until(pair.Leaf.NotAfter); {
	case left > soon:
		return nil
	case left < 0:
		verb = "ended"
	}
	return fmt.Errorf("the certificate %s at %s", verb, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
}
