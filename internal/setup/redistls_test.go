package setup

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestDialTLS dials a server whose certificate is valid for 127.0.0.1.
func TestDialTLS(t *testing.T) {
	t.Parallel()
	certificate, key := testkit.Certificate(t, "server")
	client := testkit.Must(config.TLS{CAFile: certificate}.ClientConfig())(t)
	server := testkit.Must(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{testkit.Must(tls.LoadX509KeyPair(certificate, key))(t)},
	}))(t)
	defer func() { _ = server.Close() }()
	go func() {
		for {
			connection, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, connection) // until the client has closed it
			_ = connection.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(server.Addr().String())
	for name, test := range map[string]struct {
		url, dialled string
		roots        *x509.CertPool
		works        bool
	}{
		"valid for the dialled host":  {"redis.example", "127.0.0.1", client.RootCAs, true},
		"valid for a host of the URL": {"127.0.0.1", "localhost", client.RootCAs, true},
		"valid for another host":      {"redis.example", "localhost", client.RootCAs, false},
		"of an unknown authority":     {"127.0.0.1", "127.0.0.1", x509.NewCertPool(), false},
	} {
		dial := dialTLS(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: test.roots}, testkit.Patience, []string{"first.example:6379", test.url + ":6379"})
		connection, err := dial(t.Context(), "tcp", net.JoinHostPort(test.dialled, port))
		testkit.Equal(t, err == nil, test.works, "whether a certificate %s works (%v)", name, err)
		if err == nil {
			testkit.NoError(t, connection.Close())
		}
	}
}
