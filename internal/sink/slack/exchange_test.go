package slack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// staleConn is a kept connection whose writes fail while stale is set.
type staleConn struct {
	net.Conn
	stale *atomic.Bool
}

func (c staleConn) Write(p []byte) (int, error) {
	if c.stale.Load() {
		return 0, errors.New("connection given up")
	}
	return c.Conn.Write(p)
}

func TestSendOnAStaleConnection(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, byToken(server))
	stale, refuse := new(atomic.Bool), new(atomic.Bool)
	s.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if refuse.Load() {
			return nil, errors.New("refused")
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if stale.Swap(false) || err != nil {
			return conn, err
		}
		return staleConn{conn, stale}, nil
	}
	testkit.NoError(t, send(t.Context(), s, hello))
	stale.Store(true)
	testkit.NoError(t, send(t.Context(), s, hello)) // on another connection
	for _, post := range server.Posts() {
		testkit.Equal(t, len(post.Message.Blocks), 1, "blocks")
		testkit.Equal(t, len(post.Message.Attachments), 1, "attachments")
	}
	s.transport.CloseIdleConnections()
	testkit.NoError(t, send(t.Context(), s, hello))
	stale.Store(true)
	refuse.Store(true)
	failure := failureOf(t, send(t.Context(), s, hello))
	testkit.Equal(t, failure.Class, sink.Transient, "class without another connection")
	testkit.Contains(t, "failure", failure.Error(), "refused")
	refuse.Store(false)
	testkit.NoError(t, send(t.Context(), s, hello))
}

// TestSendInTime has a post that must begin by a time wait for a connection for longer. It is not sent. Nor is a post whose check fails.
func TestSendInTime(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, byToken(server))
	dial := make(chan struct{})
	s.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		<-dial
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	within := func(d time.Duration) context.Context {
		return sink.WithCheck(t.Context(), func(context.Context) (time.Time, error) { return time.Now().Add(d), nil })
	}
	failure := failureOf(t, send(within(time.Millisecond), s, hello))
	testkit.Equal(t, failure.Class, sink.Transient, "class without a connection: %v", failure)
	testkit.Contains(t, "failure", failure.Error(), "not sent: there was no connection in time")
	close(dial)
	testkit.NoError(t, send(within(time.Hour), s, hello))
	testkit.Equal(t, failureOf(t, send(within(-time.Second), s, hello)).Class, sink.Transient, "class with a connection")
	refused := sink.WithCheck(t.Context(), func(context.Context) (time.Time, error) { return time.Time{}, errors.New("muted") })
	testkit.Contains(t, "failure", failureOf(t, send(refused, s, hello)).Error(), "not sent: muted")
	testkit.Equal(t, len(server.Posts()), 1, "posts")
}

func startHTTP2(server *httptest.Server) {
	server.EnableHTTP2 = true
	server.StartTLS()
}

// trusting makes a sink that trusts the certificate of a started server, which ends with the test.
func trusting(t *testing.T, server *httptest.Server) *Sink {
	t.Helper()
	t.Cleanup(server.Close)
	s := newTestSlack(t, Options{Token: "xoxb-1", Channel: "C0000001", APIURL: server.URL})
	if certificate := server.Certificate(); certificate != nil {
		roots := x509.NewCertPool()
		roots.AddCert(certificate)
		s.transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return s
}

// TestSendAfterSuspension has time pass between the connection and the request, over each protocol. Nothing is posted too late.
func TestSendAfterSuspension(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*httptest.Server){
		"HTTP/1.1":          (*httptest.Server).Start,
		"HTTP/1.1 with TLS": (*httptest.Server).StartTLS,
		"HTTP/2":            startHTTP2,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			posted := make(chan string, 2)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if text := r.FormValue("text"); text != "" { // the headers alone are no post
					posted <- r.Proto
				}
				_, _ = io.WriteString(w, `{"ok":true,"ts":"1.000001"}`)
			}))
			start(server)
			s := trusting(t, server)
			by := time.Now().Add(time.Hour)
			checked := sink.WithCheck(t.Context(), func(context.Context) (time.Time, error) { return by, nil })
			testkit.NoError(t, send(checked, s, hello))
			testkit.Contains(t, "protocol", <-posted, strings.Fields(name)[0])
			suspended := httptrace.WithClientTrace(checked, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
				time.Sleep(time.Until(by))
			}})
			by = time.Now().Add(100 * time.Millisecond)
			failure := failureOf(t, send(suspended, s, hello))
			testkit.Equal(t, failure.Class, sink.Transient, "class: %v", failure)
			by = time.Now().Add(time.Hour)
			testkit.NoError(t, send(checked, s, hello))
			<-posted
			testkit.Equal(t, len(posted), 0, "late posts")
		})
	}
}

func TestSendOverHTTP2(t *testing.T) {
	t.Parallel()
	requests := make(chan string, 2)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := r.FormValue("text")
		requests <- r.Proto + " " + text
		if strings.Contains(text, "hold") {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, `{"ok":true,"ts":"1.000001"}`)
	}))
	startHTTP2(server)
	s := trusting(t, server)
	testkit.NoError(t, send(t.Context(), s, hello))
	testkit.Equal(t, <-requests, "HTTP/2.0 [INFO] hello", "request")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-requests
		cancel()
	}()
	wantFailure(t, "cancelled under way", send(ctx, s, event.Event{Title: "hold"}), sink.Unknown, context.Canceled)
}
