package ingest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"
)

// TLSFiles are the files of a server with TLS, all in PEM. Without a CertFile there is no TLS. With a ClientCAFile each client needs a
// certificate of one of these authorities in addition to its token.
type TLSFiles struct{ CertFile, KeyFile, ClientCAFile string }

// certificates is the TLS configuration in force.
type certificates struct{ config atomic.Pointer[tls.Config] }

func (c *certificates) watch(files TLSFiles) *watched {
	paths := []string{files.CertFile, files.KeyFile}
	if files.ClientCAFile != "" {
		paths = append(paths, files.ClientCAFile)
	}
	return &watched{what: "the certificate", paths: paths, take: c.take}
}

func (c *certificates) take(contents [][]byte) error {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if len(contents) > 2 {
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(contents[2]) {
			return errors.New("the file of authorities for client certificates holds no certificate")
		}
	}
	c.config.Store(config)
	return nil
}

// server returns the configuration of the listener: each connection gets the certificates in force.
func (c *certificates) server() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.config.Load(), nil },
	}
}
