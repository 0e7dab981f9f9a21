package config_test

import (
	"crypto/tls"
	"path/filepath"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestTLSClientConfig(t *testing.T) {
	t.Parallel()
	certificate, key := testkit.Certificate(t, "notifier")
	_, otherKey := testkit.Certificate(t, "notifier")

	if got, err := (config.TLS{}).ClientConfig(); got != nil || err != nil {
		t.Errorf("without files: got %v, %v, want neither", got, err)
	}

	files := config.TLS{CAFile: certificate, CertFile: certificate, KeyFile: key}
	got := testkit.Must(files.ClientConfig())(t)
	if got.RootCAs == nil || len(got.Certificates) != 1 || got.MinVersion != tls.VersionTLS12 || got.InsecureSkipVerify {
		t.Errorf("got %+v, want an authority, a certificate and TLS 1.2", got)
	}

	for name, files := range map[string]config.TLS{
		"authorities absent":    {CAFile: filepath.Join(t.TempDir(), "absent")},
		"authorities not PEM":   {CAFile: write(t, "text")},
		"key of another":        {CertFile: certificate, KeyFile: otherKey},
		"certificate without a": {CertFile: certificate},
	} {
		_, err := files.ClientConfig()
		testkit.Fails(t, name, err, nil)
	}
}
