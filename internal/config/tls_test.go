package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// writePair writes a self-signed certificate and its key.
func writePair(t *testing.T) (certificate, key string) {
	t.Helper()
	private := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	signed := testkit.Must(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))(t)
	encoded := testkit.Must(x509.MarshalPKCS8PrivateKey(private))(t)
	return write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))),
		write(t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})))
}

func TestTLSClientConfig(t *testing.T) {
	t.Parallel()
	certificate, key := writePair(t)
	_, otherKey := writePair(t)

	if got, err := (config.TLS{}).ClientConfig(); got != nil || err != nil {
		t.Errorf("without files: %v, %v", got, err)
	}

	files := config.TLS{CAFile: certificate, CertFile: certificate, KeyFile: key}
	if !files.IsSet() {
		t.Error("files are given, but IsSet is false")
	}
	got := testkit.Must(files.ClientConfig())(t)
	if got.RootCAs == nil || len(got.Certificates) != 1 || got.MinVersion != tls.VersionTLS12 || got.InsecureSkipVerify {
		t.Errorf("got %+v", got)
	}

	for name, files := range map[string]config.TLS{
		"authorities absent":    {CAFile: filepath.Join(t.TempDir(), "absent")},
		"authorities not PEM":   {CAFile: write(t, "text")},
		"key of another":        {CertFile: certificate, KeyFile: otherKey},
		"certificate without a": {CertFile: certificate},
	} {
		if got, err := files.ClientConfig(); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
