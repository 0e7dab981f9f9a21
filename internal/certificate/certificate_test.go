package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestEndingSoon(t *testing.T) {
	t.Parallel()
	now := time.Now()
	const day = 24 * time.Hour
	for _, test := range []struct {
		age, left time.Duration
		isSoon    bool
	}{{80 * day, 8 * day, false}, {80 * day, 6 * day, true}, {12 * time.Hour, 12 * time.Hour, false}, {17 * time.Hour, 7 * time.Hour, true}} {
		err := EndingSoon(tls.Certificate{Leaf: &x509.Certificate{NotBefore: now.Add(-test.age), NotAfter: now.Add(test.left)}})
		testkit.Equal(t, err != nil, test.isSoon, "%v after its begin, a certificate ends in %v", test.age, test.left)
	}
}
