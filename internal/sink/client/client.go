package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/sink"
)

const (
	// DefaultLimit is how many bytes of an answer a call reads unless it has another limit.
	DefaultLimit = 64 << 10
	// maxConnections bounds the connections to one host. Over HTTP/2 one connection carries many requests.
	maxConnections = 128
	// maxCode bounds Error.Code, in characters.
	maxCode = 100
	// maxDetail bounds how many characters of an answer an error quotes.
	maxDetail = 200
)

// Options are the settings of a client. All but UserAgent are required.
type Options struct {
	Sink      string // names the kind of sink in Observe
	Transport *http.Transport
	UserAgent string
	Redactor  Redactor
	Observe   func(context.Context, sink.Request) // is called after every request of Send; must not block
}

// Client makes requests.
type Client struct {
	HTTP *http.Client // Call.Do has to use it
	o    Options
}

// New makes a client. The caller closes the idle connections of the transport at the end.
func New(o Options) *Client {
	stop := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{&http.Client{Transport: recorder{o.Transport, o.UserAgent}, CheckRedirect: stop}, o}
}

// Call is one HTTP request.
type Call struct {
	Method      string // names it in Observe
	Destination string // names it in failures
	Timeout     time.Duration
	Limit       int64 // bytes of the answer to read; 0: DefaultLimit
	// Do makes the request with Client.HTTP and the context. Its error counts only if an answer came or no request was made.
	Do func(context.Context) error
	// Judge classifies the answer. The error is the result of Do.
	Judge func(Reply, error) Verdict
}

// Reply is an HTTP answer. Its body is cut to the limit of the call.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Verdict classifies a reply. Code and detail are neither bounded nor redacted.
type Verdict struct {
	Class      sink.Class
	OfChannel  bool // as in sink.Error
	Code       string
	Detail     string // in words; may be empty
	RetryAfter time.Duration
}

// Send makes a request that delivers something, and reports it to Observe. It makes none if ctx has ended or its check fails. If there is no
// connection in time, the message is not sent.
func (c *Client) Send(ctx context.Context, call Call) (Reply, *sink.Error) {
	by, failure := sink.Begin(ctx, call.Destination)
	if failure != nil {
		return Reply{}, failure
	}
	made := sink.Request{Sink: c.o.Sink, Method: call.Method, Class: sink.OK, Began: time.Now()}
	reply, failure := c.ask(ctx, call, by)
	made.Took, made.Status = time.Since(made.Began), reply.Status
	if failure != nil {
		made.Class, made.Code = failure.Class, failure.Code
	}
	c.o.Observe(ctx, made)
	return reply, failure
}

// Ask makes a request and classifies its answer.
func (c *Client) Ask(ctx context.Context, call Call) (Reply, *sink.Error) {
	return c.ask(ctx, call, time.Time{})
}

// ask is Ask. Its request begins by a time, or is not sent; a zero time is no bound.
func (c *Client) ask(parent context.Context, call Call, by time.Time) (Reply, *sink.Error) {
	ctx, cancel := context.WithTimeout(parent, call.Timeout)
	defer cancel()
	x := &exchange{limit: call.Limit, by: by, cancel: cancel}
	if x.limit == 0 {
		x.limit = DefaultLimit
	}
	if !by.IsZero() { // a dial goes on, so the next request finds a connection
		x.late = time.AfterFunc(time.Until(by), cancel)
		defer x.late.Stop()
	}
	err := call.Do(x.in(ctx))
	broken := x.err
	if x.answer == nil && broken == nil {
		broken = err // no request was made
	}
	// cause returns the reason why no answer came or the answer broke off.
	cause := func() error {
		switch {
		case parent.Err() != nil:
			return parent.Err()
		case x.answer == nil && !x.begun.Load() && x.isLate():
			return errTooLate
		case ctx.Err() != nil:
			return fmt.Errorf("no answer within %v: %w", call.Timeout.Round(time.Millisecond), ctx.Err())
		default:
			return c.o.Redactor.Error(broken)
		}
	}
	switch {
	case x.answer == nil && x.begun.Load():
		return Reply{}, &sink.Error{Class: sink.Unknown, Channel: call.Destination, Err: fmt.Errorf("sent, but no answer came: %w", cause())}
	case x.answer == nil:
		return Reply{}, &sink.Error{Class: sink.Transient, Channel: call.Destination, Err: fmt.Errorf("not sent: %w", cause())}
	}
	v := call.Judge(*x.answer, err)
	if v.Class == sink.OK {
		return *x.answer, nil
	}
	failure := &sink.Error{
		Class: v.Class, OfChannel: v.OfChannel, Code: c.o.Redactor.Text(v.Code, maxCode), Channel: call.Destination, RetryAfter: v.RetryAfter,
	}
	switch {
	case v.Class == sink.Unknown && broken != nil:
		failure.Err = fmt.Errorf("%s: the answer broke off: %w", failure.Code, cause())
	case v.Detail != "":
		failure.Err = fmt.Errorf("%s: %s", failure.Code, c.o.Redactor.Text(v.Detail, maxDetail))
	default:
		failure.Err = errors.New(failure.Code)
	}
	return *x.answer, failure
}

