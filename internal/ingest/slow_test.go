package ingest_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestSlowClients has many slow, silent and broken clients. A good client keeps its connection, and can open new ones.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	good, line := newToken(t, "good", ">")
	file := write(t, filepath.Join(t.TempDir(), "tokens"), line)
	d := open(t, func(o *ingest.Options) { o.TokensFile, o.MaxConnections = file, 200 })
	address := strings.TrimPrefix(d.url, "http://")
	begun := []string{
		"", "POST /v1", "POST /v1/events/a HTTP/1.1\r\nHost: localhost\r\n", "\x16\x03\x01\x02", "POST /v1/events/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\nx",
		"POST /v1/events/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + good + "\r\nContent-Length: 60000\r\n\r\n{",
		"GET / HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 100),
	}
	var opened atomic.Int64
	d.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		opened.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}}}
	testkit.Equal(t, d.post("/v1/events/a", "before", bearer(good)...).status, 202, "status before")
	var mu sync.Mutex
	var slow []net.Conn
	defer func() {
		for _, conn := range slow {
			_ = conn.Close()
		}
	}()
	var attack sync.WaitGroup
	clients := hostile.Times(t, 1000, 1000)
	for attacker := range 4 {
		attack.Go(func() {
			for i := range clients / 4 {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(conn, begun[(attacker+i)%len(begun)]) // the server may have closed the connection
				mu.Lock()
				slow = append(slow, conn)
				mu.Unlock()
			}
		})
	}
	for i := range 50 {
		testkit.Equal(t, d.post("/v1/events/a", fmt.Sprintf("event %d", i), bearer(good)...).status, 202, "status of event %d of an old connection", i)
	}
	attack.Wait()
	testkit.Equal(t, d.post("/v1/events/a", "after", bearer(good)...).status, 202, "status of the event after the attack")
	testkit.Equal(t, opened.Load(), 1, "connections that the good client has opened") // it would open another one if the server had closed the first
	d.client.CloseIdleConnections()
	d.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for i := range 50 {
		testkit.Equal(t, d.post("/v1/events/a", "x", bearer(good)...).status, 202, "status of event %d of a new connection", i)
	}
	testkit.AtMost(t, d.counts.Get("connections"), 200, "connections")
	testkit.AtLeast(t, d.counts.Get("evicted"), clients-200, "closed connections")
	testkit.Equal(t, d.left(), 102, "stored events")
}

// TestNewClientAmongGoodOnes fills the server with connections that have sent a good token. A new client is served, at the cost of the
// connection that has waited longest.
func TestNewClientAmongGoodOnes(t *testing.T) {
	t.Parallel()
	good, line := newToken(t, "good", ">")
	file := write(t, filepath.Join(t.TempDir(), "tokens"), line)
	d := open(t, func(o *ingest.Options) { o.TokensFile, o.MaxConnections = file, 3 })
	ask := func(conn net.Conn) error {
		const body = "kept open"
		_, _ = fmt.Fprintf(conn, "POST /v1/events/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", good, len(body), body)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		_, err = io.Copy(io.Discard, response.Body)
		testkit.Equal(t, response.StatusCode, 202, "status of a connection that stays open")
		return err
	}
	var kept []net.Conn
	for range 3 {
		conn := testkit.Must(net.Dial("tcp", d.address()))(t)
		defer func() { _ = conn.Close() }()
		testkit.NoError(t, ask(conn))
		kept = append(kept, conn)
	}
	d.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	testkit.Equal(t, d.post("/v1/events/a", "new", bearer(good)...).status, 202, "status of the event of a new client")
	testkit.Fails(t, "the connection that has waited longest", ask(kept[0]), nil)
	testkit.NoError(t, ask(kept[1]))
	testkit.NoError(t, ask(kept[2]))
	testkit.Equal(t, d.counts.Get("evicted"), 1, "closed connections")
}

