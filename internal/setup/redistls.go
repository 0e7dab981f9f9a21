package setup

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"time"
)

// dialTLS returns a dialer for the servers of a cluster, for Sentinels and for their Redis servers. The certificate of a server must be valid for the
// host that is dialled or for a host of the URL. A cluster may list its servers by addresses that their certificates do not contain. The client
// library would accept only the first host of the URL, from each server.
func dialTLS(config *tls.Config, timeout time.Duration, addresses []string) func(ctx context.Context, network, address string) (net.Conn, error) {
	var hosts []string
	for _, address := range addresses {
		if host, _, err := net.SplitHostPort(address); err == nil {
			hosts = append(hosts, host)
		}
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		of := config.Clone()
		of.ServerName, of.InsecureSkipVerify = host, true // VerifyConnection verifies
		of.VerifyConnection = func(state tls.ConnectionState) error {
			return verify(state.PeerCertificates, config.RootCAs, append([]string{host}, hosts...))
		}
		dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: timeout}, Config: of}
		return dialer.DialContext(ctx, network, address)
	}
}

// verify returns nil if a server's certificates are valid for one of the hosts, and otherwise the error about the first host.
func verify(certificates []*x509.Certificate, roots *x509.CertPool, hosts []string) (first error) {
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, intermediate := range certificates[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	for _, options.DNSName = range hosts {
		_, err := certificates[0].Verify(options)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}
