package httpserver

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// pipes is a listener whose connections are pipes.
type pipes struct{ net.Listener }

func (pipes) Accept() (net.Conn, error) {
	conn, _ := net.Pipe()
	return conn, nil
}

// connectionCounts counts connections.
type connectionCounts struct{ connections, evicted int }

func (c *connectionCounts) Connections(delta int) { c.connections += delta }
func (c *connectionCounts) Evicted()              { c.evicted++ }

// TestAllAtWork fills a guard with requests under way. A new connection is closed itself, since a complete request is never interrupted.
func TestAllAtWork(t *testing.T) {
	t.Parallel()
	counts := new(connectionCounts)
	g := &guard{Listener: pipes{}, most: 2, metrics: counts}
	accept := func() *Connection {
		return testkit.Must(g.Accept())(t).(*Connection) //nolint:errcheck // a guard accepts nothing else
	}
	first, second := accept(), accept()
	first.Work()
	second.Work()
	testkit.Equal(t, accept().closed, true, "the new connection is closed")
	testkit.Equal(t, first.closed || second.closed, false, "a request under way is interrupted")
	testkit.Equal(t, counts.connections, 2, "connections")
	first.Answered()
	testkit.Equal(t, accept().closed, false, "the next connection is closed")
	testkit.Equal(t, first.closed, true, "the connection with an answer is closed")
}

// TestPortInUse listens on an address where another server listens. The error names the address once, and the setting.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	first := testkit.Must(Listen(t.Context(), "the page", "NOTIFIER_PAGE_ADDR", "127.0.0.1:0"))(t)
	defer func() { _ = first.Listener.Close() }()
	_, err := Listen(t.Context(), "the page", "NOTIFIER_PAGE_ADDR", first.Addr())
	testkit.Fails(t, "error", err, syscall.EADDRINUSE)
	testkit.Equal(t, strings.Count(err.Error(), first.Addr()), 1, "how often %v names the address", err)
	testkit.Contains(t, "error", err.Error(), "(check NOTIFIER_PAGE_ADDR)")
}