// errTooLate is why a request is not sent that has no connection in time.
var errTooLate = errors.New("there was no connection in time, so it has to be checked again whether the message may be posted")

// exchange records the request of one call, which the context carries to the recorder.
type exchange struct {
	limit  int64
	by     time.Time   // when the body must be handed to a connection; zero: at any time
	late   *time.Timer // ends the wait for a connection; nil: there is no such time
	cancel func()      // ends the request
	plain  bool        // the request is made without TLS, over a connection that serves no other request meanwhile
	conn   net.Conn    // of the request; nil until there is one
	begun  atomic.Bool // some of the request's body was handed to a connection
	answer *Reply      // nil if none came
	err    error       // why there is no answer, or why it is incomplete
}

// isLate reports whether a request that must begin by a time may not begin any more. The process may have been suspended since it got the
// connection.
func (x *exchange) isLate() bool { return !x.by.IsZero() && !time.Now().Before(x.by) }

// timely is the body of a request that must begin by a time.
type timely struct {
	io.ReadCloser
	of   *exchange
	read bool
}

// Read implements io.Reader.
func (b *timely) Read(p []byte) (int, error) {
	if !b.read && b.of.isLate() {
		return 0, errTooLate
	}
	b.read = true
	b.of.begun.Store(true)
	return b.ReadCloser.Read(p)
}

// bind has a request's body refuse to begin too late, also on another connection. Without TLS, [exchange.headersWritten] refuses instead: with
// such a body, the transport would send the headers apart.
func (x *exchange) bind(request *http.Request) {
	x.plain = request.URL.Scheme == "http"
	anew := request.GetBody
	if x.plain || x.by.IsZero() || anew == nil {
		return
	}
	request.Body = &timely{ReadCloser: request.Body, of: x}
	request.GetBody = func() (io.ReadCloser, error) {
		body, err := anew()
		return &timely{ReadCloser: body, of: x}, err
	}
}

type exchangeKey struct{}

// in returns a context for one request, which x records.
func (x *exchange) in(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(context.WithValue(ctx, exchangeKey{}, x), &httptrace.ClientTrace{
		// The transport asks for another connection only if the previous one took nothing.
		GetConn: func(string) { x.begun.Store(false) },
		// WroteRequest would be too late: a cancelled request returns without waiting for it. WroteHeaders runs before the
		// body is written, and thus before the connection is closed.
		WroteHeaders: x.headersWritten,
		GotConn: func(got httptrace.GotConnInfo) {
			x.conn = got.Conn
			if x.late != nil {
				x.late.Stop()
			}
		},
	})
}

// headersWritten is called when the headers are written, without TLS into a buffer. Then the body follows.
func (x *exchange) headersWritten() {
	switch {
	case x.plain && x.isLate(): // the transport finds the connection closed, and asks for no other one
		x.cancel()
		_ = x.conn.Close()
	case x.plain || x.by.IsZero():
		x.begun.Store(true)
	}
}

// recorder is the transport of a client. It reads each answer itself, up to the limit of the call: what came of an answer that
// broke off may still prove a delivery.
type recorder struct {
	transport *http.Transport
	userAgent string
}

// RoundTrip implements http.RoundTripper. The body of its response is in memory.
func (r recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	x, known := request.Context().Value(exchangeKey{}).(*exchange)
	if !known {
		return nil, errors.New("a request without a call")
	}
	request = request.Clone(request.Context())
	request.Header.Set("User-Agent", r.userAgent)
	x.bind(request)
	response, err := r.transport.RoundTrip(request)
	if err != nil {
		x.err = err
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, x.limit))
	_ = response.Body.Close() // the rest of the answer is not needed
	x.answer, x.err = &Reply{Status: response.StatusCode, Header: response.Header, Body: body}, err
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// NewTransport returns a transport that uses HTTPS_PROXY and bounds its connections. Its pings find a silently dead connection,
// which would make every request fail for minutes.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
		MaxConnsPerHost:        maxConnections,
		MaxIdleConns:           maxConnections,
		MaxIdleConnsPerHost:    maxConnections,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: DefaultLimit,
		WriteBufferSize:        16 << 10, // a usual request takes one write to the connection, not one for the headers and one for the body
	}
}
