package config

import (
	"crypto/tls"
	"fmt"
)

// ClientConfig reads the files. It returns nil if no file is set. With any file set, TLS is used whatever the scheme of the URL.
func (t TLS) ClientConfig() (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		authorities, err := readAuthorities(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("certificate authorities in %s: %w", t.CAFile, err)
		}
		config.RootCAs = authorities
	}
	if t.CertFile != "" {
		certificate, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("client certificate in %s with the key in %s: %w", t.CertFile, t.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}
