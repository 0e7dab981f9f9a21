package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificate writes a self-signed certificate and its key to files. A server at 127.0.0.1, a client and an authority may use it for a month.
func Certificate(t testing.TB, name string) (certificate, key string) {
	t.Helper()
	return CertificateUntil(t, name, time.Now().Add(30*24*time.Hour))
}

// CertificateUntil is Certificate for a certificate that ends at another time.
func CertificateUntil(t testing.TB, name string, end time.Time) (certificate, key string) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: end.Add(-60 * 24 * time.Hour), NotAfter: end, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	private := Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	write := func(kind string, bytes []byte) string {
		file := filepath.Join(t.TempDir(), "file.pem")
		NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return file
	}
	signed := Must(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))(t)
	return write("CERTIFICATE", signed), write("PRIVATE KEY", Must(x509.MarshalPKCS8PrivateKey(private))(t))
}
