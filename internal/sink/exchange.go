package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/slack-go/slack"
)

const (
	// maxReply is how much of an answer's body is read, in bytes, unless the request says otherwise.
	maxReply = 64 << 10
	// maxConnections bounds the connections to Slack. Over HTTP/2, which Slack speaks, one carries many requests.
	maxConnections = 128
)

// request is one request to Slack.
type request struct {
	method      string // of the Web API, or "webhook"
	destination string // names it in its failure
	timeout     time.Duration
	tail        string // goes behind what do makes of the request's body
	limit       int64  // bytes to read of the answer
	classify    func(reply) verdict
	do          func(context.Context, *http.Client) error // makes it; its error counts only where the client was not used
}

// method returns a request to a method of the Web API, which do calls by the client that it is handed.
func (s *Slack) method(name string, do func(context.Context, *slack.Client) error) request {
	return request{
		method: name, destination: name, timeout: s.o.Timeout, limit: maxReply, classify: classifyMethod,
		do: func(ctx context.Context, client *http.Client) error {
			return do(ctx, slack.New(s.o.Token, slack.OptionHTTPClient(client), slack.OptionAPIURL(s.o.APIURL)))
		},
	}
}

// observed makes one request that counts, unless the context has ended.
func (s *Slack) observed(ctx context.Context, r request) (reply, *Error) {
	if failure := interrupted(ctx, r.destination); failure != nil {
		return reply{}, failure
	}
	made := Request{Method: r.method, Class: OK, Began: time.Now()}
	answer, failure := s.call(ctx, r)
	made.Took, made.Status = time.Since(made.Began), answer.status
	if failure != nil {
		made.Class, made.Code = failure.Class, failure.Code
	}
	s.o.Observe(ctx, made)
	return answer, failure
}

// interrupted is the failure of a call whose context ended before it began; nil if it did not.
func interrupted(ctx context.Context, destination string) *Error {
	if ctx.Err() == nil {
		return nil
	}
	return &Error{Class: Transient, Channel: destination, Err: fmt.Errorf("not sent: %w", ctx.Err())}
}

// call makes one request and classifies its answer.
func (s *Slack) call(parent context.Context, r request) (reply, *Error) {
	ctx, cancel := context.WithTimeout(parent, r.timeout)
	defer cancel()
	x := &exchange{sink: s, request: r}
	err := r.do(ctx, &http.Client{Transport: x, CheckRedirect: stopAtRedirect})
	if x.answer != nil || x.err != nil {
		err = x.err // the one of slack-go holds the URL, and may mean no more than that it saw no answer
	}
	// cause is why no answer came, or why it broke off.
	cause := func() error {
		switch {
		case parent.Err() != nil:
			return parent.Err()
		case ctx.Err() != nil:
			return fmt.Errorf("no answer within %v: %w", r.timeout.Round(time.Millisecond), ctx.Err())
		default:
			return s.redactor.error(err)
		}
	}
	switch {
	case x.answer == nil && x.begun.Load():
		return reply{}, &Error{Class: Unknown, Channel: r.destination, Err: fmt.Errorf("sent, but no answer came: %w", cause())}
	case x.answer == nil:
		return reply{}, &Error{Class: Transient, Channel: r.destination, Err: fmt.Errorf("not sent: %w", cause())}
	}
	v := r.classify(*x.answer)
	if v.class == OK {
		return *x.answer, nil
	}
	failure := &Error{Class: v.class, Code: s.redactor.text(v.code, maxCode), Channel: r.destination, RetryAfter: v.retryAfter}
	switch {
	case v.class == Unknown && err != nil:
		failure.Err = fmt.Errorf("%s: the answer broke off: %w", failure.Code, cause())
	case v.detail != "":
		failure.Err = fmt.Errorf("%s: %s", failure.Code, s.redactor.text(v.detail, maxDetail))
	default:
		failure.Err = errors.New(failure.Code)
	}
	return *x.answer, failure
}

func stopAtRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// exchange is the transport of one request. It records what came of the request, and reads the answer itself: slack-go would
// read all of it, and take one that was cut short for no answer.
type exchange struct {
	sink    *Slack
	request request

	begun  atomic.Bool // some of the request's body was handed to a connection
	answer *reply      // nil if none came
	err    error       // why there is no answer, or why it is incomplete
}

// RoundTrip implements http.RoundTripper. What it returns has no body.
func (x *exchange) RoundTrip(post *http.Request) (*http.Response, error) {
	post = post.Clone(httptrace.WithClientTrace(post.Context(), &httptrace.ClientTrace{
		// The transport asks for another connection only when the one before took nothing.
		GetConn: func(string) { x.begun.Store(false) },
		// WroteRequest would be too late: a cancelled request returns without waiting for it. WroteHeaders runs before the
		// body is written, and thus before the connection is closed.
		WroteHeaders: func() { x.begun.Store(true) },
	}))
	post.Header.Set("User-Agent", x.sink.userAgent)
	if err := x.complete(post); err != nil {
		x.err = err
		return nil, err
	}
	response, err := x.sink.transport.RoundTrip(post)
	if err != nil {
		x.err = err
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, x.request.limit))
	_ = response.Body.Close() // nothing of it is needed any more
	x.answer, x.err = &reply{status: response.StatusCode, header: response.Header, body: body}, err
	response.Body = http.NoBody
	return response, nil
}

// complete puts the tail behind the body of post. Where the body is a JSON object, the tail holds the brace that closes it.
func (x *exchange) complete(post *http.Request) error {
	if x.request.tail == "" {
		return nil
	}
	made, err := io.ReadAll(post.Body)
	if err != nil {
		return err
	}
	whole := append(bytes.TrimSuffix(made, []byte("}")), x.request.tail...)
	post.ContentLength = int64(len(whole))
	post.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(whole)), nil }
	post.Body, err = post.GetBody()
	return err
}

// newTransport heeds HTTPS_PROXY, as http.DefaultTransport does, and bounds its connections. Its pings find a connection that
// died silently, on which every request would otherwise fail for minutes.
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
