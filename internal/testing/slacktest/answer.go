package slacktest

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Answer is what the server does with one request. The zero Answer is OK's.
type Answer struct{ do func(*exchange) }

// exchange is one request that waits for its answer.
type exchange struct {
	server  *Server
	post    *Post // nil: the method posts nothing
	writer  http.ResponseWriter
	left    <-chan struct{} // closed when the client or the server leaves
	succeed func()          // answers as Slack would
}

func (a Answer) serve(x *exchange) {
	if a.do == nil {
		a = OK()
	}
	a.do(x)
}

// OK answers as Slack would: it accepts a post without a Post.Fault, and refuses any other post with this fault.
func OK() Answer { return Answer{func(x *exchange) { x.succeed() }} }

func orEmpty(list json.RawMessage) json.RawMessage {
	if len(list) == 0 {
		return json.RawMessage("[]")
	}
	return list
}

// Stored takes the post as OK does, and then gives an answer that does not say so: Reset, Truncated, Status or Code.
func Stored(then Answer) Answer {
	return Answer{func(x *exchange) {
		if x.post != nil && x.post.Fault == "" {
			x.server.accept(x.post)
		}
		then.serve(x)
	}}
}

// webhookStatus holds the HTTP status of a webhook's refusal, by code. All other codes have status 400.
var webhookStatus = map[string]int{
	"action_prohibited": 403, "invalid_token": 403, "posting_to_general_channel_denied": 403,
	"channel_not_found": 404, "no_service": 404, "channel_is_archived": 410, "rollup_error": 500,
}

// Code refuses the post with one of Slack's error codes. The answer is JSON with status 200; a webhook gets text with Slack's status for
// the code.
func Code(code string) Answer {
	return Answer{func(x *exchange) {
		if x.post != nil && x.post.Method == MethodWebhook {
			Status(cmp.Or(webhookStatus[code], http.StatusBadRequest), code).serve(x)
		} else {
			refuse(x.writer, code)
		}
	}}
}

// RateLimited refuses the post with status 429 and a Retry-After of that many whole seconds.
func RateLimited(retryAfter time.Duration) Answer {
	seconds := strconv.Itoa(int(retryAfter / time.Second))
	return Reply(http.StatusTooManyRequests, http.Header{"Retry-After": {seconds}}, `{"ok":false,"error":"ratelimited"}`)
}

// Status refuses the post with a status and a body.
func Status(status int, body string) Answer { return Reply(status, nil, body) }

// HTML answers with a status and a page, as a proxy in between does.
func HTML(status int) Answer {
	return Reply(status, http.Header{"Content-Type": {"text/html"}}, "<!DOCTYPE html><title>Oops</title><p>Not Slack.")
}

// Redirect answers with status 307 and a place to go instead.
func Redirect(location string) Answer {
	return Reply(http.StatusTemporaryRedirect, http.Header{"Location": {location}}, "")
}

// Huge answers with status 200 and size bytes of JSON with the verdict at the end.
func Huge(size int) Answer {
	return Reply(http.StatusOK, nil, `{"padding":"`+strings.Repeat("x", size)+`","ok":true,"ts":"1.000001"}`)
}

// Reply answers with exactly this, and does not take the post.
func Reply(status int, header http.Header, body string) Answer {
	return Answer{func(x *exchange) {
		maps.Copy(x.writer.Header(), header)
		x.writer.WriteHeader(status)
		_, _ = io.WriteString(x.writer, body)
	}}
}

// Truncated answers with status 200, promises length bytes, which must be more than body has, and ends the connection after
// body.
func Truncated(length int, body string) Answer {
	return Answer{func(x *exchange) {
		x.writer.Header().Set("Content-Length", strconv.Itoa(length))
		_, _ = io.WriteString(x.writer, body)
		_ = http.NewResponseController(x.writer).Flush()
		panic(http.ErrAbortHandler)
	}}
}

// Reset resets the connection after the request was read, and does not take the post.
func Reset() Answer {
	return Answer{func(x *exchange) {
		conn, _, err := http.NewResponseController(x.writer).Hijack()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		reset(conn)
	}}
}

// Delay waits for d, then gives another answer, unless the client or the server goes first.
func Delay(d time.Duration, then Answer) Answer {
	return Answer{func(x *exchange) {
		wait(x, time.After(d), then)
	}}
}

// Hold waits until release is closed, then gives another answer, unless the client or the server goes first. With a nil channel
// it waits for ever.
func Hold(release <-chan struct{}, then Answer) Answer {
	return Answer{func(x *exchange) { wait(x, release, then) }}
}

func wait[T any](x *exchange, done <-chan T, then Answer) {
	select {
	case <-done:
		then.serve(x)
	case <-x.left:
		panic(http.ErrAbortHandler)
	}
}

// resettingListener resets the connections that ResetConnections has asked for.
type resettingListener struct {
	net.Listener
	left atomic.Int64
}

// Accept implements net.Listener.
func (l *resettingListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || l.left.Add(-1) < 0 {
			return conn, err
		}
		reset(conn)
	}
}

// reset closes a connection so that the client sees an error, not an orderly end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
