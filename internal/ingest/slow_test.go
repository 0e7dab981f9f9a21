package ingest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/hostile"
	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// TestSlowClients has many slow, silent and broken clients. A good client keeps its connection, and can open new ones.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	good, line := newToken(t, "good", ">")
	file := write(t, filepath.Join(t.TempDir(), "tokens"), line)
	d := open(t, func(o *ingest.Options) { o.TokensFile, o.MaxConnections = file, 200 })
	address := strings.TrimPrefix(d.url, "http://")
	begun := []string{
		"", "POST /v1", "POST /v1/events/a HTTP/1.1\r\nHost: x\r\n", "\x16\x03\x01\x02", "POST /v1/events/a HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\nx",
		"POST /v1/events/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + good + "\r\nContent-Length: 60000\r\n\r\n{",
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
	if evicted := d.counts.Get("evicted"); evicted < clients-200 {
		t.Errorf("closed connections: got %d, want at least %d", evicted, clients-200)
	}
	testkit.Equal(t, d.left(), 102, "stored events")
}
