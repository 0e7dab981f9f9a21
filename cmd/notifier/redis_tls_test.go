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

// authority signs certificates of a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.file, _ = a.issue("authority", a.cert)
	return a
}

// issue writes a certificate and its key, and returns the names of the files.
func (a *authority) issue(name string, template *x509.Certificate) (certFile, keyFile string) {
	a.t.Helper()
	key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(a.t)
	parent, signer := a.cert, a.key
	if a.key == nil {
		parent, signer, a.key = template, key, key
	}
	der := testkit.Must(x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer))(a.t)
	keyDER := testkit.Must(x509.MarshalECPrivateKey(key))(a.t)
	write := func(suffix, kind string, bytes []byte) string {
		file := filepath.Join(a.dir, name+suffix)
		testkit.NoError(a.t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return file
	}
	return write(".crt", "CERTIFICATE", der), write(".key", "EC PRIVATE KEY", keyDER)
}

func (a *authority) leaf(name string, serial int64) (certFile, keyFile string) {
	return a.issue(name, &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// TestRedisOverTLS runs the scripts on a server that wants a client certificate.
func TestRedisOverTLS(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority(t), newAuthority(t)
	serverCert, serverKey := ours.leaf("server", 2)
	clientCert, clientKey := ours.leaf("client", 3)
	strangerCert, strangerKey := others.leaf("stranger", 4)
	port := servertest.ReservePort(t)
	servertest.StartRedis(t, "--tls-port", strconv.Itoa(port), "--tls-cert-file", serverCert, "--tls-key-file", serverKey,
		"--tls-ca-cert-file", ours.file, "--tls-auth-clients", "yes")
	tree := testkit.Must(limits.NewTree(limits.Plan{Global: limits.Limits{{Count: 1, Window: time.Hour}}}))(t)
	for name, c := range map[string]struct {
		tls   config.TLS
		works bool
	}{
		"a client certificate":           {config.TLS{CAFile: ours.file, CertFile: clientCert, KeyFile: clientKey}, true},
		"no client certificate":          {config.TLS{CAFile: ours.file}, false},
		"another authority's client":     {config.TLS{CAFile: ours.file, CertFile: strangerCert, KeyFile: strangerKey}, false},
		"a server of another authority":  {config.TLS{CAFile: others.file, CertFile: clientCert, KeyFile: clientKey}, false},
		"an authority that nobody names": {config.TLS{CertFile: clientCert, KeyFile: clientKey}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := config.Redis{
				URL: config.NewSecret(fmt.Sprintf("rediss://127.0.0.1:%d/0", port)), TLS: c.tls, Prefix: "tls", Timeout: patience,
			}
			client := testkit.Must(newRedisClient(settings, slog.New(slog.DiscardHandler)))(t)
			defer func() { _ = client.Close() }()
			store := newStore(client, settings, throttle.Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour})
			if err := store.SelfTest(t.Context(), selfTests()...); (err == nil) != c.works {
				t.Errorf("a rehearsal: %v", err)
			}
		})
	}
}
