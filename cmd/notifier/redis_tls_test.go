package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// authority writes a self-signed certificate for a server and for clients.
func authority(t *testing.T, name string) config.TLS {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	write := func(kind string, bytes []byte) string {
		file := filepath.Join(t.TempDir(), "file.pem")
		testkit.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return file
	}
	cert := write("CERTIFICATE", testkit.Must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t))
	return config.TLS{CAFile: cert, CertFile: cert, KeyFile: write("EC PRIVATE KEY", testkit.Must(x509.MarshalECPrivateKey(key))(t))}
}

// TestRedisOverTLS runs the scripts on a server that wants a client certificate.
func TestRedisOverTLS(t *testing.T) {
	t.Parallel()
	ours, others := authority(t, "ours"), authority(t, "others")
	port := servertest.ReservePort(t)
	servertest.StartRedis(t, "--tls-port", strconv.Itoa(port), "--tls-cert-file", ours.CertFile, "--tls-key-file", ours.KeyFile,
		"--tls-ca-cert-file", ours.CAFile, "--tls-auth-clients", "yes")
	tree := testkit.Must(limits.NewTree(limits.Plan{Global: limits.Limits{{Count: 1, Window: time.Hour}}}))(t)
	for name, test := range map[string]struct {
		tls   config.TLS
		works bool
	}{
		"a client certificate":           {ours, true},
		"no client certificate":          {config.TLS{CAFile: ours.CAFile}, false},
		"another authority's client":     {config.TLS{CAFile: ours.CAFile, CertFile: others.CertFile, KeyFile: others.KeyFile}, false},
		"a server of another authority":  {config.TLS{CAFile: others.CAFile, CertFile: ours.CertFile, KeyFile: ours.KeyFile}, false},
		"an authority that nobody names": {config.TLS{CertFile: ours.CertFile, KeyFile: ours.KeyFile}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := config.Redis{
				URL: config.NewSecret(fmt.Sprintf("rediss://127.0.0.1:%d/0", port)), TLS: test.tls, Prefix: "tls", Timeout: testkit.Patience,
			}
			client := testkit.Must(newRedisClient(settings, slog.New(slog.DiscardHandler)))(t)
			defer func() { _ = client.Close() }()
			store := newStore(client, settings, throttle.Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour})
			if err := store.SelfTest(t.Context(), selfTests()...); (err == nil) != test.works {
				t.Errorf("a rehearsal: %v", err)
			}
		})
	}
}
