package ingest

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
)

// unparsed is a listener for requests that net/http rejects before a handler sees them, and for data that is not HTTP. It answers them with
// problem details and counts them; net/http itself would send text or nothing.
type unparsed struct {
	net.Listener
	metrics Metrics
}

// Accept returns the next connection.
func (u unparsed) Accept() (net.Conn, error) {
	conn, err := u.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &unparsedConn{conn, u.metrics}, nil
}

type unparsedConn struct {
	net.Conn
	metrics Metrics
}

// NetConn returns the connection below.
func (c *unparsedConn) NetConn() net.Conn { return c.Conn }

// unparsedDetails describes the requests that net/http answers itself, by status.
var unparsedDetails = map[int]string{
	http.StatusBadRequest:                  "the request is not valid HTTP/1.1",
	http.StatusExpectationFailed:           "the header Expect must be absent or 100-continue",
	http.StatusRequestHeaderFieldsTooLarge: headersTooLarge,
	http.StatusNotImplemented:              "the header Transfer-Encoding must be absent or chunked",
	http.StatusHTTPVersionNotSupported:     "the version of HTTP must be 1.0 or 1.1",
}

// Write sends the data of net/http, which writes each of its own answers in one call: a problem replaces such an answer.
func (c *unparsedConn) Write(written []byte) (int, error) {
	status := ownStatus(written)
	if status == 0 {
		return c.Conn.Write(written)
	}
	if _, err := c.Conn.Write(c.answer(status)); err != nil {
		return 0, err
	}
	return len(written), nil
}

// Read reads from the client. A client that uses HTTP on a port with TLS gets an answer without TLS too.
func (c *unparsedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if begun, is := errors.AsType[tls.RecordHeaderError](err); is && begun.Conn != nil && slices.Contains(requestStarts, string(begun.RecordHeader[:])) {
		c.Conn = begun.Conn
	}
	return n, err
}

// requestStarts are the first bytes of requests without TLS, as long as a TLS record header.
var requestStarts = []string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO"}

// ownStatus returns the status of an answer that net/http made without a handler; 0 for any other data.
func ownStatus(written []byte) int {
	const first = "HTTP/1.1 "
	head, _, _ := bytes.Cut(written, []byte("\r\n\r\n"))
	if !bytes.HasPrefix(written, []byte(first)) || len(head) < len(first)+3 || head[len(first)] < '4' || bytes.Contains(head, []byte(problemType)) {
		return 0
	}
	status, _ := strconv.Atoi(string(head[len(first) : len(first)+3])) // 0 for any other text
	if unparsedDetails[status] == "" {
		return 0
	}
	return status
}

// answer returns a complete answer, after which the connection ends.
func (c *unparsedConn) answer(status int) []byte {
	c.metrics.Request(status)
	body := newProblem(status, unparsedDetails[status]).encoded()
	var answer bytes.Buffer
	_ = (&http.Response{ // cannot fail: everything is in memory
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {problemType}, "X-Content-Type-Options": {"nosniff"}},
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)), Close: true,
	}).Write(&answer)
	return answer.Bytes()
}
