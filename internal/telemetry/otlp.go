package telemetry

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cenkalti/backoff/v5"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// otlpClient sends spans to a collector by OTLP over HTTP, in protobuf. The exporter otlptracehttp would link gRPC too, which makes the
// program 5 MB larger.
type otlpClient struct {
	url       string
	host      string // of the URL, which may hold secrets
	headers   http.Header
	compress  bool
	timeout   time.Duration // of one batch, with all tries
	userAgent string
	client    *http.Client
}

const defaultOTLPTimeout = 10 * time.Second

// otlpSetting returns a setting of the exporter. The setting for traces overrides the setting for all signals.
func otlpSetting(name string) string {
	return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_"+name), os.Getenv("OTEL_EXPORTER_OTLP_"+name))
}

// newOTLPClient reads the settings, as the specification of OpenTelemetry defines them. Its error names no secret.
func newOTLPClient(userAgent string) (*otlpClient, error) {
	c := &otlpClient{timeout: defaultOTLPTimeout, userAgent: userAgent}
	endpoint, err := otlpEndpoint()
	if err != nil {
		return nil, err
	}
	c.url, c.host = endpoint.String(), endpoint.Host
	if protocol := otlpSetting("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q: only http/protobuf is spoken", protocol)
	}
	if c.headers, err = otlpHeaders(otlpSetting("HEADERS")); err != nil {
		return nil, err
	}
	switch compression := otlpSetting("COMPRESSION"); compression {
	case "", "none":
	case "gzip":
		c.compress = true
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_COMPRESSION is %q, not gzip or none", compression)
	}
	if text := otlpSetting("TIMEOUT"); text != "" {
		milliseconds, err := strconv.Atoi(text)
		if err != nil || milliseconds <= 0 {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_TIMEOUT is %q, not a number of milliseconds", text)
		}
		c.timeout = time.Duration(milliseconds) * time.Millisecond
	}
	security, err := otlpTLS()
	if err != nil {
		return nil, err
	}
	c.client = &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSClientConfig: security, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the headers are for this host
	}
	return c, nil
}

// otlpEndpoint returns the endpoint for traces. Without one it returns a path below the endpoint for all signals.
func otlpEndpoint() (*url.URL, error) {
	text, name := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	below := text == ""
	if below {
		text, name = os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), "OTEL_EXPORTER_OTLP_ENDPOINT"
	}
	endpoint, err := url.Parse(text)
	if err != nil || endpoint.Host == "" || endpoint.Scheme != "http" && endpoint.Scheme != "https" {
		return nil, fmt.Errorf("%s is not of the form http://host:port or https://host:port", name)
	}
	if below {
		endpoint = endpoint.JoinPath("v1", "traces")
	}
	return endpoint, nil
}

// otlpHeaders reads name=value,name=value, with values in percent-encoding.
func otlpHeaders(text string) (http.Header, error) {
	headers := http.Header{}
	for header := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(header) == "" {
			continue
		}
		name, value, found := strings.Cut(header, "=")
		name = strings.TrimSpace(name)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !found || err != nil || name == "" || strings.ContainsFunc(name, isNoToken) || strings.ContainsFunc(value, unicode.IsControl) {
			return nil, errors.New("OTEL_EXPORTER_OTLP_HEADERS is not of the form name=value,name=value")
		}
		headers.Set(name, value)
	}
	return headers, nil
}

// isNoToken reports whether the name of a header cannot have a character.
func isNoToken(r rune) bool {
	return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

// otlpTLS returns nil if no certificate is set.
func otlpTLS() (*tls.Config, error) {
	authority, certificate, key := otlpSetting("CERTIFICATE"), otlpSetting("CLIENT_CERTIFICATE"), otlpSetting("CLIENT_KEY")
	if authority == "" && certificate == "" && key == "" {
		return nil, nil //nolint:nilnil // the default needs no configuration
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if authority != "" {
		pem, err := os.ReadFile(authority) //nolint:gosec // the operator's file
		if err != nil {
			return nil, fmt.Errorf("reading OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("reading OTEL_EXPORTER_OTLP_CERTIFICATE: the file holds no certificate")
		}
	}
	if certificate != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("reading OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _KEY: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Start does nothing: the first batch makes the connection.
func (*otlpClient) Start(context.Context) error { return nil }

// Stop closes idle connections.
func (c *otlpClient) Stop(context.Context) error {
	c.client.CloseIdleConnections()
	return nil
}

// UploadTraces sends one batch, repeatedly while the collector cannot take it, until the timeout.
func (c *otlpClient) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans}) // has the wire format of an ExportTraceServiceRequest
	if err != nil {
		return fmt.Errorf("encoding spans: %w", err)
	}
	if c.compress {
		var compressed bytes.Buffer
		writer := gzip.NewWriter(&compressed)
		_, _ = writer.Write(body) // a buffer takes everything
		_ = writer.Close()
		body = compressed.Bytes()
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var last error
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		err := c.post(ctx, body)
		if ctx.Err() == nil || last == nil {
			last = err
		}
		return struct{}{}, err
	})
	if err != nil {
		return cmp.Or(last, err) // the last answer says more than that the time is over
	}
	return nil
}

// retried are the answers after which the specification asks for another try.
var retried = []int{http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}

// maxOTLPAnswer is how much of an answer is read, so that its connection can be used again.
const maxOTLPAnswer = 64 << 10

func (c *otlpClient) post(ctx context.Context, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(fmt.Errorf("sending spans to %s: the request cannot be made", c.host))
	}
	request.Header = c.headers.Clone()
	request.Header.Set("Content-Type", "application/x-protobuf")
	request.Header.Set("User-Agent", c.userAgent)
	if c.compress {
		request.Header.Set("Content-Encoding", "gzip")
	}
	answer, err := c.client.Do(request)
	if err != nil {
		if failure, known := errors.AsType[*url.Error](err); known {
			err = failure.Err // without the URL
		}
		return fmt.Errorf("sending spans to %s: %w", c.host, err)
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, maxOTLPAnswer)
	switch {
	case answer.StatusCode/100 == 2:
		return nil
	case !slices.Contains(retried, answer.StatusCode):
		return backoff.Permanent(fmt.Errorf("sending spans to %s: the answer is %s", c.host, answer.Status))
	}
	failure := fmt.Errorf("sending spans to %s: the answer is %s", c.host, answer.Status)
	after := answer.Header.Get("Retry-After")
	seconds, err := strconv.Atoi(after)
	if date, noDate := http.ParseTime(after); noDate == nil {
		seconds, err = int(time.Until(date)/time.Second)+1, nil
	}
	if err == nil && seconds > 0 {
		longest := int(c.timeout/time.Second) + 1 // a longer wait ends with the timeout
		return fmt.Errorf("%w: %w", failure, backoff.RetryAfter(min(seconds, longest)))
	}
	return failure
}
