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
	"strings"
	"sync/atomic"
	"testing"

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
		if len(post.Message.Blocks) != 1 || len(post.Message.Attachments) != 1 {
			t.Errorf("posted %+v, want one block and one attachment", post.Message)
		}
	}
	s.transport.CloseIdleConnections()
	testkit.NoError(t, send(t.Context(), s, hello))
	stale.Store(true)
	refuse.Store(true)
	failure := failureOf(t, send(t.Context(), s, hello))
	if failure.Class != sink.Transient || !strings.Contains(failure.Error(), "refused") {
		t.Errorf("no other connection: got %v, want a refusal", failure)
	}
	refuse.Store(false)
	testkit.NoError(t, send(t.Context(), s, hello))
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
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	s := newTestSlack(t, Options{Token: "xoxb-1", Channel: "C0000001", APIURL: server.URL})
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	s.transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}

	testkit.NoError(t, send(t.Context(), s, hello))
	testkit.Equal(t, <-requests, "HTTP/2.0 [INFO] hello", "request")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-requests
		cancel()
	}()
	wantFailure(t, "cancelled under way", send(ctx, s, event.Event{Title: "hold"}), sink.Unknown, context.Canceled)
}
