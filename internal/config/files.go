package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Bounds of the files that settings name, so that a wrong path does not fill the memory.
const (
	maxSecretBytes   = 64 << 10  // more than any password, token or list of URLs
	maxTemplateBytes = 256 << 10 // more than any template of one message
	maxFileBytes     = 4 << 20   // more than any bundle of certificates
)

var errEmptyFile = errors.New("file is empty; expected the path of a file with content")

// file checks that a file is readable and not empty. The caller validates the contents.
func file(path string) (string, error) {
	_, err := readFile(path, maxFileBytes)
	return path, err
}

func authorities(path string) (string, error) {
	_, err := readAuthorities(path)
	return path, err
}

func template(path string) (string, error) {
	content, err := readFile(path, maxTemplateBytes)
	return string(content), err
}

func readAuthorities(path string) (*x509.CertPool, error) {
	content, err := readFile(path, maxFileBytes)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return nil, errors.New("file holds no certificate; expected certificates in PEM")
	}
	return pool, nil
}

// readSecret reads a secret from a file. A line end of Unix or of Windows at the end is not part of the secret.
func readSecret(path string) (string, error) {
	content, err := readFile(path, maxSecretBytes)
	if err != nil {
		return "", err
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	switch {
	case text == "":
		return "", errEmptyFile
	case strings.TrimSpace(text) == "":
		return "", errors.New("file holds nothing but blanks; expected the path of a file with a secret")
	}
	return text, nil
}

// readFile returns the contents of a file, from one byte to limit bytes. Its errors have no path, since every fault names it.
func readFile(path string, limit int64) ([]byte, error) {
	// Without O_NONBLOCK, opening a named pipe waits for its writer.
	opened, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // who runs the program names the file
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() { _ = opened.Close() }() // nothing was written
	if info, err := opened.Stat(); err == nil && info.IsDir() {
		return nil, errors.New("is a folder; expected the path of a file")
	}
	content, err := io.ReadAll(io.LimitReader(opened, limit+1))
	switch {
	case err != nil:
		return nil, unreadable(err)
	case len(content) == 0:
		return nil, errEmptyFile
	case int64(len(content)) > limit:
		return nil, fmt.Errorf("file is larger than %d bytes; expected the path of a smaller one", limit)
	}
	return content, nil
}

func unreadable(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("there is no such file; expected the path of a readable file")
	}
	if pathError := new(fs.PathError); errors.As(err, &pathError) {
		err = pathError.Err
	}
	return fmt.Errorf("file cannot be read: %w; expected the path of a readable file", err)
}

// ClientConfig reads the files. It returns nil if no file is set. If a file is set, TLS is used with any scheme of the URL.
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