// TestUnparsed sends what never reaches a handler. The answers are problem details, and are counted.
func TestUnparsed(t *testing.T) {
	t.Parallel()
	folder, own := t.TempDir(), newAuthority(t)
	certificate, key := own.sign(t)
	files := ingest.TLSFiles{CertFile: write(t, filepath.Join(folder, "cert"), certificate), KeyFile: write(t, filepath.Join(folder, "key"), key)}
	roots := x509.NewCertPool()
	roots.AddCert(own.certificate)
	plain, secured := open(t, nil), open(t, func(o *ingest.Options) { o.TLS = files })
	const post = "POST /v1/events/a HTTP/1.1\r\nHost: localhost\r\n"
	for _, test := range []struct {
		name, request string
		status        int
	}{
		{"Expect", post + "Expect: a miracle\r\nContent-Length: 1\r\n\r\nx", 417},
		{"headers above what the server reads", post + "X-Long: " + strings.Repeat("a", 100_000) + "\r\n\r\n", 431},
		{"headers above what is documented", post + "X-Long: " + strings.Repeat("a", 16<<10) + "\r\n\r\n", 431},
		{"Transfer-Encoding", post + "Transfer-Encoding: gzip\r\n\r\n", 501},
		{"version", "POST /v1/events/a HTTP/3.0\r\nHost: localhost\r\n\r\n", 505},
		{"no HTTP", "hello\r\n\r\n", 400},
		{"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
		{"no host", "POST /v1/events/a HTTP/1.1\r\n\r\n", 400},
	} {
		for kind, d := range map[string]*door{"plain": plain, "TLS": secured} {
			name := test.name + " over " + kind
			before := d.counts.Get(http.StatusText(test.status))
			conn := testkit.Must(net.Dial("tcp", d.address()))(t)
			if d == secured {
				conn = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
			}
			d.wantProblem(name, conn, test.request, test.status)
			testkit.Equal(t, d.counts.Get(http.StatusText(test.status))-before, 1, "counted answers to %s", name)
		}
	}
	secured.wantProblem("HTTP to a server with TLS", testkit.Must(net.Dial("tcp", secured.address()))(t), post+"\r\n", 400)
	testkit.Equal(t, plain.left()+secured.left(), 0, "stored messages")
}

// address is the host and port of the server.
func (d *door) address() string {
	_, address, _ := strings.Cut(d.url, "://")
	return address
}

// wantProblem sends a request, and wants the answer to be a problem of a status, as the header and as the body have it.
func (d *door) wantProblem(name string, conn net.Conn, request string, status int) {
	d.t.Helper()
	defer func() { _ = conn.Close() }()
	go func() { _, _ = io.WriteString(conn, request) }() // the server may answer before it has read everything
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		d.t.Errorf("%s: got %v, want an answer", name, err)
		return
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	testkit.NoError(d.t, err)
	got := answer{response.StatusCode, response.Header, string(body)}
	testkit.Equal(d.t, got.status, status, "status of %s", name)
	testkit.Equal(d.t, got.header.Get("Content-Type"), "application/problem+json", "content type of %s", name)
	var problem struct {
		Status        int
		Title, Detail string
	}
	testkit.NoError(d.t, json.Unmarshal(body, &problem))
	testkit.Equal(d.t, problem.Status, status, "status in the answer to %s", name)
	testkit.Equal(d.t, problem.Title, http.StatusText(status), "title of %s", name)
	testkit.Equal(d.t, problem.Detail != "", true, "%s has a detail", name)
}

// TestBrokenOffGroup ends transfers early. The client is asked to repeat the group, and it counts as no fault of the client. Broken JSON before
// the end of a transfer is a fault.
func TestBrokenOffGroup(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	for body, wants := range map[string]string{
		"": "Retry-After: 1", "\xef": "Retry-After: 1", groupOf(alertOf(1, 0))[:300]: "Retry-After: 1", groupOf(alertOf(1, 0)): "Retry-After: 1", "{}}": `"reason":"bad_json"`,
	} {
		conn := testkit.Must(net.Dial("tcp", d.address()))(t)
		testkit.Must(fmt.Fprintf(conn, "POST /v1/alertmanager/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 10000\r\n\r\n%s", body))(t)
		testkit.NoError(t, conn.(*net.TCPConn).CloseWrite()) //nolint:errcheck // Dial returns nothing else
		got := string(testkit.Must(io.ReadAll(conn))(t))
		testkit.NoError(t, conn.Close())
		testkit.Equal(t, strings.HasPrefix(got, "HTTP/1.1 400 "), true, "%q: the status of %q is 400", body, got)
		testkit.Contains(t, body, got, wants)
	}
	testkit.Equal(t, d.left(), 0, "stored messages")
	testkit.Equal(t, d.counts.Get("refused anyone"), 1, "refused requests")
}

// TestStoppingServer stops while a client uploads, and while another connection is idle. The upload is stored, since the end of the listener
// is no lack of room.
func TestStoppingServer(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	begun := func(path, body string) net.Conn {
		conn := testkit.Must(net.Dial("tcp", d.address()))(t)
		testkit.Must(fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body[:len(body)/2]))(t)
		return conn
	}
	event, group := `{"title":"slow"}`, groupOf(alertsOf(30, 0)...)
	uploads := map[net.Conn]string{begun("/v1/events/a", event): event, begun("/v1/alertmanager/a", group): group}
	testkit.Eventually(t, "both connections", func() bool { return d.counts.Get("connections") == 2 })
	d.server.Drain()
	last, err := d.client.Post(d.url+"/v1/events/a", "text/plain", strings.NewReader("while it drains"))
	testkit.NoError(t, err)
	defer func() { _ = last.Body.Close() }()
	testkit.Equal(t, last.StatusCode, 202, "status while it drains")
	testkit.Equal(t, last.Close, true, "the connection ends with the answer")
	stopped := make(chan error, 1)
	go func() { stopped <- d.server.Shutdown(t.Context()) }()
	testkit.Eventually(t, "an end of the listener", func() bool {
		conn, err := net.Dial("tcp", d.address())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	for conn, body := range uploads {
		testkit.Must(io.WriteString(conn, body[len(body)/2:]))(t)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		testkit.NoError(t, err)
		testkit.Equal(t, response.StatusCode, 202, "status of an upload that began before")
		_ = response.Body.Close()
		_ = conn.Close()
	}
	testkit.NoError(t, <-stopped)
	testkit.Equal(t, d.counts.Get("evicted"), 0, "evicted connections")
	testkit.Equal(t, d.left(), 32, "stored messages")
}
