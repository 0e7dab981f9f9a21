package sink

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxReply is how much of an answer's body is read, in bytes, unless the request says otherwise.
	maxReply = 64 << 10
	// maxConnections bounds the connections to Slack. Over HTTP/2, which Slack speaks, one
	// carries many requests.
	maxConnections = 128
)

// exchange records one request, made with a context that carries it, and its answer.
type exchange struct {
	form  string // goes behind the request's body
	limit int64  // bytes to read of the answer's body
	// begun is set before the first byte of the request's body is handed to a connection.
	begun atomic.Bool
	reply *reply // nil if none came
	// err is why there is no reply, or why its body is incomplete. It comes from below
	// http.Client, which would add the URL.
	err error
}

type exchangeKey struct{}

func (x *exchange) context(parent context.Context) context.Context {
	ctx := context.WithValue(parent, exchangeKey{}, x)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// The transport asks for another connection only when the one before took nothing.
		GetConn: func(string) { x.begun.Store(false) },
		// WroteRequest would be too late: it races with a cancelled request's return, whereas
		// this runs before the body and thus before the connection is closed.
		WroteHeaders: func() { x.begun.Store(true) },
	})
}

// recorder is a http.RoundTripper that fills in the exchange of its request's context. It reads
// the answer's body, as far as it is wanted, before it returns, and keeps it from slack-go, which
// would decode all of it for nobody.
type recorder struct {
	next      *http.Transport
	userAgent string
}

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	x, ok := request.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		x = &exchange{limit: maxReply} // nobody asks
	}
	request = request.WithContext(request.Context()) // a copy, which may be changed
	request.Header = request.Header.Clone()
	request.Header.Set("User-Agent", r.userAgent)
	if err := x.complete(request); err != nil {
		x.err = err
		return nil, err
	}
	response, err := r.next.RoundTrip(request)
	if err != nil {
		x.err = err
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, x.limit))
	_ = response.Body.Close() // nothing of it is needed any more
	x.reply = &reply{status: response.StatusCode, header: response.Header, body: body}
	x.err = err
	response.Body = http.NoBody
	return response, nil
}

// complete puts the form behind the request's body.
func (x *exchange) complete(request *http.Request) error {
	if x.form == "" {
		return nil
	}
	var whole strings.Builder
	whole.Grow(int(request.ContentLength) + len(x.form))
	if _, err := io.Copy(&whole, request.Body); err != nil {
		return err
	}
	whole.WriteString(x.form)
	request.ContentLength = int64(whole.Len())
	request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(whole.String())), nil }
	var err error
	request.Body, err = request.GetBody()
	return err
}

// newTransport heeds HTTPS_PROXY, as http.DefaultTransport does, and bounds its connections. The
// pings find a connection that died silently, which would otherwise eat every request for
// minutes.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
		MaxConnsPerHost:        maxConnections,
		MaxIdleConns:           maxConnections,
		MaxIdleConnsPerHost:    maxConnections,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxReply,
	}
}
